"""The caller's identity, API keys and the audit log, on the wire."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from lockstep.core.access import ApiKey, AuditEntry, CreatedKey, NewApiKey, Outcome
from lockstep.core.rights import Right
from lockstep.core.wire.times import Time, parse_time_or_none, timestamp, timestamp_or_none


class WhoAmIAnswer(Struct, rename="camel"):
    auth_required: bool
    """Whether this server authenticates callers; if not, every caller may do everything."""
    name: str
    kind: str
    """`key`, `token` or `anonymous`."""
    role: str | None
    rights: list[Right]
    """Rights on all queues, and on everything that does not concern a single queue."""
    rules: list[str]
    """All rules, in the form `push,pop orders.*`."""
    expires_at: str | None


class KeyBody(Struct, rename="camel"):
    name: str
    """Name of the key's holder in the audit log, and producer name of messages pushed with the key."""
    role: str | None = None
    """Role on all queues: `admin`, `read-write` or `read-only`."""
    rules: list[str] = []
    """Rights on queues by pattern, in the form `push,pop orders.*`."""
    expires_at: Time | None = None
    """When the key expires; without it, the key is valid until it is revoked."""


class KeyRow(Struct, rename="camel"):
    id: str
    name: str
    role: str | None
    rules: list[str]
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class KeysAnswer(Struct, rename="camel"):
    keys: list[KeyRow]
    """Sorted by id; includes revoked and expired keys."""
    next_after: str | None
    """Cursor of the next page; null at the end."""


class CreatedKeyAnswer(Struct):
    key: KeyRow
    token: str
    """The text of the key, which is shown only once."""


class RevokeKeyAnswer(Struct):
    revoked: str
    """The id of the key. Other servers apply the revocation within 5 seconds."""


class AuditRow(Struct):
    id: str
    at: str
    who: str
    act: str
    queues: list[str]
    """Empty: the server as a whole."""
    outcome: Outcome
    detail: str | None


class AuditAnswer(Struct, rename="camel"):
    entries: list[AuditRow]
    """Newest first."""
    next_before: str | None
    """Cursor of the next page; null at the end."""


def new_key(body: KeyBody) -> NewApiKey:
    """Raises InvalidRequest."""
    expires_at = parse_time_or_none(body.expires_at, what="expiresAt")
    return NewApiKey(name=body.name, role=body.role, rules=tuple(body.rules), expires_at=expires_at)


def keys_answer(keys: Sequence[ApiKey], *, limit: int) -> KeysAnswer:
    return KeysAnswer([_key_row(key) for key in keys], keys[-1].id if len(keys) == limit else None)


def created_key_answer(made: CreatedKey) -> CreatedKeyAnswer:
    return CreatedKeyAnswer(_key_row(made.key), made.token)


def _key_row(key: ApiKey) -> KeyRow:
    return KeyRow(
        id=key.id,
        name=key.name,
        role=key.role,
        rules=list(key.rules),
        created_at=timestamp(key.created_at),
        expires_at=timestamp_or_none(key.expires_at),
        revoked_at=timestamp_or_none(key.revoked_at),
    )


def audit_answer(entries: Sequence[AuditEntry], *, limit: int) -> AuditAnswer:
    rows = [
        AuditRow(one.id, timestamp(one.at), one.who, one.act, list(one.queues), one.outcome, one.detail)
        for one in entries
    ]
    return AuditAnswer(rows, entries[-1].id if len(entries) == limit else None)
