"""Who is measured: each queue with its client, its server, and what a stored message has survived."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PYTHON, NODE, OURS = "python", "node", "ours"
"""Whose program drives it: a Python client, a Node client, or ours, in the project's own environment."""


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    driver: str
    runtime: str
    server: str
    """Which of `running.py` it talks to."""
    guarantee: str
    """What its users get: order, durability of a push, and delivery."""
    options: dict[str, Any] = field(default_factory=dict)
    """For its driver."""
    consumes: bool = True


_OURS = "ordered partitions, fsync before the answer, leases with retries and dead letters"
_ROWS = "fsync before the answer, no order between consumers"

PEERS = [
    Peer("Lockstep, direct", "lockstep_client", OURS, "postgres", _OURS),
    Peer("Lockstep, HTTP packed", "lockstep_client", OURS, "lockstep", _OURS),
    Peer("Lockstep, HTTP JSON", "lockstep_client", OURS, "lockstep", _OURS, {"client_packed": False}),
    Peer("plain INSERT", "plain_table", PYTHON, "postgres", "rows, fsync; no queue", consumes=False),
    Peer(
        "INSERT, index by partition", "plain_table", PYTHON, "postgres", "rows, fsync; no queue", {"index": True}, False
    ),
    Peer("COPY", "plain_table", PYTHON, "postgres", "rows, fsync; no queue", {"copy": True}, False),
    Peer("PGMQ", "pgmq_sql", PYTHON, "postgres", f"{_ROWS}; visibility timeout"),
    Peer("pgqueuer", "pgqueuer_jobs", PYTHON, "postgres", f"{_ROWS}; a log row per job"),
    Peer("procrastinate", "procrastinate_jobs", PYTHON, "postgres", f"{_ROWS}; order by locks of jobs"),
    Peer("pg-boss", "pg-boss", NODE, "postgres", f"{_ROWS}; retries, dead letters"),
    Peer("graphile-worker", "graphile-worker", NODE, "postgres", f"{_ROWS}; order in named queues"),
    Peer("RabbitMQ", "rabbitmq", PYTHON, "rabbitmq", "quorum queue of one node: fsync before the confirm; one order"),
    Peer("Redis Streams", "redis_stream", PYTHON, "redis", "appendfsync always; one order, groups"),
    Peer("NATS JetStream", "nats_stream", PYTHON, "nats", "stream in files, fsync every two minutes; one order"),
]
