"""docs/monitoring.md lists every metric as it is exported."""

from __future__ import annotations

from pathlib import Path

from alpo.node.http.metrics import FAMILIES, PATHS

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"


def test_every_metric_has_its_row_and_no_other_has_one() -> None:
    lines = PAGE.read_text("utf-8").splitlines()
    begin = lines.index("| name (`alpo_` before each) | type | labels | meaning |") + 2
    rows = lines[begin : lines.index("", begin)]
    assert rows == [
        f"| `{family.name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | {family.help} |"
        for family in FAMILIES
    ]


def test_every_path_is_documented() -> None:
    text = PAGE.read_text("utf-8")
    assert not [path for path in PATHS if f"| `{path}` |" not in text and not path.startswith("/page.")]
