"""Schedules and recurring messages on the command line."""

from __future__ import annotations

from command_lines import CommandLine


def test_message_is_pushed_for_later_listed_moved_and_cancelled(lockstep: CommandLine, queue: str) -> None:
    receipt = lockstep.json("push", queue, '{"n": 1}', "--at", "2h", "--key", "k")
    assert receipt["status"] == "scheduled"
    lockstep("push", queue, "2", "--at", "2099-01-01T00:00:00Z")
    [first, second] = lockstep.ndjson("schedule", "ls", "-q", queue)
    assert (first["id"], first["key"], first["payload"]) == (receipt["schedule_id"], "k", {"n": 1})
    assert second["due_at"] == "2099-01-01T00:00:00Z"
    assert [row["key"] for row in lockstep.ndjson("schedule", "ls", "-q", queue, "--from", "1h", "--to", "3h")] == ["k"]
    assert '{"n": 1}' in lockstep("schedule", "ls", "-q", queue, "--limit", "1").stdout
    moved = lockstep.json("schedule", "reschedule", "-q", queue, "-k", "k", "--at", "2098-01-01T00:00:00Z")
    assert moved["due_at"] == "2098-01-01T00:00:00Z"
    assert lockstep.json("schedule", "show", str(first["id"])) == moved
    assert lockstep.json("schedule", "cancel", "-q", queue, "-k", "k") == {"cancelled": True}
    assert "schedule_not_found" in lockstep("schedule", "cancel", str(first["id"]), code=3).stderr
    lockstep("schedule", "cancel", str(second["id"]))
    assert "no message waits" in lockstep("schedule", "ls", "-q", queue).stderr


def test_envelopes_may_have_a_time_of_their_own(direct: CommandLine, queue: str) -> None:
    lines = '{"payload": 1, "delay_seconds": 3600, "schedule_key": "a"}\n{"payload": 2}\n'
    receipts = direct("push", queue, "-", "--envelope", "-o", "ndjson", stdin=lines).stdout
    assert [status in line for status, line in zip(("scheduled", "queued"), receipts.splitlines(), strict=True)]
    assert [row["key"] for row in direct.ndjson("schedule", "ls", "-q", queue, "--key-prefix", "a")] == ["a"]


def test_bad_use_is_explained(direct: CommandLine, queue: str) -> None:
    assert "is no time" in direct("push", queue, "1", "--at", "soon", code=2).stderr
    assert (
        "--key is for one message" in direct("push", queue, "-", "--at", "1h", "--key", "k", stdin="1", code=2).stderr
    )
    assert "Give an ID, or" in direct("schedule", "show", code=2).stderr
    assert "Give an ID, or" in direct("schedule", "cancel", "1", "-q", queue, "-k", "k", code=2).stderr
    assert "--partition needs --queue" in direct("schedule", "ls", "-p", "p", code=2).stderr


def test_cron_is_added_listed_paused_and_removed(lockstep: CommandLine, queue: str) -> None:
    made = lockstep.json(
        "cron", "add", queue, queue, "0 3 * * *", '{"n": 1}', "--timezone", "Europe/Berlin", "--catch-up", "one"
    )
    assert (made["payload"], made["catch_up"], made["enabled"]) == ({"n": 1}, "one", True)
    assert made in lockstep.ndjson("cron", "ls", "--limit", "5000")
    assert "0 3 * * *" in lockstep("cron", "ls").stdout
    assert lockstep.json("cron", "pause", queue)["next_at"] is None
    # Later than before if it has just become three o'clock.
    assert lockstep.json("cron", "resume", queue)["next_at"] >= made["next_at"]
    assert lockstep.json("cron", "rm", queue) == {"removed": queue}
    assert "cron_not_found" in lockstep("cron", "rm", queue, code=3).stderr


def test_bad_cron_is_explained(lockstep: CommandLine, queue: str) -> None:
    assert "not a cron expression" in lockstep("cron", "add", queue, queue, "often", code=2).stderr
    assert "not JSON" in lockstep("cron", "add", queue, queue, "* * * * *", "{", code=2).stderr
