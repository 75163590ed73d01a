"""Maintenance mode: an operator lets pushes be buffered, or pops find nothing."""

from __future__ import annotations

import msgspec

from lockstep.core.wire.maintenance import MaintenanceAnswer, MaintenanceBody, maintenance_answer
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

_body = msgspec.json.Decoder(MaintenanceBody)


async def mode(node: Node, _: Request) -> Response:
    return answer(maintenance_answer(await node.engine.maintenance_mode()))


async def set_push_mode(node: Node, request: Request) -> Response:
    body = request.json(_body)
    return answer(maintenance_answer(await node.engine.set_maintenance_mode(push=body.enabled)))


async def set_pop_mode(node: Node, request: Request) -> Response:
    body = request.json(_body)
    return answer(maintenance_answer(await node.engine.set_maintenance_mode(pop=body.enabled)))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/system/maintenance",
        endpoint=mode,
        summary="Maintenance mode, and what the answering server buffers",
        right="admin",
        answers=MaintenanceAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/system/maintenance",
        endpoint=set_push_mode,
        summary="Let all servers buffer pushes, or drain what they buffered",
        right="admin",
        body=MaintenanceBody,
        answers=MaintenanceAnswer,
    ),
    Route(
        method="GET",
        path="/api/v1/system/maintenance/pop",
        endpoint=mode,
        summary="The same as of /api/v1/system/maintenance",
        right="admin",
        answers=MaintenanceAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/system/maintenance/pop",
        endpoint=set_pop_mode,
        summary="Let pops of all servers find nothing, or go on",
        right="admin",
        body=MaintenanceBody,
        answers=MaintenanceAnswer,
    ),
]
