"""API keys and the audit log: the records, and how a key is spelled.

A key is `lsk_<id>_<secret>`. The store has the id and the SHA-256 of the secret, which has 256 random bits, so that
nothing slower is needed; nobody can read the secret again.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Literal

import msgspec

KEY_PREFIX = "lsk_"
KEY_ID_LENGTH = 16
KEY_SECRET_BYTES = 32
KEY_NAME_LENGTH_MAX = 100
AUDIT_DETAIL_LENGTH_MAX = 2_000
AUDIT_QUEUES_MAX = 100

Outcome = Literal["done", "failed", "denied"]
OwnedKind = Literal["partition", "lease", "dead_letter", "stream_query", "stream_query_name", "dead_queue"]
"""What belongs to queues: by partition id, lease id, dead letter id, id or name of a stream query; and by the name of a
dead queue the queues that its messages came from."""


class NewApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key to be made."""

    name: str
    """For people; the producer's name on what is pushed with it."""
    role: str | None = None
    rules: tuple[str, ...] = ()
    expires_at: datetime | None = None


class ApiKey(NewApiKey, frozen=True, kw_only=True):
    """A key as it can be listed."""

    id: str
    created_at: datetime
    revoked_at: datetime | None = None


class StoredKey(ApiKey, frozen=True, kw_only=True):
    """A key as the server compares it."""

    digest: bytes
    """SHA-256 of the secret."""


class CreatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key with its text, which is shown this once."""

    key: ApiKey
    token: str


class NewAuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An administrative act."""

    who: str
    """The name of the key, or the subject of the token."""
    act: str
    """The verb."""
    queues: tuple[str, ...] = ()
    """Those that it concerned; none: the server as a whole."""
    outcome: Outcome
    detail: str | None = None
    """Its arguments, without payloads; or why it failed."""


class AuditEntry(NewAuditEntry, frozen=True, kw_only=True):
    id: str
    at: datetime


def key_text(key_id: str, secret: str) -> str:
    return f"{KEY_PREFIX}{key_id}_{secret}"


def parse_key(text: str) -> tuple[str, str] | None:
    """Id and secret of a key; None for what is no key."""
    key_id, separator, secret = text.removeprefix(KEY_PREFIX).partition("_")
    if not text.startswith(KEY_PREFIX) or not separator or len(key_id) != KEY_ID_LENGTH or not secret:
        return None
    return key_id, secret


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
