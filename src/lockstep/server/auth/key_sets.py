"""The keys that verify tokens: from settings and files, and from an address that is polled.

A key set is small, is fetched over https without redirects, and by one task at a time. If it cannot be fetched, the
last one stays in use for some time, so that an outage of the issuer is not ours; after that its tokens are refused.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Sequence
from pathlib import Path

from lockstep.config import Config
from lockstep.errors import InvalidOption
from lockstep.server.auth.tokens import TokenKey, key_of_pem, key_of_secret, keys_of_set

logger = logging.getLogger("lockstep.server")

_BYTES_MAX = 256 * 1024
_FETCH_SECONDS_MAX = 5.0
_ASK_AGAIN_SECONDS = 10.0
"""Minimum interval between two fetches because of an unknown key or a failure."""


class TokenKeys:
    """All keys that verify tokens now."""

    def __init__(self, config: Config) -> None:
        """Raises InvalidOption."""
        self.generation = 0
        """Changes when a key may have been removed: tokens that were verified before are then verified again."""
        self._config = config
        self._source = config.auth_jwks
        self._fixed = _fixed_keys(config)
        self._set: list[TokenKey] = []
        self._fetched_at: float | None = None
        self._tried_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._tls = _tls(config)
        if self._source is not None and not self._is_remote:
            self._take(keys_of_set(_read(self._source, "auth_jwks"), "the file of auth_jwks"))

    @property
    def _is_remote(self) -> bool:
        return self._source is not None and "://" in self._source

    @property
    def any(self) -> bool:
        """Whether tokens are verified at all."""
        return bool(self._fixed) or self._source is not None

    def known(self) -> Sequence[TokenKey]:
        """The known keys. Starts to fetch the set again if it is due."""
        if self._source is None:
            return self._fixed
        age = None if self._fetched_at is None else time.monotonic() - self._fetched_at
        if (age is None or age > self._config.auth_jwks_refresh_seconds) and self._may_ask():
            self._begin()
        if age is not None and age > self._config.auth_jwks_seconds_max:
            return self._fixed
        return [*self._fixed, *self._set]

    async def renewed(self) -> Sequence[TokenKey]:
        """The keys for a token whose key is unknown: fetches the set again first, unless that was just done."""
        if self._source is not None and (self._fetching is not None or self._may_ask()):
            await asyncio.shield(self._begin())
        return self.known()

    async def close(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    def _may_ask(self) -> bool:
        return self._tried_at is None or time.monotonic() - self._tried_at > _ASK_AGAIN_SECONDS

    def _begin(self) -> asyncio.Task[None]:
        if self._fetching is None:
            self._fetching = asyncio.create_task(self._fetch(), name="fetch key set")
        return self._fetching

    async def _fetch(self) -> None:
        assert self._source is not None
        self._tried_at = time.monotonic()
        try:
            if self._is_remote:
                text = await _download(self._source, self._tls)
            else:
                text = await asyncio.to_thread(_read, self._source, "auth_jwks")
            self._take(keys_of_set(text, f"what {self._source} answers"))
        except Exception as error:
            # Whatever the failure, the known keys stay in use, and the log says why they are not updated.
            fields = {"action": "key_set_unavailable", "source": self._source, "error": str(error) or repr(error)}
            logger.warning("key_set_unavailable", extra=fields)
        finally:
            self._fetching = None

    def _take(self, keys: list[TokenKey]) -> None:
        if not keys:
            raise InvalidOption(f"{self._source} has no key that verifies RS256, ES256 or EdDSA")
        self._set = keys
        self._fetched_at = self._tried_at = time.monotonic()
        self.generation += 1


def _fixed_keys(config: Config) -> list[TokenKey]:
    keys = []
    if config.auth_jwt_secret is not None:
        keys.append(key_of_secret(config.auth_jwt_secret))
    if config.auth_jwt_public_key is not None:
        pem = _read(config.auth_jwt_public_key, "auth_jwt_public_key")
        keys.append(key_of_pem(pem, "the file of auth_jwt_public_key"))
    return keys


def _tls(config: Config) -> ssl.SSLContext | None:
    source = config.auth_jwks
    if source is None or "://" not in source:
        return None
    if not source.startswith("https://"):
        raise InvalidOption("auth_jwks is not valid: the address of a key set begins with https://")
    try:
        return ssl.create_default_context(cafile=config.auth_jwks_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidOption(f"the file of auth_jwks_ca_file cannot be read: {error}") from error


def _read(path: str, setting: str) -> bytes:
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidOption(f"the file of {setting}, {path!r}, cannot be read: {error.strerror}") from error
    if len(content) > _BYTES_MAX:
        raise InvalidOption(f"the file of {setting}, {path!r}, has more than {_BYTES_MAX} bytes")
    return content


async def _download(url: str, tls: ssl.SSLContext | None) -> bytes:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=_FETCH_SECONDS_MAX)
    async with (
        aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
        session.get(url, ssl=tls or True, allow_redirects=False) as response,
    ):
        if response.status != 200:
            raise InvalidOption(f"it answers {response.status}")
        content = bytearray()
        async for piece in response.content.iter_chunked(16 * 1024):
            content += piece
            if len(content) > _BYTES_MAX:
                raise InvalidOption(f"it has more than {_BYTES_MAX} bytes")
        return bytes(content)
