"""API keys and the audit log: their records, and the format of a key.

A key is `lsk_<id>_<secret>`. The store keeps the id and the SHA-256 of the secret, so nobody can read the secret again.
The secret has 256 random bits; a slow hash is not needed.
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
"""Things that belong to queues. The first four are found by partition id, lease id, dead letter id, and id or name of a
stream query. `dead_queue` stands for the queues that the messages of a dead queue came from."""


class NewApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A request to create a key."""

    name: str
    """For people. Also the producer name of messages pushed with the key."""
    role: str | None = None
    rules: tuple[str, ...] = ()
    expires_at: datetime | None = None


class ApiKey(NewApiKey, frozen=True, kw_only=True):
    """A key as shown in lists."""

    id: str
    created_at: datetime
    revoked_at: datetime | None = None


class StoredKey(ApiKey, frozen=True, kw_only=True):
    """A key as the server checks it."""

    digest: bytes
    """SHA-256 of the secret."""


class CreatedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A new key and its text, which is shown only once."""

    key: ApiKey
    token: str


class NewAuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An administrative act."""

    who: str
    """The name of the key, or the subject of the token."""
    act: str
    """The verb."""
    queues: tuple[str, ...] = ()
    """The queues concerned; empty: the server as a whole."""
    outcome: Outcome
    detail: str | None = None
    """The arguments, without payloads; or the reason of the failure."""


class AuditEntry(NewAuditEntry, frozen=True, kw_only=True):
    id: str
    at: datetime


def key_text(key_id: str, secret: str) -> str:
    return f"{KEY_PREFIX}{key_id}_{secret}"


def parse_key(text: str) -> tuple[str, str] | None:
    """The id and secret of a key; None if the text is not a key."""
    key_id, separator, secret = text.removeprefix(KEY_PREFIX).partition("_")
    if not text.startswith(KEY_PREFIX) or not separator or len(key_id) != KEY_ID_LENGTH or not secret:
        return None
    return key_id, secret


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
