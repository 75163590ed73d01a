"""The progress of a delivery, partition by partition, and the acks that report it. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from lockstep.client._received import Delivered
from lockstep.core.endings import AckStatus
from lockstep.core.messages import Message
from lockstep.core.records import ACK_ERROR_TEXTS, Ack, AckOutcome
from lockstep.errors import Conflict, LeaseLost, LockstepError


@dataclass(slots=True)
class Part:
    """The messages of one partition in a delivery."""

    partition_id: int
    seqs: list[int] = field(default_factory=list)
    done: int = 0
    """Everything up to this seq is finished."""
    committed: int = 0
    """Everything up to this seq is finished, and the store knows."""
    over: bool = False
    """The lease on the partition has ended for us: everything is acknowledged, or it was given back or lost."""

    def next_seq(self) -> int | None:
        """The first message that is not finished."""
        place = bisect_right(self.seqs, self.done)
        return self.seqs[place] if place < len(self.seqs) else None


class Progress:
    """Which messages under one lease are finished."""

    def __init__(self, lease_id: str | None, messages: Iterable[Message]) -> None:
        self._lease_id = lease_id
        self._parts: dict[int, Part] = {}
        for message in messages:
            part = self._parts.get(message.partition_id)
            if part is None:
                part = self._parts[message.partition_id] = Part(message.partition_id)
            part.seqs.append(message.seq)

    @property
    def over(self) -> bool:
        """Whether all messages have ended."""
        return all(part.over for part in self._parts.values())

    def is_open(self, partition_id: int, seq: int) -> bool:
        """Whether we still hold this message and it is not finished."""
        part = self._parts[partition_id]
        return not part.over and seq > part.done

    def is_gone(self, partition_id: int, seq: int) -> bool:
        """Whether the lease on this message ended before the message was acknowledged."""
        part = self._parts[partition_id]
        return part.over and seq > part.committed

    def finish(self, partition_id: int, seq: int) -> None:
        part = self._parts[partition_id]
        part.done = max(part.done, seq)

    def end(self) -> None:
        """The lease is gone, with everything that it held."""
        for part in self._parts.values():
            part.over = True

    def commits(self) -> list[Ack]:
        """Acks for what is finished and not yet known to the store."""
        return [self._ack(part, part.done) for part in self._open() if part.done > part.committed]

    def whole(self) -> list[Ack]:
        """For everything: one ack by the lease alone, unless part of the lease has ended before."""
        if self._parts and not any(part.over for part in self._parts.values()):
            return [Ack(lease_id=self._lease_id)]
        return self.all_parts()

    def all_parts(self) -> list[Ack]:
        """For everything: one ack per partition."""
        return [self._ack(part, part.seqs[-1]) for part in self._open()]

    def ends(self, status: AckStatus, error: str | None = None, retry_at: datetime | None = None) -> list[Ack]:
        """Acks for what is finished; and `status` for the first unfinished message of each partition."""
        heads = [(part, part.next_seq()) for part in self._open()]
        if all(seq is None for _, seq in heads):
            return self.whole()
        return self.commits() + [
            self._ack(part, seq, status, error, retry_at) for part, seq in heads if seq is not None
        ]

    def ends_one(
        self,
        partition_id: int,
        seq: int,
        status: AckStatus,
        error: str | None = None,
        retry_at: datetime | None = None,
    ) -> list[Ack]:
        """Acks for what is finished of this message's partition; and `status` for the message itself."""
        part = self._parts[partition_id]
        before = [self._ack(part, part.done)] if part.done > part.committed else []
        return [*before, self._ack(part, seq, status, error, retry_at)]

    def dead(self, error: str | None) -> list[Ack]:
        """Makes every unfinished message a dead letter."""
        return self.commits() + [
            self._ack(part, seq, "dlq", error) for part in self._open() for seq in part.seqs if seq > part.done
        ]

    def settle(self, acks: Sequence[Ack], outcomes: Sequence[AckOutcome]) -> None:
        """Record the outcomes of the acks."""
        for ack, outcome in zip(acks, outcomes, strict=True):
            parts = self._parts.values() if ack.partition_id is None else [self._parts[ack.partition_id]]
            for part in parts:
                self._settle(part, ack, outcome)

    def _settle(self, part: Part, ack: Ack, outcome: AckOutcome) -> None:
        if outcome.error == "lease_lost" or (outcome.success and ack.status != "completed"):
            part.over = True
        elif outcome.success:
            part.committed = max(part.seqs[-1] if ack.seq is None else ack.seq, part.committed)
            part.done = max(part.done, part.committed)
            part.over = part.committed >= part.seqs[-1]

    def _open(self) -> list[Part]:
        return [part for part in self._parts.values() if not part.over]

    def _ack(
        self,
        part: Part,
        seq: int,
        status: AckStatus = "completed",
        error: str | None = None,
        retry_at: datetime | None = None,
    ) -> Ack:
        return Ack(
            lease_id=self._lease_id,
            partition_id=part.partition_id,
            seq=seq,
            status=status,
            error=error,
            retry_at=retry_at,
        )


class SharedProgress:
    """Which messages under one lease of a shared group are finished; each is independent of the others."""

    def __init__(self, lease_id: str | None, messages: Iterable[Message]) -> None:
        self._lease_id = lease_id
        self._open: dict[tuple[int, int], bool] = {(one.partition_id, one.seq): False for one in messages}
        """Partition id and seq of the messages that the store holds for us; and whether they are finished."""
        self._whole = True
        """Whether no part of the lease has ended yet."""
        self._committed: set[tuple[int, int]] = set()

    @property
    def over(self) -> bool:
        return not self._open

    def is_open(self, partition_id: int, seq: int) -> bool:
        return self._open.get((partition_id, seq)) is False

    def is_gone(self, partition_id: int, seq: int) -> bool:
        place = (partition_id, seq)
        return place not in self._open and place not in self._committed

    def finish(self, partition_id: int, seq: int) -> None:
        if (partition_id, seq) in self._open:
            self._open[partition_id, seq] = True

    def end(self) -> None:
        self._open.clear()

    def commits(self) -> list[Ack]:
        if self._whole and self._open and all(self._open.values()):
            return self.whole()
        return [self._ack(place) for place, finished in self._open.items() if finished]

    def whole(self) -> list[Ack]:
        return [Ack(lease_id=self._lease_id)] if self._whole and self._open else self.all_parts()

    def all_parts(self) -> list[Ack]:
        return [self._ack(place) for place in self._open]

    def ends(self, status: AckStatus, error: str | None = None, retry_at: datetime | None = None) -> list[Ack]:
        """Acks for what is finished; and `status` for every unfinished message."""
        if all(self._open.values()):
            return self.commits()
        return [
            self._ack(place) if finished else self._ack(place, status, error, retry_at)
            for place, finished in self._open.items()
        ]

    def ends_one(
        self,
        partition_id: int,
        seq: int,
        status: AckStatus,
        error: str | None = None,
        retry_at: datetime | None = None,
    ) -> list[Ack]:
        return [self._ack((partition_id, seq), status, error, retry_at)]

    def dead(self, error: str | None) -> list[Ack]:
        return self.ends("dlq", error)

    def settle(self, acks: Sequence[Ack], outcomes: Sequence[AckOutcome]) -> None:
        for ack, outcome in zip(acks, outcomes, strict=True):
            if not outcome.success and outcome.error != "lease_lost":
                continue
            places = list(self._open) if ack.seq is None else [(ack.partition_id or 0, ack.seq)]
            self._whole = False
            for place in places:
                self._open.pop(place, None)
                if outcome.success and ack.status == "completed":
                    self._committed.add(place)

    def _ack(
        self,
        place: tuple[int, int],
        status: AckStatus = "completed",
        error: str | None = None,
        retry_at: datetime | None = None,
    ) -> Ack:
        partition_id, seq = place
        return Ack(
            lease_id=self._lease_id,
            partition_id=partition_id,
            seq=seq,
            status=status,
            error=error,
            retry_at=retry_at,
        )


def progress_of(delivered: Delivered) -> Progress | SharedProgress:
    kind = SharedProgress if delivered.mode == "shared" else Progress
    return kind(delivered.lease_id, delivered.messages)


def refusal(outcomes: Iterable[AckOutcome]) -> LockstepError | None:
    """The error for failed acks: a lost lease takes precedence."""
    errors = [outcome.error for outcome in outcomes if not outcome.success and outcome.error is not None]
    if not errors:
        return None
    if "lease_lost" in errors:
        return LeaseLost()
    return Conflict(ACK_ERROR_TEXTS[errors[0]], reason=errors[0])
