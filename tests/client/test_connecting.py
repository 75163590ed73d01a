"""What an address means to a client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import AsyncClient, Client, connect, connect_async
from lockstep.errors import InvalidOption, InvalidRequest, Unavailable
from lockstep.storage.postgres.store import PostgresStore
from support.databases import scratch_directory


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
    with scratch_directory() as directory:
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
def test_settings_without_effect_are_refused(make: Any) -> None:
    with pytest.raises(InvalidOption, match="statement_timeout_seconds: the server has these settings"):
        make("http://localhost:1", statement_timeout_seconds=5)
    with pytest.raises(InvalidRequest, match="token is for a server"):
        make("memory://", token="secret")
    with pytest.raises(InvalidRequest, match="ca_file is for a server"):
        make("memory://", ca_file="/etc/ca.pem")
    with pytest.raises(InvalidOption, match="ca_file"):
        make("https://localhost:1", ca_file="/nowhere")


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
        ("http://host:s3cret", "http://host:port"),
        ("http://host:99999", "http://host:port"),
        ("http://[::1", "http://host:port"),
        ("http://ho st:1", "http://host:port"),
        (5, "text, or a list of texts"),
        (b"http://host", "text, or a list of texts"),
        (["http://host", None], "text, or a list of texts"),
    ],
)
def test_other_addresses_are_refused_without_being_repeated(make: object, address: object, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as caught:
        make(address)  # type: ignore[operator]
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("make", [connect, connect_async])
@pytest.mark.parametrize("token", [5, "s3cret\nX-Role: admin", "schlüssel"])
def test_token_must_fit_into_a_header(make: object, token: object) -> None:
    with pytest.raises(InvalidRequest, match="token") as caught:
        make("http://localhost", token=token)  # type: ignore[operator]
    assert "s3cret" not in str(caught.value)


async def test_client_opens_once_the_database_is_there(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    async def away_at_first(store: PostgresStore) -> None:
        opened.append("tried")
        if len(opened) % 2:
            raise Unavailable("not yet")
        await open_store(store)

    open_store = PostgresStore.open
    monkeypatch.setattr(PostgresStore, "open", away_at_first)
    client = connect_async(database_dsn)
    with pytest.raises(Unavailable, match="not yet"):
        await client.push("q", 1)
    assert (await client.push("q", 1)).seq == 1
    await client.close()
    plain = connect(database_dsn)
    with pytest.raises(Unavailable, match="not yet"):
        plain.push("q", 2)
    assert plain.push("q", 2).seq == 2
    plain.close()


async def test_client_that_is_cancelled_while_it_opens_opens_later(database_dsn: str) -> None:
    client = connect_async(database_dsn)
    opening = asyncio.create_task(client.open())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert (await client.push("q", 1)).seq == 1
    await client.close()


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


@pytest.mark.parametrize("make", [connect, connect_async])
def test_setting_by_name_counts_for_a_server(make: Any) -> None:
    """An argument that is not given does not hide the setting behind it."""
    for arguments, seconds in (({}, 77.0), ({"timeout_seconds": 5.0}, 5.0)):
        client = make("http://localhost:1", client_timeout_seconds=77.0, **arguments)
        assert client._transport._timeout_seconds == seconds
