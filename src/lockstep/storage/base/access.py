"""Access control: API keys, the audit log, and the queues that ids belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lockstep.core.access import ApiKey, AuditEntry, NewApiKey, NewAuditEntry, OwnedKind, StoredKey


class AccessControl(Protocol):
    """Keeps API keys and the audit log, and finds the queues that ids belong to."""

    async def create_key(self, key: NewApiKey, *, key_id: str, digest: bytes) -> ApiKey:
        """Store a key under its id, with the digest of its secret."""

    async def keys(self, *, after: str | None = None, limit: int = 100) -> list[ApiKey]:
        """Keys after the id `after`, by id, including revoked and expired ones."""

    async def find_keys(self, key_ids: Sequence[str]) -> list[StoredKey]:
        """The existing keys among these ids, including revoked and expired ones."""

    async def revoke_key(self, key_id: str) -> bool:
        """Revoke a key. False if there is none, or it is already revoked."""

    async def record_audit(self, entry: NewAuditEntry) -> None:
        """Add an entry to the audit log."""

    async def audit(
        self,
        *,
        who: str | None = None,
        queue: str | None = None,
        act: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[AuditEntry]:
        """Entries of the audit log before the entry with the id `before`, newest first."""

    async def prune_audit(self, seconds: float, *, limit: int) -> int:
        """Remove older entries, at most `limit`; returns how many."""

    async def queues_of(self, kind: OwnedKind, ids: Sequence[str]) -> dict[str, list[str]]:
        """The queues that ids belong to, by id; unknown ids are left out. Numeric ids are given as their digits."""
