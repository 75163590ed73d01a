"""Status, analytics and metrics over HTTP."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from support.http import Http
from support.server import ServerProcess

SPAN = {"from", "to"}


def _sampled(http: Http, queue: str) -> None:
    """A queue with two samples: what was pushed before the first, and what was done before the second."""
    http.push(queue, *range(10))
    assert http.post("/api/v1/stats/refresh").json()["success"] is True
    http.pop(queue, batch=4, autoAck="true")
    http.post("/api/v1/stats/refresh")


def test_status_sums_up_the_store(http: Http, queue: str) -> None:
    _sampled(http, queue)
    http.pop(queue)
    answer = http.get("/api/v1/status", queue=queue).json()
    assert set(answer["timeRange"]) == SPAN
    assert (answer["bucketMinutes"], answer["pointCount"]) == (1, len(answer["throughput"]))
    assert sum(point["ingested"] for point in answer["throughput"]) == 10
    assert sum(point["processed"] for point in answer["throughput"]) == 4
    assert answer["throughput"][-1]["pending"] == 6
    assert [row["name"] for row in answer["queues"]] == [queue]
    assert answer["messages"]["processing"] == 1
    assert answer["leases"] == {"active": 1, "partitionsWithLeases": 1, "figuresAt": None}
    assert answer["deadLetterQueue"] == {"totalMessages": 0, "affectedQueues": 0}
    assert answer["workers"][0]["messagesPushed"] >= 10
    assert set(answer["errors"]) == {"clientErrors", "serverErrors"}


def test_status_of_queues_is_paged(http: Http, queue: str) -> None:
    for name in ("a", "b"):
        http.push(f"{queue}.{name}", 1)
    answer = http.get("/api/v1/status/queues", namespace=queue, limit=1, offset=1).json()
    assert [row["name"] for row in answer["queues"]] == [f"{queue}.b"]
    assert answer["pagination"] == {"limit": 1, "offset": 1, "total": 2}


def test_status_of_one_queue_has_its_config(http: Http, queue: str) -> None:
    http.push(queue, 1, partition="a")
    answer = http.get(f"/api/v1/status/queues/{queue}").json()
    assert (answer["queue"]["name"], answer["queue"]["config"]["leaseTime"]) == (queue, 300)
    assert [row["name"] for row in answer["partitions"]] == ["a"]
    assert answer["totals"]["total"] == 1
    assert http.get(f"/api/v1/status/queues/{queue}-none").status == 404


@pytest.mark.parametrize("interval", ["minute", "hour", "day"])
def test_analytics_joins_samples(http: Http, queue: str, interval: str) -> None:
    _sampled(http, queue)
    answer = http.get("/api/v1/status/analytics", queue=queue, interval=interval).json()
    assert answer["interval"] == interval
    points: list[dict[str, Any]] = answer["dataPoints"]
    assert sum(point["ingested"] for point in points) == 10
    assert points[0]["ingestedPerSecond"] > 0


def test_queue_ops_and_lag_are_told_by_queue(http: Http, queue: str) -> None:
    _sampled(http, f"{queue}.a")
    _sampled(http, f"{queue}.b")
    operations = http.get("/api/v1/analytics/queue-ops", namespace=queue).json()
    assert [row["queue"] for row in operations["queues"]] == [f"{queue}.a", f"{queue}.b"]
    assert sum(point["processed"] for point in operations["queues"][0]["points"]) == 4
    lag = http.get("/api/v1/analytics/queue-lag", queue=f"{queue}.a").json()
    [row] = lag["queues"]
    assert row["points"][-1]["pending"] == 6
    assert row["points"][-1]["lagSeconds"] >= 0


@pytest.mark.parametrize("path", ["/api/v1/status", "/api/v1/status/analytics", "/api/v1/analytics/queue-ops"])
def test_bad_spans_are_refused(http: Http, path: str) -> None:
    for query in ({"from": "soon"}, {"from": "2025-01-02", "to": "2025-01-01"}, {"interval": "year"}):
        assert http.get(path, **query).status == 400, query


def test_a_span_may_reach_to_the_ends_of_time(http: Http) -> None:
    for query in ({"to": "0001-01-01T00:00:00Z"}, {"from": "0001-01-01", "to": "9999-12-31T23:59:59Z"}):
        assert http.get("/api/v1/analytics/queue-ops", interval="day", **query).status == 200, query


def test_retention_tells_of_removals_and_duties(http: Http) -> None:
    answer = http.get("/api/v1/analytics/retention").json()
    assert set(answer) == {"timeRange", "totals", "removals", "duties"}


def test_the_database_is_described(http: Http, request: pytest.FixtureRequest) -> None:
    answer = http.get("/api/v1/analytics/postgres-stats").json()
    if "memory" in request.node.callspec.id:
        assert (answer["version"], answer["tables"]) == (None, [])
        return
    assert int(answer["version"].split(".")[0]) >= 15
    assert answer["databaseBytes"] > 0
    assert answer["connections"] >= 1
    assert "segment" in {table["name"] for table in answer["tables"]}


def test_the_process_describes_itself(http: Http) -> None:
    system = http.get("/api/v1/analytics/system-metrics").json()
    assert system["cpu"]["userSeconds"] > 0
    assert system["memory"]["rssBytesMax"] > 10_000_000
    [worker] = http.get("/api/v1/analytics/worker-metrics").json()["workers"]
    assert (worker["workerId"], worker["requestsInFlight"]) == (system["workerId"], 1)


def test_buffers_tell_how_requests_are_joined(http: Http, queue: str) -> None:
    http.push(queue, 1)
    rows = {row["verb"]: row for row in http.get("/api/v1/status/buffers").json()["buffers"]}
    assert {"push", "pop", "ack", "renew"} <= set(rows)
    assert rows["push"]["requests"] >= rows["push"]["calls"] >= 1
    assert rows["push"]["roundTripsSaved"] == rows["push"]["requests"] - rows["push"]["calls"]


def test_metrics_count_what_was_done(http: Http, queue: str) -> None:
    before = http.get("/metrics").json()
    http.push(queue, 1, 2)
    http.ack(http.pop(queue)["messages"][0])
    after = http.get("/metrics").json()
    changes = {name: after["messages"][name] - before["messages"][name] for name in after["messages"]}
    assert changes == {"pushed": 2, "duplicate": 0, "popped": 1, "acked": 1, "redelivered": 0}
    assert after["requests"]["total"] == before["requests"]["total"] + 4
    routes = {(row["method"], row["route"], row["status"]) for row in after["requests"]["byRoute"]}
    assert ("POST", "/api/v1/push", 201) in routes
    assert set(after["polls"]) == {"waiting", "woken", "abandoned", "precheckHits", "precheckMisses"}
    assert set(after["cache"]) == {"segments", "bytes", "bytesMax", "hits", "misses"}


def _durations(http: Http) -> dict[str, dict[str, Any]]:
    return {row["verb"]: row for row in http.get("/metrics").json()["requests"]["durations"]}


def test_durations_are_counted_by_verb(http: Http, queue: str) -> None:
    verbs = ("push", "pop", "wait_pop", "ack", "renew", "other")
    http.get("/metrics")
    before = _durations(http)
    http.push(queue, 1)
    lease = http.pop(queue)
    http.post(f"/api/v1/lease/{lease['leaseId']}/extend")
    http.ack(lease["messages"][0])
    assert http.get(f"/api/v1/pop/queue/{queue}", wait="true", timeout=20).status == 204
    after = _durations(http)
    none = {"buckets": {"+Inf": 0}, "seconds": 0.0}
    counted = {verb: after[verb]["buckets"]["+Inf"] - before.get(verb, none)["buckets"]["+Inf"] for verb in verbs}
    assert counted == {"push": 1, "pop": 1, "wait_pop": 1, "ack": 1, "renew": 1, "other": 1}
    assert after["wait_pop"]["seconds"] - before.get("wait_pop", none)["seconds"] >= 0.02
    waits = after["wait_pop"]["buckets"]
    assert list(waits)[0::6] == ["0.001", "0.1", "10.0"]
    assert list(waits.values()) == sorted(waits.values()), "each bucket counts the shorter requests, too"


def test_prometheus_reads_every_line(http: Http, queue: str) -> None:
    http.push(queue, 1)
    http.ack(http.pop(queue)["messages"][0])
    answer = http.get("/metrics/prometheus")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    sample = re.compile(r'lockstep_\w+(\{(\w+="([^"\\]|\\.)*",?)+\})? [0-9.e+-]+')
    for line in lines:
        assert line.startswith(("# HELP lockstep_", "# TYPE lockstep_")) or sample.fullmatch(line), line
    assert any(line.startswith("lockstep_messages_pushed_total{") for line in lines)
    assert any('route="/api/v1/push",status="201"' in line for line in lines)
    for verb in ("push", "pop", "ack"):
        bucket = f'lockstep_request_duration_seconds_bucket{{le="0.001",messaging_operation_name="{verb}",worker='
        assert any(line.startswith(bucket) for line in lines)
    helped = [line.split()[2] for line in lines if line.startswith("# HELP")]
    assert len(helped) == len(set(helped))


def test_retention_of_a_namespace_leaves_out_the_others(postgres_server: ServerProcess, queue: str) -> None:
    http = Http(postgres_server.url)
    namespace = f"{queue}-namespace"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        for name in (f"{namespace}.mine", f"{queue}.other"):
            http.push(name, 1)
            connection.execute(
                "insert into lockstep.removal (at, queue, kind, messages, partitions) "
                "values (date_trunc('minute', now()), %s, 'retention', 3, 1)",
                [name],
            )
    path = "/api/v1/analytics/retention"
    assert [row["queue"] for row in http.get(path, namespace=namespace).json()["removals"]] == [f"{namespace}.mine"]
    assert http.get(path, namespace=namespace).json()["totals"] == {"retention": 3}
