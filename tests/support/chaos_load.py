"""The load of the kill -9 tests: the queues and groups, the messages, and the plan of each client."""

from __future__ import annotations

from pathlib import Path
from typing import Literal
from uuid import NAMESPACE_URL, uuid5

import msgspec

from support.history import Lane

NAMESPACE = "chaos"
QUEUES = (f"{NAMESPACE}.orders", f"{NAMESPACE}.bills")
RELAYED = "relayed"
"""Where the group `relay` puts everything that it completes."""

AUDIT, RELAY = "audit", "relay"
GROUPS = (AUDIT, RELAY)
HTTP_WORKERS, ENGINE_WORKERS = "http-workers", "engine-workers"
"""Groups of the SDK's workers, through servers and with an engine of their own."""
JOBS = "jobs"
"""A shared group."""
JOBS_DONE = "jobs-done"
"""Where the group `jobs` puts everything that it completes."""

TransactionIds = Literal["uuid", "text"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a client. Each start of the client is a life, with its own log."""

    name: str
    dsn: str
    folder: str
    urls: tuple[str, ...] = ()
    """Servers on the database, if the client is to go through those."""
    life: int = 0

    @property
    def log(self) -> Path:
        return Path(self.folder, f"{self.name}.{self.life}.jsonl")

    def logs(self) -> list[Path]:
        """The logs of all lives so far."""
        return sorted(Path(self.folder).glob(f"{self.name}.*.jsonl"))


class ProducerPlan(Plan, frozen=True, kw_only=True):
    transaction_ids: TransactionIds | None = None
    queues: tuple[str, ...] = QUEUES
    partitions_max: int = 24
    pause_seconds_max: float = 0
    messages_max: int = 100_000


class ConsumerPlan(Plan, frozen=True, kw_only=True):
    group: str
    lease_seconds: float = 1.0
    work_seconds_max: float = 0.05
    goes_on: bool = False
    """It continues its leases, instead of popping anew."""
    holds: bool = False
    """It takes messages once and then does nothing more, under its lease."""


class WorkerPlan(Plan, frozen=True, kw_only=True):
    group: str
    whole: bool
    """It handles whole deliveries, or single messages."""
    lease_seconds: float = 1.0
    work_seconds_max: float = 0.01


class JobsPlan(Plan, frozen=True, kw_only=True):
    lease_seconds: float = 1.0
    work_seconds_max: float = 0.05

    @property
    def log(self) -> Path:
        return Path(self.folder, f"{self.name}.{self.life}.log")


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """A payload."""

    place: str
    """Queue and partition."""
    by: str
    """A producer; without transaction ids, one life of it, because only that knows what it has sent."""
    n: int
    """The producer's messages in one partition: 1, 2, 3, …"""
    push: int
    push_size: int
    """Messages of the whole push, over all its partitions."""
    padding: str
    """Some segments are large enough to be packed."""


def transaction_id(kind: TransactionIds, by: str, lane: Lane, n: int) -> str:
    text = f"{by}/{lane.queue}/{lane.partition}/{n}"
    return text if kind == "text" else str(uuid5(NAMESPACE_URL, text))


def relayed_partition(lane: Lane) -> str:
    return f"{lane.queue}/{lane.partition}"
