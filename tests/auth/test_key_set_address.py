"""A key set at an https address: what is taken from there, and what is not."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm

from lockstep.config import Config
from lockstep.server.auth import key_sets
from lockstep.server.auth.key_sets import TokenKeys

KEY = ec.generate_private_key(ec.SECP256R1())
SET = json.dumps({"keys": [{**ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "1"}]})
Answering = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory = tmp_path_factory.mktemp("certificate")
    (directory / "cert.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (directory / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return directory / "cert.pem", directory / "key.pem"


@asynccontextmanager
async def issuer(answering: Answering, certificate: tuple[Path, Path]) -> AsyncIterator[str]:
    """The address of a key set."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(*certificate)
    application = web.Application()
    application.router.add_get("/set", answering)
    application.router.add_get("/other", _whole)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}/set"
    finally:
        await runner.cleanup()


async def _whole(_: web.Request) -> web.StreamResponse:
    return web.Response(text=SET)


async def _large(_: web.Request) -> web.StreamResponse:
    return web.Response(text=SET + " " * 300_000)


async def _elsewhere(_: web.Request) -> web.StreamResponse:
    raise web.HTTPFound("/other")


async def _broken(_: web.Request) -> web.StreamResponse:
    return web.Response(text="no keys")


async def _never(_: web.Request) -> web.StreamResponse:
    return await asyncio.Future()  # ends with the server


async def _fetched(url: str, ca_file: Path | None) -> int:
    """How many keys are known after the address was asked."""
    keys = TokenKeys(Config(auth_jwks=url, auth_jwks_ca_file=None if ca_file is None else str(ca_file)))
    try:
        return len(await keys.renewed())
    finally:
        await keys.close()


async def test_key_set_is_taken_from_an_address_whose_authority_is_known(certificate: tuple[Path, Path]) -> None:
    async with issuer(_whole, certificate) as url:
        assert await _fetched(url, certificate[0]) == 1


@pytest.mark.parametrize("answering", [_large, _elsewhere, _broken, _never])
async def test_nothing_is_taken_from_an_address_that_misbehaves(
    certificate: tuple[Path, Path],
    answering: Answering,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(key_sets, "_FETCH_SECONDS_MAX", 0.3 if answering is _never else 30)
    async with issuer(answering, certificate) as url:
        with caplog.at_level(logging.WARNING, "lockstep.server"):
            assert await _fetched(url, certificate[0]) == 0
    assert "key_set_unavailable" in [record.getMessage() for record in caplog.records]


async def test_nothing_is_taken_from_an_address_whose_authority_is_not_known(certificate: tuple[Path, Path]) -> None:
    async with issuer(_whole, certificate) as url:
        assert await _fetched(url, None) == 0
