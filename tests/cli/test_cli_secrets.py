"""Secrets are in no output of any command, and refused on the command line."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from command_lines import CommandLine, run_process

from lockstep.cli.main import cli
from lockstep.config import SECRETS

run = CommandLine()

PASSWORD = "open-sesame"
KEY = b64encode(b"not for any eyes, thirty-two of!").decode()
NOWHERE = f"postgresql://ann:{PASSWORD}@127.0.0.1:1/db"


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


COMMANDS = [path for path, command in _commands(cli) if not isinstance(command, click.Group)]


# --- Refused on the command line --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SECRETS)
def test_secret_on_the_command_line_is_refused_with_a_hint(name: str) -> None:
    flag = name.replace("_", "-")
    command = "queues" if name == "token" else "serve"
    said = run(command, f"--{flag}", KEY, code=2).output
    said = " ".join(said.split())
    assert f"--{flag} is refused: every user of this machine can read command lines" in said
    assert f"Use --{flag}-file, LOCKSTEP_{name.upper()}_FILE or LOCKSTEP_{name.upper()}." in said
    assert KEY not in said


@pytest.mark.parametrize(
    "dsn", [NOWHERE, f"host=127.0.0.1 password={PASSWORD}", f"postgresql://h/d?password={PASSWORD}"]
)
def test_password_on_the_command_line_is_refused_with_a_hint(dsn: str) -> None:
    said = " ".join(run("queues", "--dsn", dsn, code=2).output.split())
    assert "--dsn with a password is refused" in said
    assert "--dsn-file, LOCKSTEP_DSN_FILE or LOCKSTEP_DSN" in said
    assert PASSWORD not in said


def test_database_in_a_file_is_found(shared_dsn: str, tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text(f"{shared_dsn}\n")
    file = str(tmp_path / "dsn")
    run("queue", "configure", "in-a-file", "--dsn-file", file)
    assert "in-a-file" in run("queues", "--dsn", shared_dsn).output
    assert "named twice" in run("queues", "--dsn-file", file, "--dsn", "memory://", code=2).output


# --- In no output -----------------------------------------------------------------------------------------------


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Secrets in the environment, and a database that is away."""
    (tmp_path / "dsn").write_text(NOWHERE)
    monkeypatch.setenv("LOCKSTEP_DSN", NOWHERE)
    monkeypatch.setenv("LOCKSTEP_ENCRYPTION_KEY", KEY)
    monkeypatch.setenv("LOCKSTEP_CONNECT_ATTEMPTS_MAX", "1")
    monkeypatch.setenv("LOCKSTEP_CLIENT_RETRY_ATTEMPTS_MAX", "1")
    return tmp_path / "dsn"


def _arguments(path: tuple[str, ...]) -> list[str]:
    """Something for each argument and each option that the command insists on."""
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    needed = []
    for parameter in command.params:
        if parameter.required:
            kind = parameter.type
            value = kind.choices[0] if isinstance(kind, click.Choice) else "1"
            needed += [parameter.opts[0], str(value)] if isinstance(parameter, click.Option) else [str(value)]
    return needed


@pytest.mark.parametrize(
    "path", [path for path in COMMANDS if path[0] not in ("serve", "demo", "completion")], ids=" ".join
)
def test_no_command_tells_a_secret_when_the_database_is_away(
    path: tuple[str, ...], secrets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some commands write files
    arguments = [*path, *_arguments(path)]
    for target in ([], ["--dsn-file", str(secrets)]):
        result = CliRunner().invoke(cli, [*arguments, *target], input="")
        shown = result.output + result.stderr + repr(result.exception)
        assert PASSWORD not in shown
        assert KEY not in shown


def test_server_that_cannot_start_tells_no_secret(secrets: Path) -> None:
    environ = {**os.environ, "LOCKSTEP_LOG_LEVEL": "debug"}
    for options in (["--print-config"], ["--port", "70000"], ["--config", str(secrets)]):
        ended = run_process("serve", *options, env=environ)
        assert ended.stdout + ended.stderr
        assert PASSWORD not in ended.stdout + ended.stderr
        assert KEY not in ended.stdout + ended.stderr
