"""Work queues: update, stats, dead queues, expiry and shared groups."""

from __future__ import annotations

from command_lines import CommandLine


def test_update_leaves_what_is_not_given(lockstep: CommandLine, queue: str) -> None:
    assert "(queue_not_found)" in lockstep("queue", "update", queue, "--lease-seconds", "5", code=3).stderr
    lockstep("queue", "configure", queue, "--retry-limit", "9")
    updated = lockstep.json("queue", "update", queue, "--lease-seconds", "60", "--expire-seconds", "600")
    assert (updated["options"]["retry_limit"], updated["options"]["expire_seconds"]) == (9, 600)
    assert (
        "lease_seconds must not be more than"
        in lockstep("queue", "update", queue, "--lease-seconds", "601", code=2).stderr
    )
    lockstep("queue", "update", queue, code=2)


def test_stats_of_partitions(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "1", "-p", "a")
    lockstep("push", queue, "2", "-p", "b", "--at", "1h")
    rows = lockstep.json("queue", "stats", queue)
    assert [(row["partition"], row["total"], row["scheduled"]) for row in rows] == [("a", 1, 0), ("b", 0, 1)]
    head, first, _ = lockstep("queue", "stats", queue).stdout.splitlines()
    assert "age seconds average" in head
    assert len(first.split()[4].partition(".")[2]) <= 3  # milliseconds are enough
    lockstep("queue", "clear", queue, "--scope", "scheduled", "--yes")
    assert [row["partition"] for row in lockstep.json("queue", "stats", queue)] == ["a"]


def test_dead_queue_and_back(lockstep: CommandLine, queue: str) -> None:
    lockstep("queue", "configure", f"{queue}-dead")
    lockstep("queue", "configure", queue, "--dead-queue", f"{queue}-dead")
    lockstep("push", queue, "1")
    [message] = lockstep.json("pop", queue)
    lockstep("ack", message["lease_id"], "--status", "dlq")
    assert lockstep.json("queue", "redrive", f"{queue}-dead", "--yes")["redriven"] == 1
    assert len(lockstep.json("pop", queue)) == 1
    updated = lockstep.json("queue", "update", queue, "--dead-queue", "")
    assert updated["options"]["dead_queue"] is None


def test_shared_group_and_expiry(lockstep: CommandLine, queue: str) -> None:
    lockstep("push", queue, "1", "--expire-seconds", "0")
    lockstep("push", queue, "2")
    lockstep("push", queue, "3")
    first = lockstep.json("pop", queue, "-g", "g", "--mode", "shared")
    second = lockstep.json("pop", queue, "-g", "g")
    assert [message["payload"] for message in first + second] == [2, 3]


def test_messages_of_a_shared_group_end_one_by_one(lockstep: CommandLine, queue: str) -> None:
    lockstep("queue", "configure", queue, "--group-mode", "shared", "--retry-limit", "1")
    for number in range(4):
        lockstep("push", queue, str(number))
    leased = lockstep.json("pop", queue, "-g", "g", "-n", "4")
    [lease] = {message["lease_id"] for message in leased}
    partition_id = str(leased[0]["partition_id"])
    assert lockstep.json("ack", lease, "--seq", "2")["messages"] == 1
    assert lockstep.json("ack", lease, "--seq", "3", "--partition-id", partition_id, "--status", "dlq")["dead"]
    assert lockstep.json("ack", lease, "--seq", "4", "--status", "retry", "--retry-at", "1h")["success"]
    [lag] = lockstep.json("lag", queue, "--group", "g")
    assert (lag["lag"], lag["in_flight"], lag["retrying"]) == (2, 1, 1)
    assert lockstep.json("ack", lease)["messages"] == 1
    lockstep("ack", lease, "--partition-id", partition_id, code=2)
    lockstep("ack", lease, "--retry-at", "1h", code=2)


def test_queues_from_a_name_on(lockstep: CommandLine, queue: str) -> None:
    for suffix in ("a", "b"):
        lockstep("queue", "configure", f"{queue}-{suffix}")
    names = [row["name"] for row in lockstep.json("queues", "--from", f"{queue}-b", "--limit", "1")]
    assert names == [f"{queue}-b"]
