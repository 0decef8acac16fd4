"""The manual's tables that follow from code: `python tests/docs/tables.py` writes them into `docs/generated`."""

from __future__ import annotations

from pathlib import Path

from alpo.node.event_log import EVENTS
from alpo.node.http.metrics import FAMILIES
from alpo.spark.options import RULES

GENERATED = Path(__file__).parents[2] / "docs" / "generated"


def events() -> str:
    """The page of all events, with the level and the meaning of each."""
    rows = [f"| `{event}` | {level} | {meaning} |" for event, (level, meaning) in EVENTS.items()]
    return "\n".join((
        "# Events", "",
        'Every event of a server\'s [log](../operations.md#logs). "It" is the server that logs the event.',
        "", "| event | level | meaning |", "|---|---|---|", *rows, "",
    ))


def metrics() -> str:
    """The page of all metrics, as they are exported."""
    rows = [
        f"| `{family.name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in FAMILIES
    ]
    return "\n".join((
        "# Metrics", "",
        "Every metric that a server exports at [`/metrics`](../monitoring.md#metrics).", "",
        "| name (`alpo_` before each) | type | labels | meaning |", "|---|---|---|---|", *rows, "",
    ))


def spark_options() -> str:
    """The page of the options of Spark that do not go together."""
    lines = [
        "# Options of Spark that do not go together", "",
        "Each pair is an [error](../spark.md) that says why, also with an option's default value.", "",
    ]
    for title, kinds in (("Reading", ("spark.read", "spark.readStream")), ("Writing", ("df.write", "df.writeStream"))):
        rows = [
            f"| {', '.join(f'`{name}`' for name in rule.options)} | {'only' if rule.only else 'not'} with "
            f"{' or '.join(f'`{name}`' for name in rule.others)} | {rule.why} |"
            for kind in kinds for rule in RULES[kind]
        ]
        lines += [f"## {title}", "", "| options | go | because |", "|---|---|---|", *dict.fromkeys(rows), ""]
    return "\n".join(lines)


#: Maker of each file in `docs/generated`.
PAGES = {"events.md": events, "metrics.md": metrics, "spark-options.md": spark_options}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (GENERATED / name).write_text(page(), "utf-8")
