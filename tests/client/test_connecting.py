"""What an address means to a client."""

from __future__ import annotations

from pathlib import Path

import pytest

import lockstep
from lockstep import AsyncClient, Client, connect, connect_async
from lockstep.errors import InvalidOption, InvalidRequest, Unavailable
from support.embedded_tools import reachable_directory


async def test_memory_is_a_store_of_the_clients_own() -> None:
    async with connect_async("memory://") as client, connect_async("memory://") as other:
        assert isinstance(client, AsyncClient)
        await client.push("q", 1)
        assert await other.queues() == []
    with connect("memory://") as client:
        assert isinstance(client, Client)
        client.push("q", 1)
        assert client.pop("q").payloads() == [1]


async def test_postgres_keeps_what_each_client_pushes(database_dsn: str) -> None:
    with connect(database_dsn) as client:
        client.push("q", 1)
    async with connect_async(database_dsn) as client:
        await client.push("q", 2)
        assert (await client.pop("q", batch=5)).payloads() == [1, 2]


def test_without_an_address_an_embedded_server_keeps_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_DSN", raising=False)
    with reachable_directory() as directory:
        for count in (1, 2):
            with connect(data_dir=directory / "data") as client:
                client.push("q", 1)
                assert client.queue("q").messages == count


async def test_client_opens_when_it_is_first_used_and_stays_closed() -> None:
    client = connect_async("memory://")
    await client.push("q", 1)
    await client.close()
    await client.close()
    with pytest.raises(Unavailable, match="closed"):
        await client.push("q", 1)
    plain = connect("memory://")
    plain.push("q", 1)
    plain.close()
    plain.close()
    with pytest.raises(Unavailable, match="closed"):
        plain.push("q", 1)


@pytest.mark.parametrize("make", [connect, connect_async])
@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("redis://ann:s3cret@db", "http://, https://, postgresql:// or memory://"),
        ("http://", "http://host:port"),
        ("http://ann:s3cret@host", "no user and password"),
        ("http://host?password=s3cret", "no query"),
        ("http://a,memory://", "http://host:port"),
        (["memory://", "http://a"], "http://host:port"),
        (["memory://", "memory://"], "several addresses"),
        ([], "no address"),
    ],
)
def test_other_addresses_are_refused_without_being_repeated(make: object, address: object, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as caught:
        make(address)  # type: ignore[operator]
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("make", [connect, connect_async])
@pytest.mark.parametrize("address", ["memory://", "http://localhost"])
def test_settings_are_checked_at_once(make: object, address: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no_such_setting"):
        make(address, no_such_setting=1)  # type: ignore[operator]
    with pytest.raises(InvalidOption, match="client_timeout_seconds"):
        make(address, timeout_seconds=-1)  # type: ignore[operator]
    (tmp_path / "lockstep.toml").write_text("client_retry_attempts_max = 0\n")
    with pytest.raises(InvalidOption, match="client_retry_attempts_max"):
        make(address, config_file=tmp_path / "lockstep.toml")  # type: ignore[operator]


def test_names_are_exported() -> None:
    assert {"connect", "connect_async", "new_message", "Client", "AsyncClient"} <= set(lockstep.__all__)
