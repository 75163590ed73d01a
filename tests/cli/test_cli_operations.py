"""migrate, doctor, bench, dsn."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
from click.testing import CliRunner
from command_lines import CommandLine

from lockstep.cli.checks.machine import check_data_dir, check_java, check_spool_dir
from lockstep.cli.commands.bench import BenchWork
from lockstep.cli.main import cli
from lockstep.storage.memory import MemoryStore
from lockstep.storage.postgres import sql
from lockstep.storage.postgres.migrate import migrate, schema_version
from support.databases import with_database
from support.serving import serving

run = CommandLine()


# --- migrate ------------------------------------------------------------------------------------------------


def test_migrate_says_what_it_did(empty_database_dsn: str) -> None:
    first = run.json("migrate", "--dsn", empty_database_dsn)
    assert first["applied"][0] == "0001_core"
    assert first["applied"][-1] == "procedures"
    assert run("migrate", "--dsn", empty_database_dsn).stdout == "the database is up to date; nothing was done\n"


def test_printed_sql_migrates(empty_database_dsn: str) -> None:
    script = run("migrate", "--sql").stdout
    assert script == run("migrate", "--sql", "--dsn", empty_database_dsn).stdout
    _execute(empty_database_dsn, script)
    assert run.json("migrate", "--dsn", empty_database_dsn)["applied"] == []
    # What was printed for a database that is up to date changes nothing.
    again = run("migrate", "--sql", "--dsn", empty_database_dsn).stdout
    assert "create table lockstep.queue " not in again
    _execute(empty_database_dsn, again)
    assert run.json("migrate", "--dsn", empty_database_dsn)["applied"] == []


def _execute(dsn: str, script: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(script.encode())


def test_printed_sql_makes_the_same_version(empty_database_dsn: str) -> None:
    _execute(empty_database_dsn, run("migrate", "--sql").stdout)

    async def look() -> tuple[int, list[str]]:
        connection: asyncpg.Connection[Any] = await asyncpg.connect(empty_database_dsn)
        try:
            return await schema_version(connection), await migrate(connection)
        finally:
            await connection.close()

    assert asyncio.run(look()) == (len(sql.migrations()), [])


def test_migrate_needs_a_database() -> None:
    assert "--dsn" in run("migrate", code=2).stderr


def test_migrate_refuses_a_newer_schema(database_dsn: str) -> None:
    with psycopg.connect(database_dsn) as connection:
        connection.execute("insert into lockstep.migration (version, name) values (9999, 'future')")
    assert "(schema_too_new)" in run("migrate", "--dsn", database_dsn, code=5).stderr
    assert "(schema_too_new)" in run("migrate", "--sql", "--dsn", database_dsn, code=5).stderr


# --- doctor -------------------------------------------------------------------------------------------------


def findings(*arguments: str, code: int) -> dict[str, dict[str, Any]]:
    return {finding["subject"]: finding for finding in run.json("doctor", *arguments, code=code)}


def without_fsync(dsn: str) -> bool:
    """As a database of the tests usually is, which is what the doctor finds wrong with it."""
    with psycopg.connect(dsn) as connection:
        return connection.execute("show fsync").fetchone() == ("off",)


def test_doctor_looks_at_the_database(database_dsn: str) -> None:
    unsafe = without_fsync(database_dsn)
    found = findings("--dsn", database_dsn, code=1 if unsafe else 0)
    levels = {subject: finding["level"] for subject, finding in found.items()}
    assert levels["python"] == "ok"
    assert levels["database"] == levels["version"] == levels["encoding"] == levels["writable"] == "ok"
    assert levels["schema"] == levels["connections"] == levels["clock"] == "ok"
    if unsafe:
        assert levels["durability"] == "fail"
        assert "fsync = on" in found["durability"]["advice"]
    else:
        assert levels["durability"] == "ok"


def test_doctor_looks_at_the_disk_on_which_pushes_are_buffered(
    database_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_SPOOL_DIR", str(tmp_path / "spool"))
    result = run("doctor", "--dsn", database_dsn, code=1 if without_fsync(database_dsn) else 0)
    assert f"ok    spool directory     {tmp_path / 'spool'}\n" in result.stdout
    assert f"GiB free on the disk of {tmp_path}" in result.stdout
    (tmp_path / "file").touch()
    [finding, _] = check_spool_dir(tmp_path / "file" / "spool")
    assert (finding.level, finding.text) == ("warn", f"{tmp_path / 'file'} is not writable")


def test_doctor_finds_what_is_wrong(empty_database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_POOL_CONNECTIONS_MAX", "5000")
    with psycopg.connect(empty_database_dsn) as connection:
        name = connection.info.dbname
        connection.execute(f'alter database "{name}" set default_transaction_read_only = on'.encode())
        connection.execute(f'alter database "{name}" set idle_session_timeout = 5000'.encode())
    found = findings("--dsn", empty_database_dsn, code=1)
    assert found["schema"]["level"] == "warn"
    assert "lockstep migrate" in found["schema"]["advice"]
    assert found["connections"]["level"] == "fail"
    assert found["writable"]["level"] == "fail"
    assert found["time-outs"]["level"] == "warn"


def test_doctor_asks_the_server_of_the_variable(empty_database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DSN", empty_database_dsn)
    with serving(MemoryStore()) as url:
        monkeypatch.setenv("LOCKSTEP_URL", url)
        assert _server_line() == f"answers at {url}"
        monkeypatch.setenv("LOCKSTEP_URL", "http://localhost:1")
        assert "cannot be reached" in str(_server_line())
        assert _server_line("--url", url) == f"answers at {url}"
        # As for every command, an option that names a database wins over the variable.
        assert _server_line("--dsn", empty_database_dsn) is None


def _server_line(*arguments: str) -> str | None:
    """What doctor says of the server, whatever else it finds."""
    result = CliRunner().invoke(cli, ["doctor", "-o", "json", *arguments])
    found = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    return found["server"]["text"] if "server" in found else None


def test_doctor_in_a_database_of_another_encoding(empty_database_dsn: str) -> None:
    with psycopg.connect(empty_database_dsn, autocommit=True) as connection:
        name = f"{connection.info.dbname}-ascii"
        connection.execute(f"create database \"{name}\" encoding 'SQL_ASCII' locale 'C' template template0".encode())
        try:
            found = findings("--dsn", with_database(empty_database_dsn, name), code=1)
        finally:
            connection.execute(f'drop database "{name}"'.encode())
    assert (found["encoding"]["level"], found["encoding"]["text"]) == ("fail", "SQL_ASCII")
    assert found["connections"]["level"] == "ok"


def test_doctor_as_a_role_without_permission(database_dsn: str) -> None:
    nobody = f"{database_dsn}{'&' if '?' in database_dsn else '?'}options=-c%20role%3Dpg_monitor"
    finding = findings("--dsn", nobody, code=1)["schema"]
    assert (finding["level"], finding["text"]) == ("fail", "permission denied for schema lockstep")
    assert "role" in finding["advice"]


def test_doctor_on_a_broken_dsn_keeps_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DSN", "postgresql://u:sesame@127.0.0.1:1/db")
    result = run("doctor", code=1)
    assert "fail  database" in result.stdout
    assert "postgresql://u:***@127.0.0.1:1/db" in result.stdout
    assert "sesame" not in result.stdout + result.stderr
    assert findings("--dsn", "mysql://host/db", code=1)["database"]["level"] == "fail"


@pytest.mark.parametrize(
    "address",
    ["u:sesame@[::1/db", "u:sesame%zz@127.0.0.1:1/db", "u:ses@me@127.0.0.1:1/db", "u:sesame/@127.0.0.1:1/db"],
)
def test_doctor_does_not_quote_a_password_that_breaks_the_dsn(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DSN", f"postgresql://{address}")
    result = run("doctor", code=1)
    assert "is not an address that PostgreSQL understands" in result.stdout
    assert "ses" not in result.stdout + result.stderr
    assert "me@" not in result.stdout + result.stderr


def test_doctor_asks_a_server(shared_url: str, shared_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_CLIENT_RETRY_ATTEMPTS_MAX", "1")
    monkeypatch.setenv("LOCKSTEP_DSN", shared_dsn)
    assert findings("--url", shared_url, code=1 if without_fsync(shared_dsn) else 0)["server"]["level"] == "ok"
    assert findings("--url", "http://127.0.0.1:1", code=1)["server"]["level"] == "fail"


def test_data_directory_is_checked(tmp_path: Path) -> None:
    free, space = check_data_dir(str(tmp_path / "a/b"))
    assert (free.level, space.subject) == ("ok", "disk")
    (tmp_path / "file").write_text("")
    [finding] = check_data_dir(str(tmp_path / "file/data"))
    assert finding.level == "fail"


def test_doctor_on_a_directory_that_may_not_be_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = os.stat

    def refusing(path: Any, **options: Any) -> os.stat_result:
        if str(path) == str(tmp_path / "closed/data"):
            raise PermissionError(13, "Permission denied")
        return stat(path, **options)

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(os, "stat", refusing)
    found, _ = check_data_dir(str(tmp_path / "closed/data"))
    assert found.text == f"{tmp_path / 'closed/data'}; the first start makes it"  # root may


@pytest.mark.parametrize(
    ("says", "level"),
    [('openjdk version "21.0.2" 2024', "ok"), ('java version "1.8.0_402"', "warn"), ("hello", "warn")],
)
def test_java_is_asked_for_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, level: str) -> None:
    java = tmp_path / "bin/java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert check_java().level == level
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert check_java().text == "not found"


# --- bench and dsn ------------------------------------------------------------------------------------------


def test_bench_moves_every_message_and_removes_its_queue(lockstep: CommandLine) -> None:
    options = ["--messages", "200", "--batch", "20", "--connections", "2", "--partitions", "4", "--seconds", "60"]
    pushed, popped = lockstep.json("bench", *options)
    assert (pushed["verb"], popped["verb"]) == ("push", "pop and ack")
    assert pushed["messages"] >= 200
    assert popped["messages"] == pushed["messages"]
    assert pushed["messages_per_second"] > 0
    assert 0 < popped["p50_ms"] <= popped["p99_ms"]
    names = [record["name"] for record in lockstep.json("queues", "--limit", "5000")]
    assert not [name for name in names if name.startswith("lockstep-bench-")]


def test_dsn_where_no_server_runs(tmp_path: Path) -> None:
    assert "no server runs" in run("dsn", "--data-dir", str(tmp_path), code=5).stderr


def test_bench_does_not_count_the_wait_of_a_pop_that_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, *[0.0, 0.0, 2.0], *[2.0, 2.0, 9.0], 9.0])
    monkeypatch.setattr("lockstep.cli.commands.bench.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    moved = iter([100, 0])
    work = BenchWork(lambda: next(moved), messages=200, seconds=5.0, progress=lambda _: None)
    work.loop()
    measured = work.measured("pop and ack")
    assert (measured.messages, measured.calls, measured.seconds) == (100, 1, 2.0)
    assert measured.messages_per_second == 50
