"""The jobs as commands: what they print, how they end, and how they stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable

from lockstep.cli.main import cli
from lockstep.core.policy import queue_options
from lockstep.core.records import Ack
from lockstep.storage.postgres.store import PostgresStore
from support.builders import pop, push_n
from support.soak import soak_only
from support.until import until

pytestmark = pytest.mark.xdist_group("spark")

Run = Callable[..., Result]


@pytest.fixture
def run(request: pytest.FixtureRequest, database_dsn: str) -> Run:
    """A job in the Spark of the tests."""
    request.getfixturevalue("spark")

    def job(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["job", *arguments, "--dsn", database_dsn])
        assert result.exit_code == code, result.output
        return result

    return job


def said(result: Result) -> Any:
    return json.loads(result.stdout)


async def test_archive_is_a_table_and_is_tidied(run: Run, database_dsn: str, tmp_path: Path) -> None:
    store = PostgresStore(database_dsn)
    archive = str(tmp_path / "archive")
    table = ("--format", "delta", "--payload-schema", "n INT")
    for number in (1, 2):
        await push_n(store, "orders", 1, start=number)
        run("archive", "orders", "--to", archive, *table)
    done = said(run("tidy", archive, "--grace", "0", "-o", "json"))["tidied"]
    assert done == {
        "merged_files": 2,
        "into_files": 1,
        "expired_files": 0,
        "expired_messages": 0,
        "deleted_files": 2,
    }
    assert run("tidy", archive, "--expire-days", "1").stdout == "0 files merged into 0, 0 expired, 0 deleted\n"
    assert DeltaTable(archive).to_pyarrow_table().column("data").to_pylist() == [{"n": 1}, {"n": 2}]
    assert (
        "has a format already, delta" in run("archive", "orders", "--to", archive, "--format", "iceberg", code=4).stderr
    )
    assert "no archive" in run("tidy", str(tmp_path / "nothing"), code=3).stderr
    await store.close()


async def test_jobs_do_what_the_guide_shows(run: Run, database_dsn: str, tmp_path: Path) -> None:
    store = PostgresStore(database_dsn)
    trace = str(uuid4())
    await store.configure("orders", queue_options(retry_limit=0))
    await push_n(store, "orders", 3, trace_ids=[trace, None, None])
    popped = await pop(store, "orders", group="billing")
    await store.ack([Ack(lease_id=popped.lease_id, status="dlq", error="no stock of 7", group="billing")])

    archive, latest = str(tmp_path / "archive"), str(tmp_path / "latest")
    shown = run("archive", "orders", "--to", archive)
    assert shown.stdout.splitlines()[0].split() == ["queue", "batches", "messages", "files", "bytes"]
    assert shown.stdout.splitlines()[1].split()[:3] == ["orders", "1", "3"]
    assert shown.stderr == "orders: 3 messages in 1 batches\n"
    assert said(run("archive", "orders", "--to", archive, "-o", "json"))[0]["messages"] == 0
    [one] = said(run("traces", trace, "-o", "json"))
    assert (one["status"], one["steps"][0]["error"]) == ("dead_letter", "no stock of 7")
    shown = run("traces", trace)
    assert "no stock of 7" in shown.stdout.splitlines()[1]
    assert "it stopped in orders: no stock of 7" in shown.stderr
    assert run("traces", "--from", "1h", "--slowest").stdout.splitlines()[1].startswith(trace)

    [found] = said(run("dead-letters", "-o", "json"))
    assert (found["pattern"], found["count"]) == ("no stock of <n>", 1)
    assert found["examples"][0]["message"]["payload"] == {"n": 1}
    assert found["fingerprint"] in run("dead-letters", "--queue", "orders").stdout
    redrive = ("dead-letters", "--redrive", found["fingerprint"])
    assert "say --yes" in run(*redrive, code=2).stderr
    assert run(*redrive, "--yes").stdout == "1 dead letters pushed again\n"
    assert "(not_found)" in run(*redrive, "--yes", code=3).stderr

    page = tmp_path / "report.html"
    assert run("stats", "--report", str(page)).stdout.endswith(f"; the report is {page}\n")
    assert page.read_text().startswith("<!doctype html>")
    assert said(run("stats", "-o", "json"))["computed"]["queues"] == 1

    assert run("compact", archive, latest).stdout == "1 of 3 messages kept\n"
    await store.delete_queue("orders")
    assert run("replay", archive, "--dry-run").stdout.startswith("3 messages would be replayed")
    assert run("replay", archive).stdout == "3 messages replayed, 0 were stored already\n"
    counted = said(run("replay", archive, "-o", "ndjson"))
    assert counted == {"messages": 3, "restored": 0, "duplicates": 3}
    await store.close()


def test_bad_input_is_a_clear_error(run: Run, tmp_path: Path) -> None:
    archive = str(tmp_path)
    assert "Missing option '--to'" in run("archive", "q", code=2).stderr
    assert "there is no queue 'q' (queue_not_found)" in run("archive", "q", "--to", archive, code=3).stderr
    assert "(archive_not_found)" in run("replay", archive, code=3).stderr
    assert "ends before it begins" in run("replay", archive, "--from", "1h", "--to", "2h", code=2).stderr
    assert "is no fingerprint" in run("dead-letters", "--redrive", "x", "--yes", code=2).stderr
    assert "neither partition nor a JSON path" in run("compact", archive, "x", "--key", "id", code=2).stderr
    assert "is no setting of Spark" in run("stats", "--conf", "nonsense", code=2).stderr
    nowhere = str(tmp_path / "no" / "report.html")
    assert "the report cannot be written" in run("stats", "--report", nowhere, code=2).stderr


IN_ONE_PROCESS = """
import json, sys
from click.testing import CliRunner
from lockstep.cli.main import cli
print(json.dumps([CliRunner().invoke(cli, line).stderr for line in json.load(sys.stdin)]))
"""


def test_bad_input_is_told_before_spark_starts(database_dsn: str, tmp_path: Path) -> None:
    archive, missing = str(tmp_path), "there is no queue 'q' (queue_not_found)"
    (tmp_path / "p.py").write_text(
        "from lockstep.spark import Pipeline\np = Pipeline('p')\n@p.step(source='q', sink='r')\ndef s(df): return df\n"
    )
    lines = {
        missing: ["job", "archive", "q", "--to", archive],
        "ends before it begins": ["job", "replay", archive, "--from", "1h", "--to", "2h"],
        f"there is no folder {tmp_path / 'no'}": ["job", "stats", "--report", str(tmp_path / "no" / "report.html")],
        "trace id is not a UUID": ["job", "traces", "x"],
        "say --yes": ["job", "dead-letters", "--redrive", "3f2a9c01b7de"],
        "neither partition nor a JSON path": ["job", "compact", archive, "x", "--key", "id"],
        f"Error: {missing}": ["pipeline", "run", str(tmp_path / "p.py")],
        "needs Java": ["job", "stats"],
    }
    # In a process of its own, which has no Spark, and no Java to start one.
    ended = subprocess.run(
        [sys.executable, "-c", IN_ONE_PROCESS],
        input=json.dumps([[*line, "--dsn", database_dsn] for line in lines.values()]),
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for expected, told in zip(lines, json.loads(ended.stdout), strict=True):
        assert expected in told


def test_job_without_a_database_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("LOCKSTEP_DSN", raising=False)
    result = CliRunner().invoke(cli, ["job", "stats"])
    assert result.exit_code == 2
    assert "Name the database: --dsn, LOCKSTEP_DSN or --data-dir" in result.stderr


@pytest.mark.usefixtures("spark")
def test_database_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    dsn = f"postgresql:///x?host={tmp_path}"
    result = CliRunner().invoke(cli, ["job", "stats", "--dsn", dsn])
    assert result.exit_code == 5
    assert result.stderr.endswith("(unavailable)\n")


@soak_only
async def test_follow_is_stopped_by_ctrl_c(database_dsn: str, tmp_path: Path) -> None:
    """In a process of its own, with a Spark of its own, which is gone when it has ended."""
    store = PostgresStore(database_dsn)
    await push_n(store, "q", 3)
    await store.close()
    process, out, errors = interrupted_follow(database_dsn, tmp_path)
    assert process.returncode == 0, errors
    await until(lambda: not is_alive(process.pid))
    [done] = json.loads(out)
    assert (done["queue"], done["messages"]) == ("q", 3)
    with psycopg.connect(database_dsn) as connection:
        row = connection.execute(
            "select count(*), sum(messages) from lockstep.archive_batch where committed_at is not null"
        )
        assert row.fetchone() == (1, 3)


def is_alive(group: int) -> bool:
    """Whether any process of the group is."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def interrupted_follow(dsn: str, location: Path) -> tuple[subprocess.Popen[str], str, str]:
    """What is said by a run that is interrupted when it has archived something."""
    command = ["job", "archive", "q", "--to", str(location), "--follow", "--interval", "0.2", "--master", "local[1]"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lockstep", *command, "--dsn", dsn, "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    with process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("q: 3 messages"):
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.stdout is not None
        out = process.stdout.read()
    return process, out, "".join(lines)
