"""The engine's verbs as they are, for our own SDK and command line: one POST per verb.

The arguments are a JSON object, by name, and the answer holds the verb's result, both as msgspec writes our records:
what a verb takes and gives in the process, it takes and gives over HTTP. Push, pop, ack and renew have routes of
their own, which cost less; an ack of every kind is here, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from lockstep.engine.engine import Engine
from lockstep.server.exchange import Request, Response, answer
from lockstep.server.node import Node
from lockstep.server.routing import Endpoint, Level, Route

_LEVELS: dict[str, Level] = {
    "configure": "rw",
    "update_queue": "rw",
    "delete_queue": "admin",
    "clear": "admin",
    "queues": "ro",
    "queue": "ro",
    "partitions": "ro",
    "partition": "ro",
    "stats": "ro",
    "has_pending": "ro",
    "ack": "rw",
    "subscribe": "rw",
    "set_subscription": "rw",
    "seek": "rw",
    "delete_group": "admin",
    "groups": "ro",
    "lag": "ro",
    "spark_streams": "ro",
    "forget_spark_stream": "admin",
    "accept_spark_stream": "admin",
    "depth": "ro",
    "messages": "ro",
    "message": "ro",
    "trace": "ro",
    "namespaces": "ro",
    "tasks": "ro",
    "overview": "ro",
    "remove_message": "rw",
    "retry_message": "rw",
    "bury_message": "rw",
    "record_trace": "rw",
    "traces_of_message": "ro",
    "traces_by_name": "ro",
    "trace_names": "ro",
    "register_stream_query": "rw",
    "stream_state": "ro",
    "schedules": "ro",
    "schedule": "ro",
    "cancel_schedule": "rw",
    "reschedule": "rw",
    "set_cron": "rw",
    "crons": "ro",
    "cron": "ro",
    "enable_cron": "rw",
    "remove_cron": "rw",
    "dead_letters": "ro",
    "dead_letter": "ro",
    "redrive": "rw",
    "redrive_queue": "rw",
    "purge": "admin",
    "operations": "ro",
    "operation": "ro",
    "operation_stats": "ro",
    "retry_operation": "rw",
    "maintenance_mode": "admin",
    "set_maintenance_mode": "admin",
    "retry_rejected": "admin",
    "accept_buffer_loss": "admin",
    "leases": "ro",
    "utilisation": "ro",
    "verify": "admin",
    "repair": "admin",
    "duties": "ro",
    "samples": "ro",
    "sample_spans": "ro",
    "removals": "ro",
    "database_stats": "ro",
}
"""The verbs that have a route here."""


def _arguments(verb: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    """The verb's arguments as a struct, from its signature."""
    hints = get_type_hints(verb)
    fields: list[Any] = []
    for parameter in list(inspect.signature(verb).parameters.values())[1:]:
        required = parameter.default is inspect.Parameter.empty
        kind = hints[parameter.name]
        fields.append((parameter.name, kind) if required else (parameter.name, kind, parameter.default))
    fields.sort(key=len)  # those without a default come first
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


def _route(name: str, level: Level) -> Route:
    verb = getattr(Engine, name)
    arguments = _arguments(verb, name)
    return Route(
        method="POST",
        path=f"/api/v1/engine/{name}",
        endpoint=_endpoint(name, arguments),
        summary=f"The engine's verb {name}",
        level=level,
        body=arguments,
        body_required=_needed(arguments),
        answers=msgspec.defstruct(
            f"{name.title().replace('_', '')}Result", [("result", get_type_hints(verb)["return"])]
        ),
    )


ROUTES = [_route(name, level) for name, level in _LEVELS.items()]
