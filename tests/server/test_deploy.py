"""The Grafana dashboard and the alert rules: they parse, and every metric and label that they use exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lockstep.server.exposition import DURATIONS, PROCESS_METRICS, VERB, WORKER
from lockstep.server.store_exposition import FETCHED, PARTS
from support.databases import Databases
from support.http import Http
from support.server import running_server

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text())
ALERTS = yaml.safe_load((ROOT / "deploy/prometheus-alerts.yml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
OF_PROMETHEUS = {"job", "instance", "le"}

LABELS = {
    **{f"lockstep_{metric.name}": {WORKER, *metric.labels} for metric in PROCESS_METRICS},
    **{f"lockstep_{figure.name}": set(part.labels) for part in PARTS.values() for figure in part.figures},
    **{f"{DURATIONS[0]}{suffix}": {WORKER, VERB, "le"} for suffix in ("_bucket", "_sum", "_count")},
    FETCHED[0]: {"part"},
}


def dashboard_queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            # What Grafana puts in place of its variables.
            yield target["expr"].replace("$__rate_interval", "1m").replace("$job", ".*").replace("$queue", ".*")


QUERIES = [*dashboard_queries(), *[rule["expr"] for rule in RULES]]


def selectors(expression: Any) -> Iterator[Any]:
    """Every use of a metric in a parsed query."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
        return
    for name in ("expr", "lhs", "rhs", "vector_selector", "selector", "param"):
        inner = getattr(expression, name, None)
        if inner is not None and not isinstance(inner, str):
            yield from selectors(inner)
    for inner in getattr(expression, "args", None) or ():
        yield from selectors(inner)


@pytest.mark.parametrize("query", QUERIES)
def test_query_is_promql_over_metrics_and_labels_that_exist(query: str) -> None:
    used = list(selectors(promql_parser.parse(query)))
    names = [selector.name for selector in used]
    assert sorted(names) == sorted(re.findall(r"lockstep_\w+", query)), "every metric of the query was looked at"
    for selector in used:
        known = LABELS[selector.name] | OF_PROMETHEUS
        assert {matcher.name for matcher in selector.matchers.matchers} <= known
    grouped = {name.strip() for names in re.findall(r"by \(([^)]*)\)", query) for name in names.split(",")}
    assert grouped <= set.union(OF_PROMETHEUS, *[LABELS[name] for name in names])


def test_promql_that_is_wrong_is_found() -> None:
    with pytest.raises(ValueError, match=r"."):
        promql_parser.parse("sum by (le (rate(lockstep_up_seconds[5m]))")


def test_real_server_exposes_every_metric_that_is_used(databases: Databases, tmp_path: Path) -> None:
    dsn = databases.clone()
    with running_server(dsn, tmp_path) as server:
        http = Http(server.url)
        http.push("orders", 1)
        http.ack(http.pop("orders")["messages"][0])
        described = {
            sample
            for family in text_string_to_metric_families(http.get("/metrics/prometheus").body.decode())
            for sample in (family.name, f"{family.name}_total", *[one.name for one in family.samples])
        }
    used = {name for query in QUERIES for name in re.findall(r"lockstep_\w+", query)}
    assert len(used) > 40
    assert used - described == set()
    databases.drop(dsn)


def test_rules_say_what_is_wrong_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[smh]", rule["for"])
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        named = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
        used = re.findall(r"lockstep_\w+", rule["expr"])
        assert named <= set.union(OF_PROMETHEUS, *[LABELS[name] for name in used])


def test_commands_and_files_that_rules_name_exist() -> None:
    from lockstep.cli.main import cli

    for rule in RULES:
        text = rule["annotations"]["description"]
        for path in re.findall(r"docs/[\w/-]+\.md", text):
            assert (ROOT / path).exists()
        for command in re.findall(r"`lockstep ([a-z ]+)", text):
            known: Any = cli
            for word in command.split():
                known = known.commands[word]


def test_panels_do_not_overlap_and_have_units() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert taken.isdisjoint(cells)
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["targets"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
