"""Rights of roles of the database, on queues by pattern (sql/procedures/role_rule.sql)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from lockstep.core.rights import parse_rule
from lockstep.storage.postgres import sql

_GRANT: sql.Procedure[bool] = sql.procedure("grant_right")
_REVOKE: sql.Procedure[bool] = sql.procedure("revoke_right")
_LIST = """
select r.role, r.right_name, r.pattern, r.created_at, to_regrole(quote_ident(r.role)) is not null as exists
from lockstep.role_rule r where $1::text is null or r.role = $1 order by r.role, r.pattern, r.right_name
"""


class RoleRule(msgspec.Struct, frozen=True, kw_only=True):
    """A right of a role on the queues of a pattern."""

    role: str
    right: str
    pattern: str
    created_at: datetime
    exists: bool
    """Whether there is such a role now."""


def rights_of(rule: str) -> tuple[list[str], str]:
    """The rights that a rule names, and its pattern. Raises InvalidRequest."""
    _, pattern = parse_rule(rule)
    return rule.split()[0].split(","), pattern


async def grant(connection: asyncpg.Connection[Any], rights: Sequence[str], pattern: str, role: str) -> list[str]:
    """Grant rights to a role; returns those that it did not have."""
    return await _each(connection, _GRANT, rights, pattern, role)


async def revoke(connection: asyncpg.Connection[Any], rights: Sequence[str], pattern: str, role: str) -> list[str]:
    """Revoke rights from a role; returns those that it had."""
    return await _each(connection, _REVOKE, rights, pattern, role)


async def _each(
    connection: asyncpg.Connection[Any], procedure: sql.Procedure[bool], rights: Sequence[str], pattern: str, role: str
) -> list[str]:
    async with connection.transaction():
        calls = [(right, procedure(right=right, pattern=pattern, role=role)) for right in rights]
        return [right for right, call in calls if await connection.fetchval(call.sql, *call.args)]


async def rules(connection: asyncpg.Connection[Any], role: str | None = None) -> list[RoleRule]:
    return [
        RoleRule(role=of, right=right, pattern=pattern, created_at=created_at, exists=exists)
        for of, right, pattern, created_at, exists in await connection.fetch(_LIST, role)
    ]
