"""API keys, the audit log, and the queues that ids belong to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

import msgspec

from lockstep.core.access import ApiKey, AuditEntry, NewApiKey, NewAuditEntry, OwnedKind, StoredKey
from lockstep.core.ids import uuid7
from lockstep.storage.memory.state import State


class MemoryAccess:
    """API keys, the audit log, and owners."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._keys: dict[str, StoredKey] = {}
        self._audit: list[AuditEntry] = []
        """Oldest first."""

    async def create_key(self, key: NewApiKey, *, key_id: str, digest: bytes) -> ApiKey:
        given = msgspec.structs.asdict(key)
        self._keys[key_id] = StoredKey(**given, id=key_id, digest=digest, created_at=self._state.now())
        return _listed(self._keys[key_id])

    async def keys(self, *, after: str | None = None, limit: int = 100) -> list[ApiKey]:
        return [_listed(self._keys[one]) for one in sorted(self._keys) if one > (after or "")][:limit]

    async def find_keys(self, key_ids: Sequence[str]) -> list[StoredKey]:
        return [self._keys[one] for one in key_ids if one in self._keys]

    async def revoke_key(self, key_id: str) -> bool:
        key = self._keys.get(key_id)
        if key is None or key.revoked_at is not None:
            return False
        self._keys[key_id] = msgspec.structs.replace(key, revoked_at=self._state.now())
        return True

    async def record_audit(self, entry: NewAuditEntry) -> None:
        id = str(uuid7(time.time_ns()))
        self._audit.append(AuditEntry(**msgspec.structs.asdict(entry), id=id, at=self._state.now()))

    async def audit(
        self,
        *,
        who: str | None = None,
        queue: str | None = None,
        act: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[AuditEntry]:
        found = [
            one
            for one in reversed(self._audit)
            if who in (None, one.who)
            and act in (None, one.act)
            and (queue is None or queue in one.queues)
            and (before is None or one.id < before)
        ]
        return found[:limit]

    async def prune_audit(self, seconds: float, *, limit: int) -> int:
        until = self._state.now() - timedelta(seconds=seconds)
        old = [one for one in self._audit if one.at < until][:limit]
        self._audit = [one for one in self._audit if one not in old]
        return len(old)

    async def queues_of(self, kind: OwnedKind, ids: Sequence[str]) -> dict[str, list[str]]:
        found = {one: list(dict.fromkeys(self._owners(kind, one))) for one in ids}
        return {one: queues for one, queues in found.items() if queues}

    def _owners(self, kind: OwnedKind, id: str) -> Iterator[str]:
        state = self._state
        match kind:
            case "partition":
                if int(id) in state.partitions:
                    yield state.partitions[int(id)].queue.name
            case "lease":
                yield from (partition.queue.name for _, partition in state.leaseholders(id))
            case "dead_letter":
                if int(id) in state.dead_letters:
                    yield state.dead_letters[int(id)].partition.queue.name
            case "stream_query" | "stream_query_name":
                yield from (
                    query.asked.source_queue
                    for query in state.stream_queries.values()
                    if id == (str(query.id) if kind == "stream_query" else query.asked.name)
                )
            case "dead_queue":
                entries = state.dead_letters.values()
                yield from (one.partition.queue.name for one in entries if one.copy and one.copy[0].queue.name == id)


def _listed(key: StoredKey) -> ApiKey:
    fields = msgspec.structs.asdict(key)
    del fields["digest"]
    return ApiKey(**fields)
