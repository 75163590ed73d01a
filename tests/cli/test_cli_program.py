"""The program as a whole: help, version, completion, documentation, exit codes."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest
from click.testing import CliRunner
from command_lines import PROGRAM, CommandLine, run_process

import lockstep
from lockstep import errors
from lockstep.__main__ import main
from lockstep.cli.main import cli
from lockstep.exit_codes import EXIT_CODES, exit_code

ROOT = Path(__file__).parents[2]
ISSUED = (
    "serve push pop tail queues queue partitions groups seek lag dlq messages trace leases verify migrate doctor dsn"
    " bench"
)


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, command in group.commands.items():
        yield (*path, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


COMMANDS = list(_commands(cli))


def test_all_commands_are_there() -> None:
    assert set(ISSUED.split()) <= set(cli.commands)
    assert {path[1] for path in COMMANDS if path[0] == "queue" and len(path) == 2} == {
        "show",
        "configure",
        "delete",
        "clear",
        "update",
        "stats",
        "redrive",
    }
    assert {path[1] for path in COMMANDS if path[0] == "dlq" and len(path) == 2} == {"ls", "show", "redrive", "purge"}


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_command_has_help_and_is_in_the_reference_and_the_guide(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(cli, [*path, "--help"])
    assert shown.exit_code == 0
    assert shown.output.startswith(f"Usage: cli {' '.join(path)} ")
    reference = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    assert f"\n## lockstep {' '.join(path)}\n" in reference
    guide = (ROOT / "docs/guides/command-line.md").read_text(encoding="utf-8")
    assert f"lockstep {' '.join(path)}" in guide


def test_options_have_help() -> None:
    def check(command: click.Command) -> Iterator[str]:
        context = click.Context(command)
        for param in command.get_params(context):
            if isinstance(param, click.Option) and not param.help:
                yield f"{command.name} {param.name}"
        if isinstance(command, click.Group):
            for child in command.commands.values():
                yield from check(child)

    assert list(check(cli)) == []


def test_version() -> None:
    shown = run_process("--version")
    assert (shown.returncode, shown.stdout) == (0, f"lockstep {lockstep.__version__}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed(shell: str) -> None:
    shown = CommandLine()("completion", shell)
    assert "_LOCKSTEP_COMPLETE" in shown.stdout
    assert "lockstep" in shown.stdout


def test_completion_completes() -> None:
    environ = {"_LOCKSTEP_COMPLETE": "bash_complete", "COMP_WORDS": "lockstep que", "COMP_CWORD": "1"}
    shown = run_process(env=environ)
    assert shown.stdout.split() == ["plain,queues", "plain,queue"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("lockstep serve --log-level w", ["plain,warning"]),
        ("lockstep serve --log-level ", ["plain,debug", "plain,info", "plain,warning", "plain,error"]),
        ("lockstep dsn --data-dir /sr", ["dir,/sr"]),
    ],
)
def test_completion_knows_the_values_of_options(words: str, offered: list[str]) -> None:
    environ = {"_LOCKSTEP_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    assert run_process(env=os.environ | environ).stdout.split() == offered


def test_completion_of_zsh_loads_what_it_needs() -> None:
    first, second, *_ = CommandLine()("completion", "zsh").stdout.splitlines()
    assert first == "#compdef lockstep"
    assert "compinit" in second
    if shutil.which("zsh"):
        ended = subprocess.run(
            [
                "zsh",
                "-f",
                "-c",
                'eval "$1" && print $_comps[lockstep]',
                "zsh",
                CommandLine()("completion", "zsh").stdout,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.stdout, ended.stderr) == ("_lockstep_completion\n", "")


# --- Exit codes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidName, 2),
        (errors.QueueNotFound, 3),
        (errors.LeaseLost, 4),
        (errors.QueueFull, 4),
        (errors.Forbidden, 4),
        (errors.DataDirectoryInUse, 4),
        (errors.Unavailable, 5),
        (errors.Overloaded, 5),
        (errors.CorruptSegment, 1),
        (errors.ServerStartFailed, 1),
    ],
)
def test_error_has_its_exit_code(error: type[errors.LockstepError], code: int) -> None:
    assert exit_code(error()) == code
    assert code in EXIT_CODES


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["push"], 2, "Missing argument 'QUEUE'"),
        (["pop"], 2, "Name a QUEUE"),
        (["seek", "q", "g", "--to", "never"], 2, "'never' is no time"),
        (["seek", "q", "g", "--to", "seq:x"], 2, "seq:17"),
        (["push", "q", "1", "--header", "novalue"], 2, "name=value"),
        (["push", "q", "1", "--key", "k"], 2, "--key needs --at"),
        (["push", "q", "not json"], 2, "--text pushes it as a string"),
        (["queues", "--url", "http://127.0.0.1:1", "--dsn", "postgresql://x"], 2, "exclude each other"),
        (["push", "q", "[" * 100_000], 2, "(invalid_payload)"),
        (["queues", "--url", "ftp://host"], 2, "(invalid_request)"),
        *[(["tail", "q", "--interval", value], 2, "'--interval'") for value in ("nan", "inf")],
        *[(["leases", "--expiring-within", value], 2, "'--expiring-within'") for value in ("nan", "inf", "1e300")],
        *[(["bench", "--seconds", value], 2, "'--seconds'") for value in ("nan", "inf")],
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_bad_input_is_a_clear_error(arguments: list[str], code: int, said: str) -> None:
    assert said in CommandLine()(*arguments, code=code).stderr


def test_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_CLIENT_RETRY_ATTEMPTS_MAX", "1")
    monkeypatch.setenv("LOCKSTEP_URL", "http://127.0.0.1:1")
    said = CommandLine()("queues", code=5).stderr
    assert "`lockstep serve` starts one" in said
    assert said.endswith("(unavailable)\n")


@pytest.mark.parametrize(
    "command", ["verify", "verify --repair", "queue clear q -y", "queue delete q -y", "dlq purge -y"]
)
@pytest.mark.parametrize(("limit", "settings"), [("", {"client_timeout_seconds": 86_400.0}), ("5", {})])
def test_long_work_is_waited_for(
    command: str, limit: str, settings: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def connect(_: str, **settings: float) -> None:
        given.append(settings)
        raise errors.Unavailable

    monkeypatch.setenv("LOCKSTEP_CLIENT_TIMEOUT_SECONDS", limit)
    monkeypatch.setattr("lockstep.connecting.connect", connect)
    CommandLine()(*command.split(), code=5)
    assert given == [settings]


def test_unknown_setting_in_the_environment_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_PROT", "1")
    assert "LOCKSTEP_PROT" in CommandLine()("serve", "--print-config", code=2).stderr


def test_shared_options_stand_before_or_after_the_command(shared_dsn: str, queue: str) -> None:
    run = CommandLine()
    run("push", queue, "1", "--dsn", shared_dsn)
    before = run("--dsn", shared_dsn, "-o", "ndjson", "partitions", queue)
    after = run("partitions", queue, "--dsn", shared_dsn, "-o", "ndjson")
    assert before.stdout == after.stdout
    assert before.stdout.startswith("{")


# --- Ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_quietly(direct: CommandLine, queue: str, number: signal.Signals) -> None:
    direct("push", queue, "1")
    process = subprocess.Popen(
        [*PROGRAM, *direct.target, "tail", queue], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().endswith("1\n")
    process.send_signal(number)
    rest, said = process.communicate(timeout=30)
    assert (process.returncode, rest, said) == (130, "", "")


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("output", ["json", "ndjson"])
def test_reader_that_goes_away_ends_it_quietly(direct: CommandLine, queue: str, output: str, unbuffered: str) -> None:
    direct("push", queue, "-", stdin="".join(f'"{"x" * 1000}"\n' for _ in range(500)))
    process = subprocess.Popen(
        [*PROGRAM, *direct.target, "messages", queue, "--limit", "500", "-o", output],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_output_that_cannot_be_written_is_an_error(direct: CommandLine, queue: str) -> None:
    direct("push", queue, "1")
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(
            [*PROGRAM, *direct.target, "pop", queue, "--ack"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (1, b"Error: [Errno 28] No space left on device\n")
    [lag] = direct.json("lag", queue)
    assert lag["lag"] == 1  # what could not be printed is not acknowledged


@pytest.mark.parametrize("verb", [["messages"], ["lag", "--all"]], ids=" ".join)
def test_limit_may_be_larger_than_any_number_of_rows(lockstep: CommandLine, queue: str, verb: list[str]) -> None:
    lockstep("push", queue, "1")
    lockstep("pop", queue)
    assert len(lockstep.json(*verb, queue, "--limit", str(10**30))) == 1


@pytest.mark.parametrize(
    ("command", "said"), [("push {}", "Give a PAYLOAD"), ("push {} -", "Give a PAYLOAD"), ("queue delete {}", "--yes")]
)
def test_without_standard_input_nothing_is_read(direct: CommandLine, queue: str, command: str, said: str) -> None:
    direct("push", queue, "1")
    line = shlex.join([*PROGRAM, *direct.target, *command.format(queue).split()])
    ended = subprocess.run(["sh", "-c", f"{line} <&-"], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_standard_error_there_is_no_progress(direct: CommandLine, queue: str) -> None:
    line = shlex.join([*PROGRAM, *direct.target, "push", queue, "-"])
    ended = subprocess.run(
        ["sh", "-c", f"echo 1 | {line} 2>&-"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "1 message pushed\n")


def test_what_the_terminal_cannot_show_is_escaped(direct: CommandLine, queue: str) -> None:
    direct("push", queue, '"日本 ü"')
    shown = subprocess.run(
        [*PROGRAM, *direct.target, "tail", queue, "--no-follow"],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        timeout=60,
        check=False,
    )
    assert (shown.returncode, shown.stderr) == (0, b"")
    assert shown.stdout.endswith(b'"\\u65e5\\u672c \xfc"\n')


def test_interrupt_while_the_program_loads_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loading(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "lockstep.cli.main", Loading("lockstep.cli.main"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


def test_no_colour_without_a_terminal(direct: CommandLine, queue: str) -> None:
    direct("push", queue, "1")
    assert "\x1b" not in direct("partitions", queue).stdout
