"""Queues, partitions, groups, dead letters, and checks of the stored data."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator

import psycopg
import pytest
from command_lines import PROGRAM, CommandLine

from lockstep import connect
from lockstep.cli.commands import lag
from support.databases import Databases
from support.options import all_others


def names(records: list[dict[str, str]]) -> list[str]:
    return [record["name"] for record in records]


# --- Queues -------------------------------------------------------------------------------------------------


def test_queue_is_configured_shown_and_listed(lockstep: CommandLine, queue: str) -> None:
    configured = lockstep.json(
        "queue", "configure", queue, "--lease-seconds", "60", "--on-exhausted", "stop", "--namespace", queue
    )
    assert configured["options"]["lease_seconds"] == 60
    changed = lockstep.json("queue", "configure", queue, "--retry-limit", "9", "--retention-enabled")
    assert (changed["options"]["lease_seconds"], changed["options"]["retry_limit"]) == (60, 9)
    assert changed["options"]["retention_enabled"] is True
    assert changed["namespace"] == queue
    shown = lockstep.json("queue", "show", queue)
    assert shown["options"] == changed["options"]
    assert "options.lease_seconds" in lockstep("queue", "show", queue).stdout
    assert names(lockstep.json("queues", "--namespace", queue)) == [queue]
    reset = lockstep.json("queue", "configure", queue, "--reset", "--retry-limit", "5")
    assert (reset["options"]["lease_seconds"], reset["options"]["retry_limit"]) == (300, 5)


def test_every_option_of_a_queue_is_set_and_shown(lockstep: CommandLine, queue: str) -> None:
    lockstep("queue", "configure", f"{queue}-dead")
    others = all_others(dead_queue=f"{queue}-dead") | {"encryption": False}  # the server has no key
    flags = []
    for name, value in others.items():
        flag = name.replace("_", "-")
        flags += [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
    assert lockstep.json("queue", "configure", queue, *flags)["options"] == others
    assert lockstep.json("queue", "show", queue)["options"] == others


def test_bad_option_changes_nothing(lockstep: CommandLine, queue: str) -> None:
    said = lockstep("queue", "configure", queue, "--lease-seconds", "0", code=2).stderr
    assert "lease_seconds must be between" in said
    assert "(queue_not_found)" in lockstep("queue", "show", queue, code=3).stderr


def test_listings_go_on_over_pages(direct: CommandLine, queue: str) -> None:
    lines = "\n".join(f'{{"payload": 1, "partition": "p{number:04}"}}' for number in range(1100))
    direct("push", queue, "-", "--envelope", stdin=lines)
    assert names(direct.ndjson("partitions", queue, "--limit", "2000")) == [f"p{n:04}" for n in range(1100)]
    assert len(direct.ndjson("partitions", queue, "--limit", "1050")) == 1050
    for group in ("g1", "g2"):
        direct("pop", queue, "-g", group)
    cursors = direct.ndjson("lag", queue, "--limit", "5000")
    assert len({(cursor["partition"], cursor["group"]) for cursor in cursors}) == len(cursors) == 2200
    half = cursors[1099]["partition_id"]
    later = direct.ndjson("lag", queue, "--limit", "5000", "--after", str(half))
    assert [cursor["partition_id"] for cursor in later] == [
        cursor["partition_id"] for cursor in cursors if cursor["partition_id"] > half
    ]


def test_lag_stops_after_some_places_and_says_where_it_goes_on(
    queue: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lag, "_PLACES_MAX", 2)
    monkeypatch.setattr(lag, "PAGE", 3)
    with connect("memory://") as client:
        for number in range(9):
            client.push(queue, {"n": number}, partition=f"p{number}")
        client.subscribe(queue, "g")
        first = list(lag._cursors(client, queue, "g", None, 0, lag._Walk()))
        assert f"--after {first[-1].partition_id}" in capsys.readouterr().err
        second = list(lag._cursors(client, queue, "g", None, first[-1].partition_id, lag._Walk()))
        assert [one.partition_id for one in first] < [one.partition_id for one in second]


def test_lag_that_has_not_looked_everywhere_does_not_say_that_no_group_is_behind(
    direct: CommandLine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct("push", queue, "-", "--envelope", stdin='{"payload": 1, "partition": "a"}\n{"payload": 2, "partition": "b"}')
    direct("pop", queue, "-g", "g", "-p", "a", "--ack")
    monkeypatch.setattr(lag, "_PLACES_MAX", 1)
    monkeypatch.setattr(lag, "PAGE", 2)
    said = direct("lag", queue, "--group", "g")
    assert "--after" in said.stderr
    assert "no group is behind" not in said.stderr
    assert "nothing is behind in these" in said.stderr


def test_partitions_and_queues_as_tables(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "1", "-p", "ä")
    head, row = lockstep("partitions", queue).stdout.splitlines()
    assert head.startswith("name  id")
    assert row.split()[0] == "ä"
    assert "(queue_not_found)" in lockstep("partitions", f"{queue}-not", code=3).stderr
    assert lockstep("queues", "--namespace", f"{queue}-not").stderr == "there is no queue\n"


def test_clear_and_delete_need_a_yes(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "-", stdin="1\n2\n")
    for verb in ("clear", "delete"):
        assert "say --yes" in lockstep("queue", verb, queue, code=2).stderr
    assert lockstep.json("queue", "show", queue)["messages"] == 2
    assert lockstep.json("queue", "clear", queue, "--yes")["removed"] == 2
    assert lockstep.json("queue", "delete", queue, "-y") == {"queue": queue, "deleted": True}
    lockstep("queue", "delete", queue, "-y", code=3)


def test_clear_of_one_partition_without_what_is_leased(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "-", "-p", "a", stdin="1\n2\n3\n")
    lockstep("push", queue, "4", "-p", "b")
    lockstep("pop", queue, "-p", "a")
    assert lockstep.json("queue", "clear", queue, "-p", "a", "--scope", "unleased", "-y")["removed"] == 2
    assert lockstep.json("queue", "show", queue)["messages"] == 2


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_question_on_a_terminal(direct: CommandLine, queue: str, answer: str, code: int) -> None:
    direct("push", queue, "1")
    ours, theirs = pty.openpty()
    try:
        command = [*PROGRAM, *direct.target, "queue", "delete", queue]
        process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        os.write(ours, f"{answer}\n".encode())
        _, said = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == code
    assert f"Delete the queue {queue} with 1 message?" in said
    direct("queue", "show", queue, code=3 if code == 0 else 0)


def test_long_work_is_seen_on_a_terminal_and_wiped_after_it(direct: CommandLine, queue: str) -> None:
    direct("push", queue, "1")
    ours, theirs = pty.openpty()
    try:
        command = [*PROGRAM, *direct.target, "verify", "--queue", queue, "-o", "json"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, timeout=60)
        said = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert "checking" in said
    assert said.endswith("\x1b[2K"), "the line is wiped"


# --- Groups -------------------------------------------------------------------------------------------------


def test_groups_lag_and_seek(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "-", "-p", "a", stdin="1\n2\n3\n")
    lockstep("push", queue, "4", "-p", "b")
    lockstep("pop", queue, "-g", "g", "-p", "a", "-n", "9", "--ack")
    [group] = lockstep.json("groups", "--queue", queue, "--group", "g")
    assert (group["name"], group["lag"], group["partitions_with_lag"]) == ("g", 1, 1)
    assert [(row["partition"], row["lag"]) for row in lockstep.json("lag", queue)] == [("b", 1)]
    assert len(lockstep.json("lag", queue, "--all", "-g", "g")) == 2
    for place, behind in (
        ("start", 4),
        ("end", 0),
        ("2020-01-01T00:00:00Z", 4),
        ("0s", 0),
        ("seq:2", 2),
        ("current", 2),
    ):
        said = lockstep.json("seek", queue, "g", "--to", place)
        assert said["partitions"] == 2
        assert lockstep.json("groups", "--queue", queue)[0]["lag"] == behind, place
    assert lockstep.json("seek", queue, "g", "--to", "start", "-p", "a")["partitions"] == 1
    lockstep("pop", queue, "-g", "jobs", "--mode", "shared")
    head, *lines = lockstep("groups", "--queue", queue).stdout.splitlines()
    assert head.split()[:3] == ["name", "queue", "mode"]
    assert [line.split()[::2][:2] for line in lines] == [["g", "ordered"], ["jobs", "shared"]]
    assert "(group_not_found)" in lockstep("seek", queue, "nobody", "--to", "end", code=3).stderr


def test_paused_group_gets_nothing_until_it_is_resumed(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "1")
    lockstep("pop", queue, "-g", "g", "-p", "none")
    assert lockstep.json("pause", queue, "g")["paused"] is True
    assert lockstep.json("groups", "--queue", queue)[0]["paused_at"] is not None
    assert lockstep.json("pop", queue, "-g", "g") == []
    assert lockstep.json("resume", queue, "g")["paused"] is False
    assert len(lockstep.json("pop", queue, "-g", "g")) == 1
    assert "(group_not_found)" in lockstep("pause", queue, "nobody", code=3).stderr


# --- Dead letters -------------------------------------------------------------------------------------------


@pytest.fixture
def failed(lockstep: CommandLine, queue: str) -> CommandLine:
    """With three dead letters in the queue."""
    lockstep("queue", "configure", queue, "--retry-limit", "0", "--retry-delay-ms", "0")
    lockstep("push", queue, "-", stdin="1\n2\n3\n")
    for _ in range(3):
        [message] = lockstep.json("pop", queue)
        lockstep("ack", message["lease_id"], "--status", "failed", "--error", "no\x07 stock")
    return lockstep


def test_dead_letters_are_listed_and_shown(failed: CommandLine, queue: str) -> None:
    letters = failed.json("dlq", "ls", "--queue", queue)
    assert sorted(letter["message"]["payload"] for letter in letters) == [1, 2, 3]
    assert len(failed.ndjson("dlq", "ls", "--queue", queue, "--limit", "2")) == 2
    shown = failed.json("dlq", "show", str(letters[0]["id"]))
    assert shown == letters[0]
    assert "no\\x07 stock" in failed("dlq", "ls", "--queue", queue).stdout
    assert "(dead_letter_not_found)" in failed("dlq", "show", "999999999", code=3).stderr
    assert failed.json("dlq", "ls", "--queue", queue, "--to", "2020-01-01T00:00:00Z") == []


@pytest.mark.parametrize("command", ["ls", "redrive", "purge"])
def test_dead_letters_of_a_queue_that_is_not_there(lockstep: CommandLine, command: str) -> None:
    assert "(queue_not_found)" in lockstep("dlq", command, "--queue", "nothing-of-this-name", code=3).stderr


def test_dead_letters_are_redriven(failed: CommandLine, queue: str) -> None:
    assert "say --yes" in failed("dlq", "redrive", "--queue", queue, code=2).stderr
    first = failed.json("dlq", "ls", "--queue", queue)[0]["id"]
    assert failed("dlq", "redrive", "--id", str(first), "--yes").stdout == "1 dead letter pushed again\n"
    assert failed("dlq", "redrive", "--queue", queue, "--yes").stdout == "2 dead letters pushed again\n"
    assert failed.json("dlq", "redrive", "--queue", queue) == {"redriven": 0}
    popped = failed.json("pop", queue, "-n", "9", "--ack")
    assert sorted(message["payload"] for message in popped) == [1, 2, 3]


def test_dead_letters_whose_copies_are_done_are_told_and_pushed_by_id(lockstep: CommandLine, queue: str) -> None:
    lockstep("queue", "configure", f"{queue}-dead")
    lockstep("queue", "configure", queue, "--retry-limit", "0", "--dead-queue", f"{queue}-dead")
    lockstep("push", queue, "-", stdin="1\n2\n")
    for _ in range(2):
        [message] = lockstep.json("pop", queue)
        lockstep("ack", message["lease_id"], "--status", "failed")
    lockstep("pop", f"{queue}-dead", "--ack")
    shown = lockstep("dlq", "redrive", "--queue", queue, "--yes").stdout
    assert shown == "1 dead letter pushed again; 1 left: their copies in the dead queue are done, or under a lease\n"
    [left] = lockstep.json("dlq", "ls", "--queue", queue)
    assert lockstep("dlq", "redrive", "--id", str(left["id"]), "--yes").stdout == "1 dead letter pushed again\n"


def test_dead_letters_are_purged(failed: CommandLine, queue: str) -> None:
    assert "say --yes" in failed("dlq", "purge", "--queue", queue, code=2).stderr
    assert "needs --queue" in failed("dlq", "purge", "-p", "Default", code=2).stderr
    assert failed.json("dlq", "purge", "--queue", queue, "--group", "nobody", "-y") == {"purged": 0}
    assert failed.json("dlq", "purge", "--queue", queue, "-y") == {"purged": 3}
    assert failed.json("dlq", "ls", "--queue", queue) == []


# --- The stored data ----------------------------------------------------------------------------------------


@pytest.fixture
def damaged_dsn(databases: Databases) -> Iterator[str]:
    """A database with a lost wake-up."""
    dsn = databases.clone()
    run = CommandLine(("--dsn", dsn))
    run("push", "q", "-", stdin="1\n2\n")
    run("pop", "q", "--ack")
    with psycopg.connect(dsn) as connection:
        connection.execute("update lockstep.cursor set due_at = null")
    yield dsn
    databases.drop(dsn)


def test_verify_finds_and_repairs(damaged_dsn: str) -> None:
    run = CommandLine(("--dsn", damaged_dsn))
    assert run.json("pop", "q") == []
    [problem] = run.json("verify", code=1)
    assert (problem["kind"], problem["repairable"]) == ("due_at_wrong", True)
    assert run.json("verify", "--queue", "q", "--repair")[0]["repaired"] is True
    assert run("verify").stderr == "all is as it should be\n"
    assert len(run.json("pop", "q")) == 1


def test_figures_that_are_not_known_are_question_marks(
    direct: CommandLine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server runs here that would count the queue, and it is too large to be counted on request."""
    direct("push", queue, "1")
    direct("pop", queue, "--group", "g")
    monkeypatch.setenv("LOCKSTEP_FIGURES_EXACT_MAX", "0")
    [line] = [line.split() for line in direct("queues", "--from", queue, "--limit", "1").stdout.splitlines()[1:]]
    assert line.count("?") == 6
    [line] = [line.split() for line in direct("groups", "--queue", queue).stdout.splitlines()[1:]]
    assert line.count("?") == 7
    [found] = direct.json("queues", "--from", queue, "--limit", "1")
    assert (found["messages"], found["pending"], found["figures_at"]) == (None, None, None)
    [found] = direct.json("queues", "--from", queue, "--limit", "1", "--exact")
    assert found["messages"] == 1
