"""`lockstep key` and `lockstep audit`, and how commands say who they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from command_lines import CommandLine

from lockstep.cli.commands.serve import greeting
from lockstep.config import Config
from support.databases import Databases
from support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def guarded(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that asks."""
    dsn = databases.clone()
    with running_server(dsn, tmp_path_factory.mktemp("guarded"), auth="required") as server:
        yield server
    databases.drop(dsn)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    for name in ("LOCKSTEP_TOKEN", "LOCKSTEP_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    return CommandLine()


def _key(run: CommandLine, server: ServerProcess, directory: Path, *options: str) -> str:
    """The file with a new key."""
    made = run.json("key", "create", "ann", *options, "--dsn", server.dsn)
    file = directory / "token"
    file.write_text(f"{made['token']}\n")
    return str(file)


def test_first_key_is_made_in_the_database_and_opens_the_server(
    run: CommandLine, guarded: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "unauthorized" in run("queues", "--url", guarded.url, code=4).output
    file = _key(run, guarded, tmp_path, "--role", "admin")
    run("queue", "configure", "by-key", "--url", guarded.url, "--token-file", file)
    monkeypatch.setenv("LOCKSTEP_TOKEN_FILE", file)
    assert "by-key" in run("queues", "--url", guarded.url).output
    monkeypatch.delenv("LOCKSTEP_TOKEN_FILE")
    monkeypatch.setenv("LOCKSTEP_TOKEN", Path(file).read_text().strip())
    assert "by-key" in run("queues", "--url", guarded.url).output


def test_key_is_printed_alone_so_that_a_file_can_take_it(run: CommandLine, guarded: ServerProcess) -> None:
    made = run("key", "create", "bob", "--rule", "push,pop q", "--expires", "90d", "--dsn", guarded.dsn)
    assert made.stdout.startswith("lsk_")
    assert len(made.stdout.splitlines()) == 1
    assert "only time" in made.stderr


def test_key_without_role_and_rules_is_refused(run: CommandLine, guarded: ServerProcess) -> None:
    assert "--role or --rule" in run("key", "create", "bob", "--dsn", guarded.dsn, code=2).output
    assert "no right" in run("key", "create", "bob", "--rule", "eat q", "--dsn", guarded.dsn, code=2).output


def test_key_is_listed_and_revoked_and_both_are_audited(
    run: CommandLine, guarded: ServerProcess, tmp_path: Path
) -> None:
    file = _key(run, guarded, tmp_path, "--role", "admin")
    on_server = CommandLine(("--url", guarded.url, "--token-file", file))
    made = on_server.json("key", "create", "carl", "--role", "read-only")
    assert made["key"]["id"] in on_server("key", "ls").output
    on_server("key", "revoke", made["key"]["id"], "--yes")
    assert "api_key_not_found" in on_server("key", "revoke", made["key"]["id"], "--yes", code=3).output
    acts = [(entry["who"], entry["act"], entry["outcome"]) for entry in on_server.ndjson("audit", "--who", "ann")]
    assert ("ann", "create_key", "done") in acts
    assert ("ann", "revoke_key", "done") in acts
    assert made["token"] not in on_server("audit").output


def test_token_is_refused_where_there_is_no_server(run: CommandLine, guarded: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    said = run("queues", "--dsn", guarded.dsn, "--token-file", str(tmp_path / "token"), code=2).output
    assert "--url" in said


def test_first_key_is_made_though_the_file_for_it_is_empty(
    run: CommandLine, guarded: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell empties the file before `lockstep key create … > $LOCKSTEP_TOKEN_FILE` runs."""
    file = tmp_path / "token"
    file.write_text("")
    monkeypatch.setenv("LOCKSTEP_TOKEN_FILE", str(file))
    made = run("key", "create", "dora", "--role", "read-only", "--dsn", guarded.dsn)
    assert "is empty" in run("queues", "--url", guarded.url, code=2).stderr
    file.write_text(made.stdout)
    run("queues", "--url", guarded.url)


def test_doctor_asks_a_server_with_the_given_token(run: CommandLine, guarded: ServerProcess, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    found = run.json("doctor", "--url", guarded.url, "--token-file", missing, code=1)
    [server] = [finding for finding in found if finding["subject"] == "server"]
    assert missing in server["text"]


def test_doctor_asks_a_server_with_the_given_authorities(run: CommandLine, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    found = run.json("doctor", "--url", "https://localhost:1", "--ca-file", missing, code=1)
    [server] = [finding for finding in found if finding["subject"] == "server"]
    assert "ca_file" in server["text"]


def test_server_that_asks_says_how_to_make_a_first_key() -> None:
    config = Config(auth="required", data_dir="/data dir")
    assert "lockstep key create NAME --role admin --data-dir '/data dir'" in greeting(config, "http://localhost:6632")
    assert "curl" not in greeting(config, "http://localhost:6632")
    assert "--dsn-file FILE" in greeting(Config(auth="required", dsn="postgresql:///x"), "http://localhost:6632")


def test_rules_of_roles_are_given_listed_and_taken(run: CommandLine, databases: Databases) -> None:
    dsn = databases.clone()
    role = f"app_{uuid4().hex[:12]}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"create role {role}".encode())
        try:
            assert run.json("grant", "push,pop", "orders.*", "to", role, "--dsn", dsn)["granted"] == ["push", "pop"]
            assert "already" in run("grant", "pop", "orders.*", "to", role, "--dsn", dsn).stdout
            listed = run.json("grants", "--role", role, "--dsn", dsn)
            assert [(one["right"], one["pattern"]) for one in listed] == [("pop", "orders.*"), ("push", "orders.*")]
            assert run.json("revoke", "push", "orders.*", "from", role, "--dsn", dsn)["revoked"] == ["push"]
            assert run.json("revoke", "push", "orders.*", "from", role, "--dsn", dsn)["revoked"] == []
            assert {one["role"] for one in run.json("grants", "--dsn", dsn)} >= {role, "lockstep_producer"}
            as_role = f"{dsn}{'&' if '?' in dsn else '?'}options=-c%20role%3D{role}"
            assert "permission denied" in run("grant", "pop", "*", "to", role, "--dsn", as_role, code=5).stderr
        finally:
            connection.execute(f"drop owned by {role}; drop role {role}".encode())
    databases.drop(dsn)


@pytest.mark.parametrize(
    "arguments",
    [
        ("grant", "push", "*", "to", "no_such_role"),
        ("grant", "fly", "*", "to", "lockstep_producer"),
        ("grant", "push", "a b", "to", "lockstep_producer"),
    ],
)
def test_rules_that_are_not_valid_are_refused(run: CommandLine, database_dsn: str, arguments: tuple[str, ...]) -> None:
    assert "invalid_request" in run(*arguments, "--dsn", database_dsn, code=2).output
