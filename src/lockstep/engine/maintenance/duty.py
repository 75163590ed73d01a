"""The interface of every duty: a name, an interval, and one pass of its work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lockstep.core.maintenance import Place, Pruned


class _Batch(Protocol):
    @property
    def next(self) -> Place | None: ...


_Done = TypeVar("_Done", bound=_Batch)

ERROR_LENGTH_MAX = 1_000


@dataclass(frozen=True, slots=True)
class DutyReport:
    """What one pass did."""

    effect: dict[str, Any]
    """For people; kept until the next pass."""
    more: bool = False
    """It ended early: there is more to do at once."""
    problems: tuple[str, ...] = ()
    """Why some queues were left out; the others were processed."""


class Duty(Protocol):
    name: str
    interval_seconds: float

    async def run_once(self) -> DutyReport:
        """One pass. It may be cut short, or run on two servers at once, without harm."""


def duty_error(error: Exception) -> str:
    """The part of a pass's error that is stored."""
    return f"{type(error).__name__}: {error}"[:ERROR_LENGTH_MAX]


def problems_of(batches: Iterable[Pruned]) -> tuple[str, ...]:
    """The problems that batches met, without repetitions."""
    return tuple(dict.fromkeys(batch.problem for batch in batches if batch.problem is not None))


class Walk:
    """A walk through all queues, batch by batch. A pass ends with the walk or when its time is up, between two batches;
    the next pass goes on from there. If a batch fails, the next pass tries it again; if it fails again, the walk starts
    over."""

    def __init__(self, pass_seconds_max: float) -> None:
        self._pass_seconds_max = pass_seconds_max
        self._place: Place | None = None
        self._failed = False

    @property
    def ended(self) -> bool:
        return self._place is None

    async def go(self, batch: Callable[[Place | None], Awaitable[_Done]]) -> list[_Done]:
        """One pass; yields the result of each of its batches."""
        time = asyncio.get_running_loop().time
        until = time() + self._pass_seconds_max
        done: list[_Done] = []
        while True:
            place = self._place
            try:
                done.append(await batch(place))
            except Exception:
                self._place = None if self._failed else place
                self._failed = not self._failed
                raise
            self._failed = False
            self._place = done[-1].next
            if self.ended or time() >= until:
                return done
