"""Names and labels of the metrics that alpod exports, as alert rules and dashboards may use them.

Laws:

* `FAMILIES` is what `/metrics` promises. A rule that names anything else watches nothing.
* ``job``, ``instance`` and ``cluster`` come from Prometheus's own configuration, on every series.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from alpo.node.hosted import STATES
from alpo.node.http import metrics


class Family(NamedTuple):
    """``kind``: counter, gauge or histogram; ``labels``: beside those of the target."""

    name: str
    kind: str
    labels: tuple[str, ...] = ()


#: Labels that every series has.
TARGET_LABELS = frozenset({"job", "instance", "cluster"})
FAMILIES = [Family(f"alpo_{family.name}", family.kind, family.labels) for family in metrics.FAMILIES]
#: Families that the Prometheus library adds about the process itself.
PROCESS = [
    Family("process_resident_memory_bytes", "gauge"), Family("process_cpu_seconds_total", "counter"),
    Family("process_open_fds", "gauge"), Family("process_max_fds", "gauge"),
    Family("process_start_time_seconds", "gauge"),
]
#: Series that Prometheus itself makes.
MADE = [Family("up", "gauge"), Family("ALERTS", "gauge", ("alertname", "alertstate", "severity"))]
_VALUES = {
    "role": ("voter", "learner"), "file": ("cert", "ca"), "by": ("member", "cursor"), "peer": ("2", "3"),
    "result": metrics.RESULTS, "reason": metrics.REASONS, "path": metrics.PATHS, "kind": ("named", "unnamed"),
    "log": ("default", "billing"), "state": STATES,
    "job": ("alpo",), "cluster": ("prod",), "instance": ("one:7180", "two:7180", "three:7180"),
    "alpo_tls_handshakes_total result": ("ok", "failed", "left"),
    "alpo_read_requests_total kind": ("entries", "columns"),
}


def values_of(name: str, label: str) -> tuple[str, ...]:
    """Values of a label in series of this name, where they are known; else ()."""
    return _VALUES.get(f"{name} {label}", _VALUES.get(label, ()))


def exported_names() -> set[str]:
    """Names of all families that an alpod exports."""
    return {family.name for family in FAMILIES}


def series() -> dict[str, frozenset[str]]:
    """Name of each series, as an expression writes it -> labels that it has. A histogram has three."""
    found: dict[str, frozenset[str]] = {}
    for family in [*FAMILIES, *PROCESS, *MADE]:
        labels = TARGET_LABELS | set(family.labels)
        if family.kind == "histogram":
            found[f"{family.name}_bucket"] = labels | {"le"}
            found[f"{family.name}_sum"] = found[f"{family.name}_count"] = labels
        else:
            found[family.name] = labels
    return found


_WORDS = frozenset((
    "and", "or", "unless", "bool", "offset", "inf", "nan", "by", "on", "without", "ignoring", "group_left",
    "group_right",
))
#: List of labels by which series are gathered or matched.
_GROUPED = re.compile(r"\b(?:by|on|without|ignoring|group_left|group_right)\s*\(([^)]*)\)")
#: Name that is no function's, with what stands in braces behind it.
_SELECTED = re.compile(r"\b([A-Za-z_][A-Za-z0-9_:]*)\b(?!\s*\()\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')


def _any(pattern: str, values: tuple[str, ...]) -> bool:
    return any(re.fullmatch(pattern, value) for value in values)


def faults(expr: str) -> list[str]:
    """Faults of an expression: series that alpod does not export, labels that a series does not have.

    Labels in braces must be the series' own, with a value that it takes where the values are known; labels by which
    series are gathered those of a series in the expression.
    """
    known, found, had = series(), [], set[str]()
    grouped = {label.strip() for labels in _GROUPED.findall(expr) for label in labels.split(",") if label.strip()}
    for name, braces in _SELECTED.findall(re.sub(r"\[[^]]*\]", "", _GROUPED.sub(" ", expr))):
        if name in _WORDS:
            continue
        if name not in known:
            found.append(f"{name} is not exported")
            continue
        had |= known[name]
        for label, value in _MATCHER.findall(braces):
            if label not in known[name]:
                found.append(f"{name} has no label {label}")
            elif "$" not in value and (values := values_of(name, label)) and not _any(value, values):
                found.append(f"{label} of {name} is never {value}")
    return found + [f"no series has the label {label}" for label in sorted(grouped - had)]
