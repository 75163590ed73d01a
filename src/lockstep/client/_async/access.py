"""API keys and the audit log of a server, for administrators."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from lockstep.client._async.operations import AsyncOperations
from lockstep.core.access import ApiKey, AuditEntry, CreatedKey, NewApiKey


class AsyncAccess(AsyncOperations):
    """storage/base/access.py documents the verbs."""

    async def create_key(
        self, name: str, *, role: str | None = None, rules: Sequence[str] = (), expires_at: datetime | None = None
    ) -> CreatedKey:
        """Create an API key with a role (`admin`, `read-write`, `read-only`), with rules (`push,pop orders.*`), or
        both. The answer contains its text, which cannot be retrieved again."""
        key = NewApiKey(name=name, role=role, rules=tuple(rules), expires_at=expires_at)
        result: CreatedKey = await self._call("create_key", key=key)
        return result

    async def keys(self, *, after: str | None = None, limit: int = 100) -> list[ApiKey]:
        """API keys by id, after an id; including revoked and expired ones."""
        result: list[ApiKey] = await self._call("keys", after=after, limit=limit)
        return result

    async def revoke_key(self, key_id: str) -> bool:
        """Revoke a key; it stops working on all servers within 5 seconds. False if it does not exist or was already
        revoked."""
        return bool(await self._call("revoke_key", key_id=key_id))

    async def audit(
        self,
        *,
        who: str | None = None,
        queue: str | None = None,
        act: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[AuditEntry]:
        """Administrative acts, newest first, older than the entry with the id `before`."""
        result: list[AuditEntry] = await self._call("audit", who=who, queue=queue, act=act, before=before, limit=limit)
        return result
