"""Identifies the caller of a request by its Authorization header; a key or token that was seen before is found in
memory.

Known keys are compared with the store every few seconds, all together and in the background, so a revocation reaches
every server within KEYS_SECONDS_MAX. While the database is away, known keys stay valid: no key can be revoked then, and
producers must be able to push into the buffer.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from lockstep.config import Config
from lockstep.core.access import KEY_PREFIX, StoredKey, digest_of, parse_key
from lockstep.core.rights import ROLES, Rights, rules_of
from lockstep.engine.engine import Engine
from lockstep.errors import InvalidOption, InvalidRequest, LockstepError, Unauthorized
from lockstep.server.auth.callers import ANYBODY, Caller
from lockstep.server.auth.key_sets import TokenKeys
from lockstep.server.auth.tokens import Expected, TokenKey, caller_of, candidates, claims_of, header_of

logger = logging.getLogger("lockstep.server")

KEYS_SECONDS = 2.0
"""Interval between two comparisons of the known keys with the store."""
KEYS_SECONDS_MAX = 4.0
"""A comparison older than this admits no caller."""
_REMEMBERED_MAX = 10_000
_IDS_AT_ONCE = 1_000
_LOOKUPS_MAX = 4
"""Maximum number of unknown keys that are looked up at a time, so that made-up keys cannot take more connections."""
_BEARER = b"bearer "
_INVALID_KEY = "the API key is not valid"


class Authentication:
    """Recognises callers."""

    def __init__(self, engine: Engine, config: Config) -> None:
        """Raises InvalidOption."""
        self.required = config.auth == "required"
        self._engine = engine
        self._tokens = TokenKeys(config)
        self._expected = Expected(config.auth_issuer, config.auth_audience, _roles(config.auth_roles_file))
        self._by_token: dict[bytes, Caller] = {}
        """By the digest of the token."""
        self._generation = self._tokens.generation
        self._keys: dict[str, tuple[StoredKey, Caller]] = {}
        self._asking = asyncio.Semaphore(_LOOKUPS_MAX)
        self._unknown: dict[str, float] = {}
        """When a key id was not found."""
        self._compared_at = time.monotonic()
        self._comparing: asyncio.Task[None] | None = None

    def recognise(self, header: bytes | None) -> Caller | None:
        """The caller; None if `identify` is needed. Raises Unauthorized."""
        if not self.required:
            return ANYBODY
        token = _bearer(header)
        if token.startswith(KEY_PREFIX):
            return self._by_key(token)
        return self._by_jwt(token)

    async def identify(self, header: bytes | None) -> Caller:
        """The caller, identified by the store or the issuer of tokens if need be. Raises Unauthorized, Unavailable."""
        token = _bearer(header)
        if token.startswith(KEY_PREFIX):
            return await self._find_key(token)
        return self._verified(token, candidates(header_of(token), await self._tokens.renewed()))

    async def check(self, caller: Caller) -> None:
        """Raises Unauthorized if the key or token of a caller that has waited is no longer valid."""
        _check_time(caller)
        if caller.key_id is not None:
            if time.monotonic() - self._compared_at > KEYS_SECONDS_MAX:
                await self._compare()
            known = self._keys.get(caller.key_id)
            if known is None or known[1] is not caller:
                raise Unauthorized(_INVALID_KEY)

    async def close(self) -> None:
        await self._tokens.close()
        if self._comparing is not None:
            await asyncio.wait([self._comparing])

    # Tokens

    def _by_jwt(self, token: str) -> Caller | None:
        if self._generation != self._tokens.generation:
            self._generation = self._tokens.generation
            self._by_token.clear()
        keys = self._tokens.known()
        caller = self._by_token.get(hashlib.sha256(token.encode()).digest())
        if caller is not None:
            _check_time(caller)
            return caller
        fitting = candidates(header_of(token), keys)
        return self._verified(token, fitting) if fitting else self._unverified()

    def _unverified(self) -> Caller | None:
        """No key matches; the issuer may have a new one."""
        if not self._tokens.any:
            raise Unauthorized("this server takes API keys, and no other tokens")
        return None

    def _verified(self, token: str, keys: Sequence[TokenKey]) -> Caller:
        caller = caller_of(claims_of(token, keys, self._expected), self._expected)
        if len(self._by_token) >= _REMEMBERED_MAX:
            self._by_token.clear()
        self._by_token[hashlib.sha256(token.encode()).digest()] = caller
        return caller

    # Keys

    def _by_key(self, token: str) -> Caller | None:
        parsed = parse_key(token)
        if parsed is None:
            raise Unauthorized(_INVALID_KEY)
        key_id, secret = parsed
        known = self._keys.get(key_id)
        now = time.monotonic()
        if known is None:
            missed_at = self._unknown.get(key_id)
            if missed_at is not None and now - missed_at < KEYS_SECONDS:
                raise Unauthorized(_INVALID_KEY)
            return None
        _check_secret(known[0], secret)
        age = now - self._compared_at
        if age > KEYS_SECONDS_MAX:
            return None
        if age > KEYS_SECONDS:
            self._begin_comparing()
        _check_time(known[1])
        return known[1]

    async def _find_key(self, token: str) -> Caller:
        parsed = parse_key(token)
        if parsed is None:
            raise Unauthorized(_INVALID_KEY)
        key_id, secret = parsed
        if key_id in self._keys:
            await self._compare()
        else:
            await self._learn(key_id)
        known = self._keys.get(key_id)
        if known is None:
            raise Unauthorized(_INVALID_KEY)
        _check_secret(known[0], secret)
        _check_time(known[1])
        return known[1]

    async def _learn(self, key_id: str) -> None:
        async with self._asking:
            found = await self._engine.find_keys([key_id])
        if not found or found[0].revoked_at is not None:
            if len(self._unknown) >= _REMEMBERED_MAX:
                self._unknown.clear()
            self._unknown[key_id] = time.monotonic()
            return
        if len(self._keys) >= _REMEMBERED_MAX:
            self._keys.pop(next(iter(self._keys)))
        if not self._keys:
            self._compared_at = time.monotonic()
        self._keys.setdefault(key_id, (found[0], _caller_of_key(found[0])))

    def _begin_comparing(self) -> asyncio.Task[None]:
        if self._comparing is None:
            self._comparing = asyncio.create_task(self._compare_all(), name="compare API keys")
        return self._comparing

    async def _compare(self) -> None:
        await asyncio.shield(self._begin_comparing())

    async def _compare_all(self) -> None:
        began = time.monotonic()
        try:
            ids = list(self._keys)
            for start in range(0, len(ids), _IDS_AT_ONCE):
                some = ids[start : start + _IDS_AT_ONCE]
                valid = {key.id for key in await self._engine.find_keys(some) if key.revoked_at is None}
                for key_id in some:
                    if key_id not in valid:
                        self._keys.pop(key_id, None)
        except LockstepError as error:
            fields = {"action": "keys_not_compared", "error": error.message, "code": error.code}
            logger.warning("keys_not_compared", extra=fields)
            began -= KEYS_SECONDS  # retried with the next request
        finally:
            self._compared_at = began
            self._comparing = None


def _bearer(header: bytes | None) -> str:
    if header is None:
        raise Unauthorized
    if header[: len(_BEARER)].lower() != _BEARER:
        raise Unauthorized("the Authorization header must be Bearer with an API key or a token")
    try:
        return header[len(_BEARER) :].strip().decode("ascii")
    except UnicodeDecodeError:
        raise Unauthorized("the token is neither an API key nor a JWT") from None


def _check_secret(key: StoredKey, secret: str) -> None:
    if not hmac.compare_digest(key.digest, digest_of(secret)):
        raise Unauthorized(_INVALID_KEY)


def _check_time(caller: Caller) -> None:
    if caller.expires_at is not None and time.time() >= caller.expires_at:
        what = "API key" if caller.kind == "key" else "token"
        raise Unauthorized(f"the {what} has expired")


def _caller_of_key(key: StoredKey) -> Caller:
    rights = rules_of([] if key.role is None else [key.role], key.rules)
    expires_at = None if key.expires_at is None else key.expires_at.timestamp()
    return Caller("key", key.name, rights, role=key.role, sub=key.name, key_id=key.id, expires_at=expires_at)


def _roles(path: str | None) -> dict[str, tuple[str, ...]]:
    """The roles of a file. Raises InvalidOption."""
    if path is None:
        return {}
    try:
        given = tomllib.loads(Path(path).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidOption(f"the file of auth_roles_file, {path!r}, cannot be read: {error}") from error
    roles: dict[str, tuple[str, ...]] = {}
    for role, rules in given.items():
        if role in ROLES:
            raise InvalidOption(f"the role {role!r} of auth_roles_file is there already")
        if not isinstance(rules, list):
            raise InvalidOption(f"the role {role!r} of auth_roles_file must be a list of rules")
        try:
            roles[role] = Rights(rules).rules
        except InvalidRequest as error:
            raise InvalidOption(f"the role {role!r} of auth_roles_file is not valid: {error.message}") from error
    return roles
