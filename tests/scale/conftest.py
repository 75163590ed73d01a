"""Big numbers: every verb answers when there is much of everything.

A usual run has small numbers and small slices, so that the code takes the same ways. `make soak` has the numbers that
the tests name, and default settings: a statement that takes longer than `statement_timeout_seconds` fails.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest
import pytest_asyncio

from lockstep.config import Config
from lockstep.storage.postgres.store import PostgresStore
from support.clock import SetClock
from support.databases import Databases


@dataclass(frozen=True)
class Scale:
    config: Config
    shrunk: int
    """By how much the numbers are smaller."""

    def __call__(self, count: int, *, at_least: int = 10) -> int:
        return max(count // self.shrunk, at_least)


_FULL = Scale(Config(), 1)
_SMALL = Scale(
    Config(
        slice_messages_max=50,
        slice_partitions_max=5,
        expire_messages_max=40,
        statement_timeout_seconds=10,
        push_messages_max=100,
    ),
    5_000,
)


@pytest.fixture
def scale() -> Scale:
    return _FULL if os.environ.get("LOCKSTEP_SOAK") else _SMALL


@pytest_asyncio.fixture
async def store(databases: Databases, clock: SetClock, scale: Scale) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(databases.emptied(), config=scale.config, clock=clock)
    await made.open()
    yield made
    assert await made.verify() == []
    await made.close()


@pytest.fixture
def batches(scale: Scale) -> Callable[[int], list[int]]:
    """A number of messages as the sizes of pushes."""

    def split(count: int) -> list[int]:
        most = scale.config.push_messages_max
        return [min(most, count - start) for start in range(0, count, most)]

    return split
