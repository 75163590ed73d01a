"""The server as a whole over HTTP: settings, consistency, the database beneath, pipelines."""

from __future__ import annotations

import psycopg

from support.http import Http
from support.server import ServerProcess


def test_settings_tell_their_source_and_hide_secrets(memory_http: Http) -> None:
    rows = {row["name"]: row for row in memory_http.get("/api/v1/system/settings").json()["settings"]}
    assert rows["workers"]["source"] == "default"
    assert (rows["port"]["value"], rows["port"]["source"]) == (0, "LOCKSTEP_PORT")
    assert rows["encryption_key"]["value"] in (None, "***")
    assert all(row["meaning"] for row in rows.values())


def test_verify_finds_nothing_in_a_sound_store(http: Http, queue: str) -> None:
    http.push(queue, 1)
    assert http.post("/api/v1/system/verify", {"queue": queue}).json() == {"problems": []}
    assert http.post("/api/v1/system/verify", {"queue": "no such queue"}).code == "queue_not_found"


def test_open_transaction_is_named_with_its_owner(postgres_server: ServerProcess) -> None:
    http = Http(postgres_server.url)
    with psycopg.connect(postgres_server.dsn, application_name="forgotten") as connection:
        connection.execute("select 1")
        connection.execute("select pg_sleep(1.1)")
        answer = http.get("/api/v1/analytics/postgres-activity").json()
    mine = [row for row in answer["horizon"] if "forgotten" in row["owner"]]
    assert [row["kind"] for row in mine] == ["transaction"]
    assert answer["walBytes"] > 0


def test_pipelines_are_listed(http: Http) -> None:
    assert http.get("/api/v1/pipelines", pipeline="none").json() == {"steps": []}


_ARCHIVED = """
with batch as (
    insert into lockstep.archive_batch (archive, query, batch, begun_at, committed_at, messages)
    values ('s3://shop/archive', 'query', 1, '2099-01-01Z', '2099-01-01T00:01Z', 7) returning id
)
insert into lockstep.archive_file (batch_id, path, queue, day, messages, bytes, first_at, last_at)
select id, 'p', %s, '2099-01-01', 7, 512, '2098-01-01Z', '2098-01-01Z' from batch
"""
_COMPUTED = """
insert into lockstep.stat_window (queue, group_name, window_seconds, window_start, computed_at)
values (%s, '', 300, '2098-01-01Z', '2099-01-02Z')
"""


def test_what_jobs_wrote_is_listed_newest_first(postgres_server: ServerProcess, queue: str) -> None:
    with psycopg.connect(postgres_server.dsn) as connection:
        connection.execute(_ARCHIVED, (queue,))
        connection.execute(_COMPUTED, (queue,))
    stats, archive = Http(postgres_server.url).get("/api/v1/pipelines/jobs", limit=2).json()["runs"]
    assert (stats["job"], stats["target"], stats["windows"]) == ("stats", "windows of 300 s", 1)
    assert (archive["job"], archive["target"], archive["queues"]) == ("archive", "s3://shop/archive", [queue])
    assert (archive["messages"], archive["bytes"], archive["windows"]) == (7, 512, None)
    assert (archive["beganAt"], archive["endedAt"]) == ("2099-01-01T00:00:00.000000Z", "2099-01-01T00:01:00.000000Z")
    with psycopg.connect(postgres_server.dsn) as connection:
        connection.execute("delete from lockstep.archive_batch")
        connection.execute("delete from lockstep.stat_window")
