"""The caller's identity and rights; API keys, and the audit log."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from lockstep.core.rights import RIGHTS
from lockstep.core.wire import access as wire
from lockstep.core.wire.pages import Limit
from lockstep.core.wire.times import timestamp
from lockstep.engine.checks import check_limit
from lockstep.errors import ApiKeyNotFound
from lockstep.server.auth.callers import NOBODY
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

_key_body = msgspec.json.Decoder(wire.KeyBody)


class KeysQuery(Struct, frozen=True):
    after: str | None = None
    """The id of a key; keys after it are listed."""
    limit: Limit = 100


class AuditQuery(Struct, frozen=True):
    who: str | None = None
    """The name of a key, or the subject of a token."""
    queue: str | None = None
    act: str | None = None
    """The verb, such as `seek`."""
    before: str | None = None
    """The id of an entry; entries before it are listed."""
    limit: Limit = 100


async def whoami(node: Node, request: Request) -> Response:
    caller = request.caller or NOBODY
    expires_at = None if caller.expires_at is None else timestamp(datetime.fromtimestamp(caller.expires_at, UTC))
    return answer(
        wire.WhoAmIAnswer(
            auth_required=node.guards.authentication.required,
            name=caller.name,
            kind=caller.kind,
            role=caller.role,
            rights=[right for right in RIGHTS if right in caller.rights.everywhere],
            rules=list(caller.rights.rules),
            expires_at=expires_at,
        )
    )


async def keys(node: Node, request: Request) -> Response:
    query = request.query(KeysQuery)
    check_limit(query.limit, node.config)
    return answer(wire.keys_answer(await node.engine.keys(after=query.after, limit=query.limit), limit=query.limit))


async def create_key(node: Node, request: Request) -> Response:
    key = wire.new_key(request.json(_key_body))
    return answer(wire.created_key_answer(await node.engine.create_key(key)))


async def revoke_key(node: Node, request: Request) -> Response:
    key_id = request.parameters["key"]
    if not await node.engine.revoke_key(key_id):
        raise ApiKeyNotFound(f"there is no valid key {key_id!r}", id=key_id)
    return answer(wire.RevokeKeyAnswer(key_id))


async def audit(node: Node, request: Request) -> Response:
    query = request.query(AuditQuery)
    check_limit(query.limit, node.config)
    entries = await node.engine.audit(
        who=query.who or None,
        queue=query.queue or None,
        act=query.act or None,
        before=query.before or None,
        limit=query.limit,
    )
    return answer(wire.audit_answer(entries, limit=query.limit))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/whoami",
        endpoint=whoami,
        summary="Who the caller is, and what they may do",
        right="browse",
        answers=wire.WhoAmIAnswer,
        personal=True,
    ),
    Route(
        method="GET",
        path="/api/v1/keys",
        endpoint=keys,
        summary="API keys, revoked and expired ones, too",
        right="admin",
        query=KeysQuery,
        answers=wire.KeysAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/keys",
        endpoint=create_key,
        summary="Make an API key; its text is in this answer alone",
        right="admin",
        body=wire.KeyBody,
        answers=wire.CreatedKeyAnswer,
    ),
    Route(
        method="DELETE",
        path="/api/v1/keys/:key",
        endpoint=revoke_key,
        summary="Revoke an API key",
        right="admin",
        answers=wire.RevokeKeyAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/audit",
        endpoint=audit,
        summary="Administrative acts, newest first",
        right="admin",
        query=AuditQuery,
        answers=wire.AuditAnswer,
    ),
]
