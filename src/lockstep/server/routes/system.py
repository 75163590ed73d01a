"""The server as a whole: its settings, and the consistency of the stored data."""

from __future__ import annotations

import msgspec

from lockstep.config import MEANINGS, sources
from lockstep.core.wire.system import SettingsAnswer, VerifyAnswer, VerifyBody, settings_answer, verify_answer
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Route

_verify_body = msgspec.json.Decoder(VerifyBody)


async def settings(node: Node, _: Request) -> Response:
    return answer(settings_answer(node.config.shown(), sources(node.config), MEANINGS))


async def verify(node: Node, request: Request) -> Response:
    body = request.json(_verify_body)
    return answer(verify_answer(await node.engine.verify(queue=body.queue)))


ROUTES = [
    Route(
        method="GET",
        path="/api/v1/system/settings",
        endpoint=settings,
        summary="The settings in force, and where each comes from",
        right="admin",
        answers=SettingsAnswer,
    ),
    Route(
        method="POST",
        path="/api/v1/system/verify",
        endpoint=verify,
        summary="Check every invariant of what is stored; it reads everything",
        right="admin",
        body=VerifyBody,
        body_required=False,
        answers=VerifyAnswer,
    ),
]
