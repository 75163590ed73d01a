"""API keys, the audit log, and the queues that ids belong to."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from lockstep.core.access import ApiKey, AuditEntry, NewApiKey, NewAuditEntry, OwnedKind, StoredKey
from lockstep.core.ids import uuid7
from lockstep.storage.postgres.context import Context

_NOW = "coalesce({}::timestamptz, now())"
_COLUMNS = "id, name, role, rules, expires_at, created_at, revoked_at"
_CREATE = (
    "insert into lockstep.api_key (id, name, digest, role, rules, expires_at, created_at) "
    f"values ($1, $2, $3, $4, $5, $6, {_NOW.format('$7')}) returning {_COLUMNS}"
)
_LIST = f"select {_COLUMNS} from lockstep.api_key where id > coalesce($1, '') order by id limit $2"
_FIND = f"select {_COLUMNS}, digest from lockstep.api_key where id = any ($1::text[])"
_REVOKE = (
    f"update lockstep.api_key set revoked_at = {_NOW.format('$2')} where id = $1 and revoked_at is null returning id"
)
_RECORD = (
    "insert into lockstep.audit_entry (id, at, who, act, queues, outcome, detail) "
    f"values ($1, {_NOW.format('$2')}, $3, $4, $5, $6, $7)"
)
_AUDIT = """
select id, at, who, act, queues, outcome, detail from lockstep.audit_entry
where ($1::text is null or who = $1) and ($2::text is null or $2 = any (queues)) and ($3::text is null or act = $3)
  and ($4::uuid is null or id < $4)
order by id desc limit $5"""
_PRUNE = f"""
delete from lockstep.audit_entry where id in (
    select id from lockstep.audit_entry where at < {_NOW.format("$1")} - make_interval(secs => $2) order by at limit $3
) returning id"""

_OWNERS: dict[OwnedKind, str] = {
    "partition": """
        select p.id::text as id, q.name from lockstep.partition p join lockstep.queue q on q.id = p.queue_id
        where p.id = any ($1::bigint[])""",
    "lease": """
        select l.lease_id::text as id, q.name
        from (
            select lease_id, partition_id from lockstep.cursor where lease_id = any ($1::uuid[])
            union
            select lease_id, partition_id from lockstep.delivery where lease_id = any ($1::uuid[])
        ) l
        join lockstep.partition p on p.id = l.partition_id join lockstep.queue q on q.id = p.queue_id
        group by l.lease_id, q.name""",
    "dead_letter": """
        select d.id::text as id, q.name from lockstep.dead_letter d join lockstep.queue q on q.id = d.queue_id
        where d.id = any ($1::bigint[])""",
    "stream_query": "select id::text as id, source_queue from lockstep.stream_query where id = any ($1::bigint[])",
    "stream_query_name": "select name as id, source_queue from lockstep.stream_query where name = any ($1::text[])",
    "dead_queue": """
        select d.name as id, q.name
        from lockstep.queue d
        join lockstep.partition p on p.queue_id = d.id
        join lockstep.dead_letter l on l.copy_partition_id = p.id
        join lockstep.queue q on q.id = l.queue_id
        where d.name = any ($1::text[])
        group by d.name, q.name""",
}
_BY_NUMBER = ("partition", "dead_letter", "stream_query")


class PostgresAccess:
    """API keys, the audit log, and owners."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def create_key(self, key: NewApiKey, *, key_id: str, digest: bytes) -> ApiKey:
        rows = await self._context.database.fetch(
            "key_create",
            _CREATE,
            key_id,
            key.name,
            digest,
            key.role,
            list(key.rules),
            key.expires_at,
            self._context.now(),
        )
        return ApiKey(**_key(rows[0]))

    async def keys(self, *, after: str | None = None, limit: int = 100) -> list[ApiKey]:
        rows = await self._context.database.fetch("key_list", _LIST, after, limit)
        return [ApiKey(**_key(row)) for row in rows]

    async def find_keys(self, key_ids: Sequence[str]) -> list[StoredKey]:
        rows = await self._context.database.fetch("key_find", _FIND, list(key_ids))
        return [StoredKey(**_key(row)) for row in rows]

    async def revoke_key(self, key_id: str) -> bool:
        return bool(await self._context.database.fetch("key_revoke", _REVOKE, key_id, self._context.now()))

    async def record_audit(self, entry: NewAuditEntry) -> None:
        await self._context.database.fetch(
            "audit_record",
            _RECORD,
            uuid7(time.time_ns()),
            self._context.now(),
            entry.who,
            entry.act,
            list(entry.queues),
            entry.outcome,
            entry.detail,
        )

    async def audit(
        self,
        *,
        who: str | None = None,
        queue: str | None = None,
        act: str | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> list[AuditEntry]:
        last = None if before is None else UUID(before)
        rows = await self._context.database.fetch("audit_list", _AUDIT, who, queue, act, last, limit)
        return [_entry(row) for row in rows]

    async def prune_audit(self, seconds: float, *, limit: int) -> int:
        return len(
            await self._context.database.fetch("audit_prune", _PRUNE, self._context.now(), float(seconds), limit)
        )

    async def queues_of(self, kind: OwnedKind, ids: Sequence[str]) -> dict[str, list[str]]:
        wanted: list[Any] = [int(one) for one in ids] if kind in _BY_NUMBER else list(ids)
        found: dict[str, list[str]] = {}
        for one, queue in await self._context.database.fetch(f"owner_{kind}", _OWNERS[kind], wanted):
            found.setdefault(one, []).append(queue)
        return found


def _key(row: Any) -> dict[str, Any]:
    return {**row, "rules": tuple(row["rules"])}


def _entry(row: Any) -> AuditEntry:
    return AuditEntry(**{**row, "id": str(row["id"]), "queues": tuple(row["queues"])})
