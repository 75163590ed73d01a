"""HTTPS: what the server speaks, whose certificate it shows, and whom clients trust."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

import lockstep
from lockstep.errors import InvalidOption, Unavailable
from lockstep.server.tls import Certificate
from support.certificates import Authority
from support.http import Http, answers
from support.server import ServerProcess, running_server

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    cert_file, key_file = authority.sign()
    files = {"tls_cert_file": cert_file, "tls_key_file": key_file}
    limits = {"connections_max": 5, "request_timeout_seconds": 5, "pop_wait_seconds_max": 0.5}
    with running_server("memory://", tmp_path_factory.mktemp("secure"), **files, **limits) as server:
        assert server.url.startswith("https://localhost:")
        yield server


def _trusting(authority: Authority, *, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca_file)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


def _shaken(http: Http, context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(http.socket(), server_hostname="localhost")


def test_clients_with_the_authority_are_served(secure: ServerProcess, authority: Authority) -> None:
    with lockstep.connect(secure.url, ca_file=authority.ca_file) as client:
        client.push("tls", {"n": 1})
        assert [message.payload for message in client.pop("tls", auto_ack=True)] == [{"n": 1}]


async def test_clients_of_asyncio_are_served_too(secure: ServerProcess, authority: Authority) -> None:
    async with lockstep.connect_async(secure.url, ca_file=str(authority.ca_file)) as client:
        await client.push("tls-async", {"n": 1})
        assert [message.payload for message in await client.pop("tls-async", auto_ack=True)] == [{"n": 1}]


def test_clients_without_the_authority_do_not_trust_the_server(secure: ServerProcess) -> None:
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        lockstep.connect(secure.url, retry_attempts_max=1).open()


def test_command_line_takes_the_authority(secure: ServerProcess, authority: Authority) -> None:
    command = [sys.executable, "-m", "lockstep", "queues", "--url", secure.url, "--ca-file", str(authority.ca_file)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).returncode == 0
    refused = subprocess.run(command[:-2], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "certificate" in refused.stderr.lower()
    assert "--ca-file" in refused.stderr
    assert "is a server running" not in refused.stderr


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_authority_that_is_none_is_refused(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidOption, match="ca_file"):
        lockstep.connect("https://localhost:1", ca_file=file)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions_of_today_are_spoken(secure: ServerProcess, authority: Authority, version: ssl.TLSVersion) -> None:
    with _shaken(Http(secure.url), _trusting(authority, version=version)) as connection:
        for _ in range(2):
            connection.sendall(HEALTH)
            assert answers(connection, 1)[0][0] == 200


@pytest.mark.filterwarnings("ignore:.*TLSv1_1.*:DeprecationWarning")
def test_versions_of_old_are_not(secure: ServerProcess, authority: Authority) -> None:
    context = _trusting(authority)
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError)):
        _shaken(Http(secure.url), context)


def test_plain_http_is_not_answered(secure: ServerProcess) -> None:
    with closing(Http(secure.url).socket()) as connection:
        connection.sendall(HEALTH)
        assert not connection.recv(1000).startswith(b"HTTP/")


def test_request_right_behind_the_handshake_is_answered(secure: ServerProcess, authority: Authority) -> None:
    """It may arrive together with the end of the handshake."""
    for _ in range(20):
        with closing(Http(secure.url).socket()) as plain:
            inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
            shaking = _trusting(authority).wrap_bio(inward, outward, server_hostname="localhost")
            while True:
                try:
                    shaking.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    plain.sendall(outward.read())
                    received = plain.recv(65536)
                    assert received
                    inward.write(received)
            shaking.write(HEALTH)
            plain.sendall(outward.read())
            said = b""
            while not said:
                received = plain.recv(65536)
                assert received
                inward.write(received)
                try:
                    said = shaking.read(65536)
                except ssl.SSLWantReadError:
                    continue
            assert said.startswith(b"HTTP/1.1 200 ")


def test_body_that_is_refused_while_it_comes_is_told(secure: ServerProcess, authority: Authority) -> None:
    with _shaken(Http(secure.url), _trusting(authority)) as connection:
        connection.sendall(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{")
        assert answers(connection, 1)[0][0] == 413


def test_handshakes_that_do_not_end_are_limited(secure: ServerProcess, authority: Authority) -> None:
    """They count as connections, so the probe of a full server gets through, and they are given up."""
    http = Http(secure.url)
    with ExitStack() as stack:
        idle = [stack.enter_context(closing(http.socket())) for _ in range(100)]
        with _shaken(http, _trusting(authority)) as probe:
            probe.sendall(HEALTH)
            assert answers(probe, 1)[0][0] == 200
        for connection in idle:
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    with lockstep.connect(secure.url, ca_file=authority.ca_file) as client:
        client.push("after", 1)


# --- The files ----------------------------------------------------------------------------------------------


def _serial(certificate: Certificate, authority: Authority) -> str:
    """Of the certificate that a handshake shows."""
    here, there = socket.socketpair()

    async def shake() -> str:
        server = asyncio.create_task(_serve(there, certificate.context))
        _, writer = await asyncio.open_connection(sock=here, ssl=_trusting(authority), server_hostname="localhost")
        shown = writer.get_extra_info("peercert")["serialNumber"]
        writer.close()
        await server
        return str(shown)

    return asyncio.run(shake())


async def _serve(end: socket.socket, context: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    gone = loop.create_future()

    class Silent(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
            gone.set_result(None)

    await loop.connect_accepted_socket(Silent, end, ssl=context)
    await gone


def test_certificate_is_renewed_when_its_files_change(authority: Authority) -> None:
    cert_file, key_file = authority.sign("renewed")
    certificate = Certificate(str(cert_file), str(key_file))
    first = _serial(certificate, authority)
    assert certificate.renew() is False
    authority.sign("renewed")
    assert certificate.renew() is True
    assert certificate.renew() is False
    second = _serial(certificate, authority)
    assert first != second


@pytest.mark.parametrize("spoil", ["other key", "garbage", "gone"])
def test_files_that_do_not_fit_leave_the_certificate_as_it_is(authority: Authority, spoil: str) -> None:
    cert_file, key_file = authority.sign("kept")
    certificate = Certificate(str(cert_file), str(key_file))
    before, written = _serial(certificate, authority), key_file.read_bytes()
    if spoil == "other key":
        key_file.write_bytes(authority.sign("other")[1].read_bytes())
    elif spoil == "garbage":
        key_file.write_text("no key")
    else:
        key_file.unlink()
    assert certificate.renew() is False
    assert _serial(certificate, authority) == before
    key_file.write_bytes(written)
    assert certificate.renew() is True


def test_settings_of_the_files_are_checked_at_start(authority: Authority, tmp_path: Path) -> None:
    cert_file, key_file = authority.sign("checked")
    locked = authority.sign("locked", password=b"sesame")
    bad: list[dict[str, Path]] = [
        {"tls_cert_file": cert_file},
        {"tls_key_file": key_file},
        {"tls_cert_file": cert_file, "tls_key_file": locked[1]},
        {"tls_cert_file": locked[0], "tls_key_file": locked[1]},
        {"tls_cert_file": tmp_path / "none", "tls_key_file": key_file},
    ]
    for settings in bad:
        with pytest.raises(RuntimeError, match="tls_cert_file"), running_server("memory://", tmp_path, **settings):
            pass
