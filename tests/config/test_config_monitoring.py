"""Alert rules and dashboard: every expression names what is exported, with labels that it has, and finds something."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pods
import pytest
import yaml
from metric_names import FAMILIES, MADE, PROCESS, TARGET_LABELS, Family, exported_names, faults, series, values_of

from alpo import health
from alpo.config import Timers

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "config"
RULES = CONTRIB / "alpo-rules.yml"
TESTS = CONTRIB / "alpo-rules-test.yml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="this machine has no promtool (Debian: prometheus)")

ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((CONTRIB / "alpo-dashboard.json").read_text("utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
#: Families that no rule and no panel uses: they are for whoever looks closer.
NOWHERE = """
cursor_lag_entries_max elections_won_total events_total first_lsn fully_replicated_lsn
guaranteed_id guaranteed_lsn last_id last_lsn leader_changes_total log_lines_dropped_total
members_reachable peer_connected peer_inflight_bytes peer_received_bytes_total
quota_appends_per_second quota_bytes_per_second
scrub_last_pass_timestamp_seconds sessions_expired_total voting
"""
_NAMES = re.compile(r"\balpo_\w+")


def drawn() -> Iterator[tuple[str, str, str]]:
    """(place, expression, text of the legend) of everything that the dashboard asks for."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for note in DASHBOARD["annotations"]["list"]:
        if "expr" in note:
            yield note["name"], note["expr"], note["titleFormat"]


def filled(expr: str) -> str:
    """An expression as Grafana sends it."""
    expr = expr.replace("$__rate_interval", "5m").replace('"$cluster', '"prod').replace("$instance", "one:7180|two:.+")
    expr = expr.replace("$log", "default|billing")
    assert "$" not in expr, expr
    return expr


def promtool(*arguments: str, cwd: Path = CONTRIB) -> str:
    """Output of a promtool that finds nothing wrong."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_rule_names_what_is_exported() -> None:
    assert {rule["alert"]: found for rule in ALERTS if (found := faults(rule["expr"]))} == {}
    known = series()
    for rule in ALERTS:
        kept = frozenset[str]().union(*(known[name] for name in _NAMES.findall(rule["expr"]))) | TARGET_LABELS
        told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert told <= kept, rule["alert"]


def test_every_alert_is_whole() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names) >= 12
    assert {rule["labels"]["severity"] for rule in ALERTS} == {"warning", "critical"}
    for rule in ALERTS:
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert anchor == rule["alert"].lower()
        headings = re.findall(r"^##+ (.+)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
        assert rule["alert"] in headings, f"{page} has no section {rule['alert']}"


def test_every_alert_is_seen_firing_and_silent() -> None:
    cases = [
        case for test in yaml.safe_load(TESTS.read_text("utf-8"))["tests"] for case in test.get("alert_rule_test", ())
    ]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == {rule["alert"] for rule in ALERTS}
    asked = {name for rule in ALERTS for name in _NAMES.findall(rule["expr"])}
    healthy = yaml.safe_load(TESTS.read_text("utf-8"))["tests"][0]["input_series"]
    assert asked == {each["series"].partition("{")[0] for each in healthy} - {"up"}


def test_alerts_have_the_limits_of_the_one_judge() -> None:
    """An operator who is paged, and looks, is told the same by every screen."""
    timeout_s = Timers().election_timeout_s
    limits = {
        "AlpoFsyncSlow": f"> {health.FSYNC_WARN * timeout_s:g}",
        "AlpoDiskHangs": f"alpo_write_under_way_seconds > {health.WRITE_BAD * timeout_s:g} or"
        f" alpo_read_under_way_seconds > {health.READ_BAD_MS / 1000:g})",
        "AlpoMemberLags": f"alpo_peer_lag_entries > {health.LAG_WARN} ",
        "AlpoDiskFillsSoon": f"predict_linear(alpo_disk_free_bytes[6h], {health.DAYS_BAD} * 86400) ",
        "AlpoCertificateExpires": f"- time() < {health.CERTIFICATE_WARN_DAYS} * 86400",
        "AlpoElections": f"> {health.ELECTIONS_WARN}",
        "AlpoOneMoreIsTooMany": " < 1 ",
        "AlpoLogTime": f"(alpo_log_ahead_seconds > {health.LOG_AHEAD_BAD_MS // 1000}) ",
    }
    exprs = {rule["alert"]: rule["expr"] + " " for rule in ALERTS}
    assert {name: limit in exprs[name] for name, limit in limits.items()} == dict.fromkeys(limits, True)


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", RULES.name)


@needs_promtool
def test_the_rules_fire_when_they_should() -> None:
    assert "SUCCESS" in promtool("test", "rules", TESTS.name)


@needs_promtool
def test_prometheus_accepts_the_configuration_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text("utf-8")
    (text,) = re.findall(r"^    scrape_configs:\n(?:    .*\n)+", page, re.MULTILINE)
    given = yaml.safe_load(text)
    (scraped,) = given["scrape_configs"]
    assert scraped["job_name"] == "alpo" and scraped["static_configs"][0]["labels"] == {"cluster": "prod"}
    tls = scraped["tls_config"]
    words = [*("certs", "make", "--dir", str(tmp_path)), "--client", f"read:{Path(tls['cert_file']).stem}"]
    assert f"--client {words[-1]}" in page
    subprocess.run([sys.executable, "-c", pods.ALPO, *words], check=True, capture_output=True)
    scraped["tls_config"] = {key: str(tmp_path / Path(path).name) for key, path in tls.items()}
    given["rule_files"] = [str(CONTRIB / name) for name in given["rule_files"]]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(given), "utf-8")
    assert f"{len(ALERTS)} rules found" in promtool("check", "config", str(tmp_path / "prometheus.yml"))


@needs_promtool
def test_a_rule_that_does_not_fire_is_found(tmp_path: Path) -> None:
    (tmp_path / RULES.name).write_text(RULES.read_text("utf-8").replace("alpo_disk_low > 0", "alpo_disk_low > 1"))
    shutil.copy(TESTS, tmp_path)
    with pytest.raises(AssertionError, match="AlpoDiskFull"):
        promtool("test", "rules", TESTS.name, cwd=tmp_path)


@pytest.mark.parametrize(("expr", "found"), [
    ('sum by (peer) (rate(alpo_peer_sent_bytes_total{peer="2"}[5m])) > 1e6 and on (instance) alpo_voting == 1', []),
    ("histogram_quantile(0.9, sum by (le) (rate(alpo_fsync_duration_seconds_bucket[5m])))", []),
    ("max by (instance, by) (alpo_cleaning_held_seconds) offset 5m", []),
    ("alpo_fsync_duration_seconds > 1", ["alpo_fsync_duration_seconds is not exported"]),
    ("rate(alpo_no_such_total[5m])", ["alpo_no_such_total is not exported"]),
    ('alpo_members{rule="voter"}', ["alpo_members has no label rule"]),
    ('alpo_members{role=~"voters"}', ["role of alpo_members is never voters"]),
    ("sum by (peer) (alpo_members)", ["no series has the label peer"]),
    ("alpo_voting and on (server_id) alpo_term", ["no series has the label server_id"]),
])
def test_faults_of_an_expression_are_seen(expr: str, found: list[str]) -> None:
    assert faults(expr) == found


def test_every_panel_names_what_is_exported() -> None:
    assert [(place, found) for place, expr, _ in drawn() if (found := faults(expr))] == []
    known = series()
    for place, expr, legend in drawn():
        had = frozenset[str]().union(*(known[name] for name in re.findall(r"\b[a-z]\w+", expr) if name in known))
        assert set(re.findall(r"{{(\w+)}}", legend)) <= had, place


def test_the_dashboard_is_whole() -> None:
    assert DASHBOARD["schemaVersion"] == 39 and DASHBOARD["id"] is None
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Now", "Appends", "Replication", "Disk", "Clients", "Process"]
    assert [each["name"] for each in DASHBOARD["templating"]["list"]] == ["datasource", "cluster", "instance", "log"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    sources = [each["datasource"]["uid"] for panel in PANELS for each in (panel, *panel["targets"])]
    assert set(sources) == {"${datasource}"}
    boxes = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(box["x"] + box["w"] <= 24 for box in boxes)
    for one, other in itertools.combinations(boxes, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_most_of_what_is_exported_is_looked_at() -> None:
    """Every family but these stands in a rule or a panel: what is new is put somewhere, or named here."""
    text = RULES.read_text("utf-8") + json.dumps(DASHBOARD)
    shown = {name for name in exported_names() if re.search(rf"\b{name}(_bucket|_sum|_count)?\b", text)}
    assert exported_names() - shown == {f"alpo_{name}" for name in NOWHERE.split()}


def made_up() -> Iterator[dict[str, str]]:
    """Series of every name with every value of its labels, as promtool's tests take them."""
    for family in [*FAMILIES, *PROCESS, *MADE]:
        labels = ["job", "cluster", "instance", *family.labels]
        for values in itertools.product(*(values_of(family.name, label) or ("x",) for label in labels)):
            yield from _samples(family, dict(zip(labels, values, strict=True)))


def _samples(family: Family, labels: dict[str, str]) -> Iterator[dict[str, str]]:
    if family.name == "ALERTS":
        labels |= {"alertname": "AlpoNoLeader", "alertstate": "firing"}
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    for suffix in suffixes:
        for le in ("0.1", "1", "+Inf") if suffix == "_bucket" else ("",):
            told = ", ".join(f'{key}="{value}"' for key, value in (labels | ({"le": le} if le else {})).items())
            values = "1x40" if family.kind == "gauge" and family.name != "alpo_term" else "1+7x40"
            yield {"series": f"{family.name}{suffix}{{{told}}}", "values": values}


@needs_promtool
def test_every_panel_finds_something(tmp_path: Path) -> None:
    """Labels that match nowhere give an empty panel, and no error."""
    cases = [
        {"expr": f"count({filled(expr)}) > bool 0", "eval_time": "10m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for _, expr, _ in drawn()
    ]
    tests = [{"interval": "15s", "input_series": list(made_up()), "promql_expr_test": cases}]
    (tmp_path / "test.yml").write_text(json.dumps({"evaluation_interval": "15s", "tests": tests}), "utf-8")
    assert "SUCCESS" in promtool("test", "rules", "test.yml", cwd=tmp_path)
    cases[0]["expr"] = filled('count(alpo_is_leader{cluster="$cluster"} * on (peer) alpo_peer_connected) > bool 0')
    (tmp_path / "test.yml").write_text(json.dumps({"evaluation_interval": "15s", "tests": tests}), "utf-8")
    with pytest.raises(AssertionError, match="FAILED"):
        promtool("test", "rules", "test.yml", cwd=tmp_path)
