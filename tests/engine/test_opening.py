"""Which store an address means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep import Batch, Engine, PopRequest, open_engine
from lockstep.config import Config
from lockstep.errors import InvalidOption, InvalidRequest
from lockstep.opening import spool_directory
from support.databases import scratch_directory


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
    with scratch_directory() as directory:
        for count in (1, 2):
            async with open_engine(data_dir=directory / "data") as engine:
                await engine.push([Batch.of("q", [b"1"])])
                assert (await engine.queue("q")).messages == count


def test_buffer_is_beside_the_data_or_where_state_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert spool_directory(Config(data_dir=str(tmp_path))) == tmp_path.resolve() / "spool"
    assert spool_directory(Config(dsn="postgresql://h/d")) == tmp_path / "state/lockstep/spool"
    assert spool_directory(Config(dsn="postgresql://h/d", spool_dir=str(tmp_path / "x"))) == tmp_path.resolve() / "x"
    assert spool_directory(Config(dsn="memory://")) is None
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert spool_directory(Config(dsn="postgresql://h/d")) == Path("/var/lib/lockstep/spool")


def test_import_needs_no_locks_on_files() -> None:
    """Machines without them run clients."""
    program = "import sys; sys.modules['fcntl'] = None; import lockstep; lockstep.connect('http://h')"
    subprocess.run([sys.executable, "-c", program], check=True)
