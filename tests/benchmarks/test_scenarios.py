"""Each kind of scenario works at all, with next to no time and few messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from benchmarks.harness import Outcome
from benchmarks.messages import Messages, transaction_ids
from benchmarks.scenarios import pop, push
from benchmarks.scenarios.latency import pop_latency
from benchmarks.scenarios.load import queueing
from benchmarks.scenarios.pop import pop as pop_and_ack
from benchmarks.scenarios.push import push_more
from benchmarks.scenarios.setting import Setting
from benchmarks.scenarios.spending import spending
from benchmarks.servers import connected


def test_messages_are_about_256_bytes_and_the_same_for_both_sides() -> None:
    messages = Messages(1000)
    assert [text.encode() for text in messages.texts] == messages.payloads
    assert 246 <= sum(map(len, messages.payloads)) / 1000 <= 266


def test_transaction_ids_are_canonical_and_differ() -> None:
    made = transaction_ids(1000)
    assert len(set(made)) == 1000
    assert all(str(UUID(each)) == each and UUID(each).version == 4 for each in made)


@pytest.mark.parametrize(
    ("scenario", "bars"), [(push_more, 1), (pop_and_ack, 1), (pop_latency, 1), (spending, 0), (queueing, 1)]
)
async def test_scenario_measures_and_leaves_no_database(
    scenario: Callable[[Setting], Awaitable[Outcome]],
    bars: int,
    server_dsn: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push, "PARTITIONS", 1000)
    monkeypatch.setattr(pop, "PARTITIONS", 50)
    async with connected(server_dsn) as server:
        setting = Setting(server, Messages(2000), rounds=1, seconds=0.05, partitions_many=2000)
        outcome = await scenario(setting)
        assert await server.own_databases() == []
    assert len(outcome.bars) == bars
    assert all(bar.value > 0 for bar in outcome.bars)
    assert all(table.rows for table in outcome.tables)
