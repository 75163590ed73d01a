"""`lockstep serve`: its settings, and a real server with a PostgreSQL of its own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import psycopg
import pytest
from command_lines import PROGRAM, CommandLine, run_process

from lockstep.cli.commands.serve import greeting
from lockstep.config import Config
from support.databases import scratch_directory

run = CommandLine()


# --- Settings -----------------------------------------------------------------------------------------------


def test_flag_wins_over_variable_over_file_over_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lockstep.toml"
    file.write_text('port = 1000\nhost = "0.0.0.0"\nworkers = 3\n')
    monkeypatch.setenv("LOCKSTEP_PORT", "2000")
    monkeypatch.setenv("LOCKSTEP_HOST", "::1")
    shown = run("serve", "--config", str(file), "--port", "3000", "--no-batching", "--print-config").stdout
    settings = tomllib.loads(shown)
    assert (settings["port"], settings["host"], settings["workers"]) == (3000, "::1", 3)
    assert settings["batching"] is False
    lines = shown.splitlines()
    assert "port = 3000  # --port" in lines
    assert 'host = "::1"  # LOCKSTEP_HOST' in lines
    assert f"workers = 3  # workers in {file}" in lines
    assert "batching = false  # --batching" in lines
    assert "pop_precheck = true  # default" in lines
    assert "# dsn: not set" in lines


def test_printed_settings_are_a_file_that_is_taken(tmp_path: Path) -> None:
    shown = run("serve", "--print-config", "--log-level", "debug").stdout
    file = tmp_path / "lockstep.toml"
    file.write_text(shown)
    again = run("serve", "--print-config", "--config", str(file)).stdout
    assert tomllib.loads(again) == tomllib.loads(shown)
    assert set(tomllib.loads(shown)) <= set(Config.__struct_fields__)


def test_printed_settings_are_taken_with_the_key_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_ENCRYPTION_KEY", "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U=")
    shown = run("serve", "--print-config").stdout
    assert "# encryption_key: hidden  # LOCKSTEP_ENCRYPTION_KEY" in shown.splitlines()
    (tmp_path / "lockstep.toml").write_text(shown)
    again = run("serve", "--print-config", "--config", str(tmp_path / "lockstep.toml")).stdout
    assert tomllib.loads(again) == tomllib.loads(shown)


def test_printed_settings_have_no_secrets(tmp_path: Path) -> None:
    key = "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2U="
    (tmp_path / "key").write_text(key)
    (tmp_path / "dsn").write_text("postgresql://u:sesame@h/d\n")
    options = ["--dsn-file", str(tmp_path / "dsn"), "--encryption-key-file", str(tmp_path / "key")]
    shown = run("serve", *options, "--print-config").stdout
    assert "sesame" not in shown
    assert key not in shown
    assert 'dsn = "postgresql://u:***@h/d"  # --dsn' in shown.splitlines()
    assert "# encryption_key: hidden  # --encryption-key-file" in shown.splitlines()


def test_data_dir_on_the_command_line_wins_over_a_dsn_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_DSN", "postgresql://h/d")
    assert "# dsn: not set" in run("serve", "--data-dir", "here", "--print-config").stdout.splitlines()


def test_every_setting_of_a_server_is_a_flag() -> None:
    shown = run("serve", "--help").stdout
    of_clients = {"token", "ca_file"}
    names = [name for name in Config.__struct_fields__ if not name.startswith("client_") and name not in of_clients]
    assert [name for name in names if f"--{name.replace('_', '-')}" not in shown] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--port", "high"], "port is not valid: it must be a whole number from 0 to 65535"),
        (["--port", "70000"], "port is not valid"),
        (["--log-level", "loud"], "log_level is not valid: it must be one of debug, error, info, warning"),
        (["--keep-alive-seconds", "75s"], "keep_alive_seconds is not valid: it must be a number from 0.001 to 86400"),
        (["--load-push-threshold", "0"], "it must be a number above 0 and up to 1000"),
        (["--encryption-key-file", __file__], "encryption_key_file is not valid"),
        (["--encryption-key-file", "nowhere"], "'nowhere', cannot be read"),
        (["--config", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["--prot", "1"], "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_setting_is_a_usage_error(options: list[str], said: str) -> None:
    assert said in run("serve", *options, code=2).stderr


def test_unknown_name_in_the_file_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "lockstep.toml"
    file.write_text("prot = 1\n")
    assert "prot" in run("serve", "--config", str(file), code=2).stderr


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("memory://", "Its data is in memory, and gone when it ends."),
        ("postgresql://u:sesame@h/d", "Its data is in postgresql://u:***@h/d"),
    ],
)
def test_greeting_says_where_the_data_is(dsn: str, said: str) -> None:
    assert said in greeting(Config(dsn=dsn), "http://localhost:6632").splitlines()


# --- Starting -----------------------------------------------------------------------------------------------


def test_port_that_is_taken_is_a_failed_start(shared_dsn: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_process("serve", "--dsn", shared_dsn, "--port", str(port))
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in ended.stderr


def test_store_in_memory_has_one_worker() -> None:
    ended = run_process("serve", "--dsn", "memory://", "--workers", "2", "--port", "0")
    assert ended.returncode == 1
    assert "workers must be 1, not 2 (invalid_option)" in ended.stderr


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, shared_dsn: str) -> None:
    monkeypatch.delitem(sys.modules, "lockstep.server.serving", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'lockstep[server]'" in run("serve", "--dsn", shared_dsn, code=1).stderr


def test_database_that_refuses_us_is_a_failed_start(shared_dsn: str) -> None:
    user, _, host = shared_dsn.rpartition("@")
    dsn = f"{user}:sesame@{host.replace('/', '/no_such_', 1)}"
    ended = run_process("serve", "--port", "0", env={**os.environ, "LOCKSTEP_DSN": dsn})
    assert ended.returncode == 1
    assert "(unavailable)" in ended.stderr
    assert "no_such_" in ended.stderr
    assert "sesame" not in ended.stdout + ended.stderr


def test_database_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("postgresql://u:sesame@127.0.0.1:1/d")
    spool = str(tmp_path / "spool")
    options = ["--dsn-file", str(tmp_path / "dsn"), "--spool-dir", spool, "--workers", "2"]
    with serving(*options) as (process, said):
        url = re.search(r"listens on (http://localhost:\d+)", "\n".join(said))[1]  # type: ignore[index]
        with urlopen(f"{url}/health", timeout=30) as answer:
            assert b"disconnected" in answer.read()
        body = b'{"items": [{"queue": "q", "payload": 1}]}'
        with urlopen(Request(f"{url}/api/v1/push", data=body, method="POST"), timeout=30) as answer:
            assert b"buffered" in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        logged = process.stderr.read()
        assert process.wait(timeout=60) == 0
    assert "database_away" in logged
    assert "sesame" not in logged


@contextmanager
def serving(*options: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A server, and what it says when it is up."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_DSN")}
    process = subprocess.Popen(
        [*PROGRAM, "serve", "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    assert process.stdout is not None
    try:
        said = []
        while not (said and said[-1].startswith("Or see ")) and (line := process.stdout.readline()):
            said.append(line.rstrip())
        yield process, said
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=60)


def test_server_with_a_postgres_of_its_own() -> None:
    """The way of a new user: start, do what the greeting says, look into the database, Ctrl-C."""
    name = "with 'quotes"
    with scratch_directory() as directory, serving("--data-dir", str(directory / name)) as (process, said):
        text = "\n".join(said)
        url = re.search(r"listens on (http://localhost:\d+)", text)[1]  # type: ignore[index]
        assert f"Its data is in {directory / name}" in text
        _do([line.strip() for line in said if line.startswith("  ")], url)
        look = next(line for line in said if line.startswith("To look into it: psql "))
        assert _typed(look.removeprefix("To look into it: psql ").strip('"')[2:-1]).startswith("postgresql://")
        dsn = run("dsn", "--data-dir", str(directory / name)).stdout.strip()
        with psycopg.connect(dsn) as connection:
            assert connection.execute("select queue from lockstep.messages").fetchall() == [("hello",)]
        # A command on the directory goes to the server's database, too.
        assert run.json("queue", "show", "hello", "--data-dir", str(directory / name))["messages"] == 1
        findings = run.json("doctor", "--data-dir", str(directory / name))
        assert {finding["level"] for finding in findings if finding["subject"] not in ("java", "disk")} == {"ok"}
        assert run_process("serve", "--port", "0", "--data-dir", str(directory / name)).returncode == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
        run("dsn", "--data-dir", str(directory / name), code=5)


def _do(hints: list[str], url: str) -> None:
    """What the greeting tells the user to do."""
    push, pop = map(shlex.split, hints[:2])
    body = push[push.index("-d") + 1].encode()
    with urlopen(Request(push[3], data=body, method="POST"), timeout=30) as answer:
        assert answer.status == 201
    with urlopen(pop[1], timeout=30) as answer:
        assert b'"hi"' in answer.read()
    assert hints[2].endswith(f"lockstep queues --url {url}")
    assert "hello" in _typed(hints[2])


def _typed(line: str) -> str:
    """What a shell makes of it that knows nothing of a virtual environment."""
    environ = os.environ | {"PATH": "/usr/bin:/bin"}
    return subprocess.run(line, shell=True, capture_output=True, text=True, timeout=60, check=True, env=environ).stdout


def test_server_says_where_its_data_is_without_the_password(shared_dsn: str, tmp_path: Path) -> None:
    user, _, host = shared_dsn.rpartition("@")
    with_password = user if user.count(":") == 2 else f"{user}:sesame"
    (tmp_path / "dsn").write_text(f"{with_password}@{host}")
    with serving("--dsn-file", str(tmp_path / "dsn")) as (process, said):
        assert with_password.rpartition(":")[2] not in "\n".join(said)
        assert any(line.startswith("Its data is in postgresql://") for line in said)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0


def test_directory_without_a_server_is_started_for_a_command() -> None:
    with scratch_directory() as directory:
        data = str(directory / "data")
        run("push", "q", "1", "--data-dir", data)
        assert [message["payload"] for message in run.json("pop", "q", "--ack", "--data-dir", data)] == [1]
        run("dsn", "--data-dir", data, code=5)


@pytest.mark.parametrize(
    "command", [("queues",), ("pop", "q"), ("verify",), ("migrate", "--sql"), ("pipeline", "status")]
)
def test_mistyped_directory_is_told_and_not_made(tmp_path: Path, command: tuple[str, ...]) -> None:
    mistyped = tmp_path / "mistyped"
    assert f"There is no database in {mistyped}" in run(*command, "--data-dir", str(mistyped), code=2).stderr
    assert not mistyped.exists()
