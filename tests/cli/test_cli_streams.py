"""`lockstep streams`, and streams in `lockstep lag`."""

from __future__ import annotations

from command_lines import CommandLine

from support.http import Http
from support.spark_reads import Query


def test_streams_are_listed_beside_the_groups_and_forgotten(
    lockstep: CommandLine, shared_dsn: str, shared_url: str, queue: str
) -> None:
    lockstep("push", queue, "1")
    query = Query(shared_dsn, queue=queue, streamName="nightly")
    query.step()
    query.close()
    assert lockstep.json("lag", queue) == []
    lockstep("push", queue, "2")
    lockstep("pop", queue, "-g", "billing")

    [stream] = lockstep.json("streams", "ls", "--queue", queue)
    assert (stream["name"], stream["queue"], stream["kind"], stream["lag"]) == ("nightly", queue, "spark", 1)
    group, behind = lockstep.json("lag", queue)
    assert (group["group"], behind["name"], behind["lag"]) == ("billing", "nightly", 1)
    table = lockstep("lag", queue).stdout.splitlines()
    assert [line.split()[:4] for line in table[1:]] == [
        ["Default", "billing", "group", "2"],
        ["all", "nightly", "spark", "1"],
    ]
    assert len(lockstep.json("lag", queue, "--group", "billing")) == 1
    [row] = [row for row in Http(shared_url).get("/api/v1/spark-streams").json() if row["queueName"] == queue]
    assert (row["id"], row["kind"], row["totalLag"], row["name"]) == (stream["id"], "spark", 1, "nightly")
    assert row["heldUntil"] > row["updatedAt"]

    assert lockstep.json("streams", "accept", stream["id"]) == {"accepted": stream["id"], "queues": 1}
    assert lockstep.json("streams", "forget", stream["id"]) == {"forgotten": stream["id"], "queues": 1}
    for name in ("try-1", "try-2", "keep"):
        tried = Query(shared_dsn, queue=queue, streamName=f"{queue}-{name}")
        tried.step()
        tried.close()
    assert "say --yes" in lockstep("streams", "forget", f"{queue}-try-*", code=2).stderr
    assert len(lockstep.json("streams", "forget", f"{queue}-try-?", "--yes")["forgotten"]) == 2
    assert lockstep.json("streams", "forget", f"{queue}-try-*", "--yes") == {"forgotten": []}
    [kept] = lockstep.json("streams", "ls", "--queue", queue)
    assert kept["name"] == f"{queue}-keep"
    lockstep("streams", "forget", kept["id"])
    assert lockstep.json("streams", "ls", "--queue", queue) == []
    assert "(spark_stream_not_found)" in lockstep("streams", "forget", stream["id"], code=3).stderr
    assert "(spark_stream_not_found)" in lockstep("streams", "accept", stream["id"], code=3).stderr
    assert "(queue_not_found)" in lockstep("streams", "ls", "-q", "nowhere", code=3).stderr
