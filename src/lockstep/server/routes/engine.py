"""The engine's own verbs, for our client and command line: one POST for each row of core/wire/verbs.py.

The arguments are a JSON object, by name, and the answer contains the verb's result, both as msgspec encodes our
records: a verb takes and returns the same over HTTP as in the process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from lockstep.core.wire.verbs import VERBS, Verb, verb_path
from lockstep.engine.engine import Engine
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Endpoint, Route


def _arguments(verb: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    """The verb's arguments as a struct, from its signature."""
    hints = get_type_hints(verb)
    fields: list[Any] = []
    for parameter in list(inspect.signature(verb).parameters.values())[1:]:
        required = parameter.default is inspect.Parameter.empty
        kind = hints[parameter.name]
        fields.append((parameter.name, kind) if required else (parameter.name, kind, parameter.default))
    fields.sort(key=len)  # parameters without a default come first
    return msgspec.defstruct(f"{name.title().replace('_', '')}Arguments", fields, forbid_unknown_fields=True)


def _endpoint(name: str, arguments: type[msgspec.Struct]) -> Endpoint:
    decoder = msgspec.json.Decoder(arguments)
    needed = _needed(arguments)

    async def endpoint(node: Node, request: Request) -> Response:
        given = request.json(decoder) if needed else request.json_or(decoder, arguments())
        result = await getattr(node.engine, name)(**msgspec.structs.asdict(given))
        return answer({"result": result})

    return endpoint


def _needed(arguments: type[msgspec.Struct]) -> bool:
    """Whether there is an argument without a default."""
    return any(field.required for field in msgspec.structs.fields(arguments))


def _route(name: str, verb: Verb) -> Route:
    arguments = _arguments(getattr(Engine, name), name)
    return Route(
        method="POST",
        path=verb_path(name),
        endpoint=_endpoint(name, arguments),
        verb="ack" if name == "ack" else "other",
        summary=f"The engine's verb {name}",
        right=verb.right,
        body=arguments,
        body_required=_needed(arguments),
        answers=msgspec.defstruct(f"{name.title().replace('_', '')}Result", [("result", verb.result)]),
    )


ROUTES = [_route(name, verb) for name, verb in VERBS.items()]
