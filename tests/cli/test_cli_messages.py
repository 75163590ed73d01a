"""Messages in and out: push, pop, ack, tail, messages, trace, leases."""

from __future__ import annotations

import json
import subprocess
from uuid import uuid4

import pytest
from command_lines import PROGRAM, CommandLine


def payloads(lockstep: CommandLine, queue: str, *options: str) -> list[object]:
    """What is stored."""
    views = lockstep.ndjson("messages", queue, "--limit", "5000", *options)
    return [view["message"]["payload"] for view in views]


def test_push_and_pop_one_message(lockstep: CommandLine, queue: str) -> None:
    trace_id = str(uuid4())
    options = ["-p", "customer-42", "--trace-id", trace_id, "--kind", "order", "--reference", "r-1"]
    options += ["--header", "a=1", "--header", "b=x=y", "--transaction-id", "t-1"]
    receipt = lockstep.json("push", queue, '{"total": 99}', *options)
    assert (receipt["status"], receipt["partition"], receipt["seq"]) == ("queued", "customer-42", 1)
    assert lockstep.json("push", queue, '{"total": 99}', *options)["status"] == "duplicate"
    [message] = lockstep.json("pop", queue, "--ack")
    assert message["payload"] == {"total": 99}
    assert message["headers"] == {"a": "1", "b": "x=y"}
    assert (message["kind"], message["reference"], message["transaction_id"]) == ("order", "r-1", "t-1")
    assert message["attempt"] == 1
    assert lockstep.json("pop", queue) == []
    [traced] = lockstep.json("trace", trace_id)
    assert traced["id"] == message["id"]


def test_next_acknowledges_and_pops(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "-", stdin="1\n2\n3\n")
    [first] = lockstep.json("pop", queue, "--group", "g")
    second, third = lockstep.json("next", first["lease_id"], queue, "--group", "g", "--batch", "5")
    assert (second["payload"], third["payload"]) == (2, 3)
    assert second["lease_id"] == third["lease_id"] != first["lease_id"]
    lost = lockstep("next", first["lease_id"], queue, "--group", "g", code=4)
    assert "lease" in lost.stderr
    done = lockstep("next", second["lease_id"], queue, "--group", "g", "-o", "table")
    assert done.stderr == "nothing to pop\n"
    assert lockstep.json("leases", "--queue", queue) == []
    assert "Name a QUEUE" in lockstep("next", second["lease_id"], code=2).stderr


def test_newest_message_is_listed_first(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "-", stdin="1\n2\n3\n")
    assert payloads(lockstep, queue) == [1, 2, 3]
    assert lockstep.ndjson("messages", queue, "--newest-first", "--limit", "1")[0]["message"]["payload"] == 3
    assert payloads(lockstep, queue, "--newest-first") == [3, 2, 1]


def test_search_for_a_rare_status_goes_on_and_says_how_far(lockstep: CommandLine, queue: str) -> None:
    stored = 10_500
    lockstep("push", queue, "-", stdin="1\n" * stored)
    lockstep("pop", queue, "--ack", "--group", "g")
    found = lockstep("messages", queue, "--status", "dead_letter", "-o", "ndjson")
    assert (found.stdout, found.stderr) == ("", f"looked at {stored} messages\n")
    assert lockstep("messages", queue, "--limit", "1").stderr == ""


def test_tables_are_for_people(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, '"one\\u001b[31m"')
    head, row = lockstep("messages", queue).stdout.splitlines()
    assert head.split() == ["partition", "seq", "status", "created", "at", "id", "payload"]
    assert row.split()[:3] == ["Default", "1", "pending"]
    lockstep("push", queue, "\N{ESCAPE}[31m", "--text")
    assert "\N{ESCAPE}" not in lockstep("messages", queue).stdout
    assert lockstep("pop", queue, "--auto-ack", "--batch", "2").stderr == ""
    assert lockstep("pop", queue).stderr == "nothing to pop\n"


def test_pop_leaves_a_lease_that_ack_ends(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "-", stdin="1\n2\n3\n")
    popped = lockstep.json("pop", queue, "--batch", "2")
    [lease_id] = {message["lease_id"] for message in popped}
    [lease] = lockstep.json("leases", "--queue", queue)
    assert (lease["lease_id"], lease["first_seq"], lease["last_seq"]) == (lease_id, 1, 2)
    assert lockstep.json("leases", "--queue", queue, "--expiring-within", "1") == []
    assert lockstep.json("pop", queue) == []
    assert lockstep.json("ack", lease_id)["messages"] == 2
    assert "(lease_lost)" in lockstep("ack", lease_id, code=4).stderr
    assert [message["payload"] for message in lockstep.json("pop", queue, "--auto-ack")] == [3]


def test_ack_gives_back(lockstep: CommandLine, queue: str) -> None:
    lockstep("queue", "configure", queue, "--retry-delay-ms", "0")
    lockstep("push", queue, "1")
    for status, attempt in (("retry", 1), ("failed", 1), ("completed", 2)):
        [message] = lockstep.json("pop", queue)
        assert message["attempt"] == attempt
        lockstep("ack", message["lease_id"], "--status", status)
    assert lockstep.json("pop", queue) == []


def test_groups_begin_where_they_are_told(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "1")
    assert lockstep.json("pop", queue, "-g", "late", "--begin", "new") == []
    lockstep("push", queue, "2")
    assert [message["payload"] for message in lockstep.json("pop", queue, "-g", "late", "-n", "9", "--ack")] == [2]
    popped = lockstep.json("pop", queue, "-g", "early", "-n", "9", "--begin", "1h", "--ack")
    assert [message["payload"] for message in popped] == [1, 2]


@pytest.mark.parametrize(
    ("options", "line"),
    [([], b'"\xff"\n'), (["--text"], b"\xff\n"), (["--envelope"], b'{"payload": "\xff"}\n')],
    ids=["json", "text", "envelope"],
)
def test_payload_that_is_no_text_is_refused(lockstep: CommandLine, queue: str, options: list[str], line: bytes) -> None:
    assert "(invalid_payload)" in lockstep("push", queue, "-", *options, stdin=line, code=2).stderr


def test_pop_says_how_to_acknowledge_there(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "1")
    said = lockstep("pop", queue).stderr.rstrip()
    option, address = lockstep.target
    assert said.endswith(f" {option} {address}" if option == "--url" else " --dsn …")  # which may hold a password


def test_pop_waits(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "1")
    assert len(lockstep.json("pop", queue, "--wait", "30", "--auto-ack")) == 1
    assert lockstep.json("pop", queue, "--wait", "0.05") == []


def test_pop_over_a_namespace(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", f"{queue}.a", "1")
    lockstep("push", f"{queue}.b", "2")
    popped = lockstep.json("pop", "--namespace", queue, "--batch", "9", "--partitions", "9", "--ack")
    assert sorted(message["payload"] for message in popped) == [1, 2]


# --- Many ---------------------------------------------------------------------------------------------------


def test_lines_of_standard_input_are_pushed_in_order(lockstep: CommandLine, queue: str) -> None:
    lines = "".join(f'{{"n": {number}}}\n' for number in range(2500)) + "\n"
    said = lockstep.json("push", queue, "-", "--batch", "1000", stdin=lines)
    assert said == {"pushed": 2500, "duplicates": 0}
    assert payloads(lockstep, queue) == [{"n": number} for number in range(2500)]


def test_ndjson_prints_every_receipt(lockstep: CommandLine, queue: str) -> None:
    receipts = lockstep.ndjson("push", queue, stdin="1\r\n2\r\n3")
    assert [receipt["seq"] for receipt in receipts] == [1, 2, 3]


def test_lines_that_come_slowly_are_not_waited_for(direct: CommandLine, queue: str) -> None:
    arguments = [*PROGRAM, *direct.target, "push", queue, "-", "-o", "ndjson"]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for seq, written in enumerate([b'"a line"\n"and a', b' half"\n"the last line'], start=1):
            process.stdin.write(written)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["seq"] == seq
        process.stdin.write(b'"')
        process.stdin.close()
        assert json.loads(process.stdout.readline())["seq"] == 3
    assert process.returncode == 0


def test_bad_line_before_anything_was_stored_changes_nothing(lockstep: CommandLine, queue: str) -> None:
    assert "before that, 0 messages pushed" in lockstep("push", queue, "-", stdin="1\n{\n", code=2).stderr


def test_bad_line_is_numbered_over_several_reads(direct: CommandLine, queue: str) -> None:
    long = f'"{"x" * 700_000}"\n'
    assert "line 4: not JSON" in direct("push", queue, "-", stdin=long * 3 + "{\n", code=1).stderr


def test_bad_line_is_named_and_tells_what_was_stored(lockstep: CommandLine, queue: str) -> None:
    said = lockstep("push", queue, "-", "--batch", "2", stdin="1\n2\n3\n{\n", code=1).stderr
    assert "line 4: not JSON" in said
    assert "before that, 2 messages pushed" in said
    assert payloads(lockstep, queue) == [1, 2]


def test_text_and_opaque_lines(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "-", "--text", stdin='say "hi"\n')
    lockstep("push", queue, "-", "--encoding", "text/plain", stdin=b"\xff\xfe\n")
    text, opaque = lockstep.ndjson("messages", queue)
    assert text["message"]["payload"] == 'say "hi"'
    assert (opaque["message"]["payload_base64"], opaque["message"]["encoding"]) == ("//4=", "text/plain")
    assert "<2 bytes, text/plain>" in lockstep("messages", queue).stdout


def test_envelopes_override_the_options(lockstep: CommandLine, queue: str) -> None:
    envelopes = [
        {"payload": 1},
        {"payload": None, "partition": "b", "transaction_id": "t", "headers": {"h": "1"}},
        {"payload": 2, "partition": "b", "transaction_id": "t"},
        {"payload_base64": "AAE=", "encoding": "bin", "partition": "c", "kind": "k"},
    ]
    lines = "\n".join(map(json.dumps, envelopes))
    said = lockstep.json("push", queue, "-", "--envelope", "-p", "a", "--kind", "default", stdin=lines)
    assert said == {"pushed": 3, "duplicates": 1}
    stored = {view["message"]["partition"]: view["message"] for view in lockstep.ndjson("messages", queue)}
    assert (stored["a"]["payload"], stored["a"]["kind"]) == (1, "default")
    assert (stored["b"]["payload"], stored["b"]["headers"]) == (None, {"h": "1"})
    assert (stored["c"]["payload_base64"], stored["c"]["kind"]) == ("AAE=", "k")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"payload": 1, "partion": "x"}', "partion"),
        ("{}", "either a payload or a payload_base64"),
        ('{"payload": 1, "encoding": "bin"}', "needs an encoding"),
        ('{"payload_base64": "AAE="}', "needs an encoding"),
        ('{"payload": 1, "headers": {"a": 1}}', "headers"),
    ],
)
def test_bad_envelope_is_refused(direct: CommandLine, queue: str, line: str, said: str) -> None:
    shown = direct("push", queue, "-", "--envelope", stdin=line, code=2).stderr
    assert "line 1" in shown
    assert said in shown
    direct("messages", queue, code=3)


def test_one_transaction_id_is_not_for_many_lines(direct: CommandLine, queue: str) -> None:
    assert "--envelope" in direct("push", queue, "-", "--transaction-id", "t", stdin="1\n2\n", code=2).stderr


def test_full_queue_refuses(lockstep: CommandLine, queue: str) -> None:
    lockstep("queue", "configure", queue, "--max-size", "2")
    assert "(QUEUE_FULL)" in lockstep("push", queue, "-", stdin="1\n2\n3\n", code=4).stderr


# --- Looking ------------------------------------------------------------------------------------------------


def test_messages_by_status_partition_and_time(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "1", "-p", "a")
    lockstep("pop", queue, "--ack")
    lockstep("push", queue, "-", "-p", "b", stdin="2\n3\n")
    assert payloads(lockstep, queue) == [1, 2, 3]
    assert payloads(lockstep, queue, "--status", "pending") == [2, 3]
    assert payloads(lockstep, queue, "-p", "a", "--status", "completed") == [1]
    assert payloads(lockstep, queue, "--from", "1h") == [1, 2, 3]
    assert payloads(lockstep, queue, "--to", "2020-01-01T00:00:00Z") == []
    assert len(lockstep.ndjson("messages", queue, "--limit", "2")) == 2


def test_tail_begins_with_the_last_messages(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "-", stdin="1\n2\n3\n")
    assert [m["payload"] for m in lockstep.ndjson("tail", queue, "--no-follow", "-n", "2")] == [2, 3]
    assert [m["payload"] for m in lockstep.ndjson("tail", queue, "--no-follow", "--all")] == [1, 2, 3]
    assert [m["payload"] for m in lockstep.ndjson("tail", queue, "--all", "--limit", "2")] == [1, 2]
    assert lockstep("tail", queue, "-p", "Default", "--no-follow", "-n", "1").stdout.endswith("  Default  3  3\n")


def test_tail_leaves_nothing_behind(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "1")
    lockstep("tail", queue, "--no-follow")
    assert lockstep.json("groups", "--queue", queue) == []
    assert payloads(lockstep, queue, "--status", "pending") == [1]


def test_tail_of_no_queue(lockstep: CommandLine, queue: str) -> None:
    assert "(queue_not_found)" in lockstep("tail", queue, code=3).stderr
