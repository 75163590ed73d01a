"""Which store an address means."""

from __future__ import annotations

import pytest

import lockstep
from lockstep import Batch, Engine, PopRequest, open_engine
from lockstep.errors import InvalidOption, InvalidRequest
from support.embedded_tools import reachable_directory


def test_everything_that_is_exported_exists() -> None:
    assert all(hasattr(lockstep, name) for name in lockstep.__all__)
    assert lockstep.__version__


async def test_memory_address_opens_a_store_of_its_own() -> None:
    async with open_engine("memory://") as engine, open_engine("memory://") as other:
        assert isinstance(engine, Engine)
        await engine.push([Batch.of("q", [b"1"])])
        [popped] = await engine.pop([PopRequest(queue="q")])
        assert popped.payloads() == [b"1"]
        assert await other.queues() == []


async def test_overrides_are_settings() -> None:
    async with open_engine("memory://", push_messages_max=1) as engine:
        with pytest.raises(InvalidRequest, match="at most 1"):
            await engine.push([Batch.of("q", [b"1", b"2"])])


def test_unknown_setting_fails_at_once() -> None:
    with pytest.raises(InvalidOption, match="no_such_setting"):
        open_engine("memory://", no_such_setting=1)


@pytest.mark.parametrize("address", ["", "redis://ann:s3cret@db", "memory", "postgresql", "host=db password=s3cret"])
def test_other_addresses_are_refused_without_being_repeated(address: str) -> None:
    with pytest.raises(InvalidRequest, match="memory:// or postgresql://") as caught:
        open_engine(address)
    assert "s3cret" not in str(caught.value)


async def test_postgres_address_opens_that_database(database_dsn: str) -> None:
    for _ in range(2):
        async with open_engine(database_dsn) as engine:
            await engine.push([Batch.of("q", [b"1"])])
            messages = (await engine.queue("q")).messages
    assert messages == 2


async def test_dsn_setting_is_used_without_an_address(database_dsn: str) -> None:
    async with open_engine(dsn=database_dsn) as engine:
        await engine.push([Batch.of("q", [b"1"])])
    async with open_engine(database_dsn) as engine:
        assert (await engine.queue("q")).messages == 1


async def test_without_any_address_an_embedded_server_keeps_the_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCKSTEP_DSN", raising=False)
    with reachable_directory() as directory:
        for count in (1, 2):
            async with open_engine(data_dir=directory / "data") as engine:
                await engine.push([Batch.of("q", [b"1"])])
                assert (await engine.queue("q")).messages == count
