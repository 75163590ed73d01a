"""The OpenAPI document, derived from the routes, whose types are the only description of their input and output."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Struct

from lockstep.core.names import NAME_LENGTH_MAX
from lockstep.core.wire.queues import Options
from lockstep.server.routing import Route
from lockstep.version import VERSION

Schema = dict[str, Any]

_REFERENCE = "#/components/schemas/{name}"
_NAME = {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH_MAX}
_NUMBER = {"type": "string", "pattern": "^[0-9]{1,18}$"}
_NUMBERS = ("id", "partitionId")
"""Parameters that are ids."""
_PARAMETER = re.compile(r":(\w+)")


_DESCRIPTION = """Ordered message queues on PostgreSQL.

The names of query parameters and of fields in bodies may be written in camelCase or in snake_case. A name that does
not exist is refused with status 400, and the answer suggests the nearest one."""


class Error(Struct, omit_defaults=True):
    """An error. The code is stable; the text is for people."""

    error: str
    code: str
    details: dict[str, Any] | None = None
    request: str | None = None
    """The id of the request, to find it in the log."""


def document(routes: Iterable[Route]) -> Schema:
    """The OpenAPI 3.1 document of the routes."""
    routes = list(routes)
    types = list(_types(routes))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = {_key(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    _add_notes(components, types)
    _close(components, [route.body for route in routes if route.body is not None])
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, by_type, components)
        paths.setdefault(_PARAMETER.sub(r"{\1}", route.path), {})[route.method.lower()] = operation
    queries = {_component(by_type[_key(route.query)]) for route in routes if route.query is not None}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Lockstep",
            "version": VERSION,
            "description": _DESCRIPTION,
        },
        "paths": paths,
        "components": {
            "schemas": {name: schema for name, schema in components.items() if name not in queries},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _types(routes: Iterable[Route]) -> Iterator[Any]:
    """Every type of a request or an answer, once."""
    seen = {_key(Error)}
    yield Error
    for route in routes:
        for kind in (route.query, route.body, route.answers, *route.also.values()):
            if kind is not None and _key(kind) not in seen:
                seen.add(_key(kind))
                yield kind


def _key(kind: Any) -> str:
    """Generic types such as list[X] are created anew each time, so they are identified by their spelling."""
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) and not _is_generic(kind) else repr(kind)


def _is_generic(kind: Any) -> bool:
    return bool(getattr(kind, "__args__", None))


def _component(reference: Schema) -> str:
    return str(reference["$ref"].rpartition("/")[2])


# --- One operation ------------------------------------------------------------------------------------------


def _operation(route: Route, by_type: Mapping[str, Schema], components: Mapping[str, Schema]) -> Schema:
    noun = route.endpoint.__module__.rpartition(".")[2]
    operation: Schema = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": route.summary,
        "tags": [noun.replace("_", " ")],
        "parameters": [*_path_parameters(route), *_query_parameters(route, by_type, components)],
        "responses": _responses(route, by_type),
        "x-level": route.level,
        "x-rights": list(route.rights),
        "security": [] if route.right is None else [{}, {"bearer": []}],
    }
    if route.body is not None:
        schema = by_type[_key(route.body)]
        operation["requestBody"] = {
            "required": route.body_required,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _path_parameters(route: Route) -> Iterator[Schema]:
    for name in _PARAMETER.findall(route.path):
        yield {"name": name, "in": "path", "required": True, "schema": _NUMBER if name in _NUMBERS else _NAME}


def _query_parameters(
    route: Route, by_type: Mapping[str, Schema], components: Mapping[str, Schema]
) -> Iterator[Schema]:
    if route.query is None:
        return
    struct = components[_component(by_type[_key(route.query)])]
    for name, schema in struct["properties"].items():
        given = _without_null(schema)
        note = given.pop("description", None)
        parameter = {"name": name, "in": "query", "required": name in struct.get("required", ()), "schema": given}
        yield {**parameter, "description": note} if note else parameter


def _without_null(schema: Schema) -> Schema:
    """A query string cannot contain null, so a parameter that may be null is optional."""
    plain = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    if "anyOf" in plain:
        kinds = [kind for kind in plain.pop("anyOf") if kind != {"type": "null"}]
        plain = {**kinds[0], **plain} if len(kinds) == 1 else {"anyOf": kinds, **plain}
    if "enum" in plain:
        plain["enum"] = [value for value in plain["enum"] if value is not None]
    return plain


def _responses(route: Route, by_type: Mapping[str, Schema]) -> Schema:
    schema = None if route.answers is None else by_type[_key(route.answers)]
    responses = {str(route.status): _response("The answer.", route.media, schema)}
    if route.empty:
        responses["204"] = {"description": "There is nothing."}
    for status, kind in route.also.items():
        responses[str(status)] = _response("Not now.", "application/json", by_type[_key(kind)])
    responses["default"] = _response("An error.", "application/json", by_type[_key(Error)])
    return responses


def _response(text: str, media: str, schema: Schema | None) -> Schema:
    return {"description": text, "content": {media: {"schema": schema or {"type": "string"}}}}


# --- What the fields mean -----------------------------------------------------------------------------------


def _add_notes(components: Mapping[str, Schema], types: Iterable[Any]) -> None:
    """Add the docstring below each field, which msgspec does not know."""
    for struct in _structs(types):
        schema = components.get(struct.__name__)
        if schema is None or "properties" not in schema:
            continue
        names = {field.name: field.encode_name for field in msgspec.structs.fields(struct)}
        for field, note in _notes(struct).items():
            if field in names:
                schema["properties"][names[field]].setdefault("description", note)


def _close(components: Mapping[str, Schema], bodies: Iterable[Any]) -> None:
    """Declare that structs in a body have no other fields: a body with others is refused."""
    for struct in _structs([*bodies, Options]):
        if "properties" in components.get(struct.__name__, {}):
            components[struct.__name__]["additionalProperties"] = False


def _structs(types: Iterable[Any]) -> Iterator[type[Struct]]:
    """Every struct among the types, and in their fields."""
    seen: set[Any] = set()
    waiting = list(types)
    while waiting:
        kind = waiting.pop()
        waiting += getattr(kind, "__args__", ())
        if isinstance(kind, type) and issubclass(kind, Struct) and kind not in seen:
            seen.add(kind)
            yield kind
            waiting += [field.type for field in msgspec.structs.fields(kind)]


def _notes(struct: type[Struct]) -> dict[str, str]:
    """By field: its docstring, in the struct or in those that it extends."""
    notes: dict[str, str] = {}
    for kind in reversed(struct.__mro__):
        if issubclass(kind, Struct) and kind is not Struct:
            notes |= _own_notes(kind)
    return notes


def _own_notes(struct: type[Struct]) -> dict[str, str]:
    try:
        body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    except (OSError, TypeError, SyntaxError):
        return {}  # created at run time, or installed without its source
    notes: dict[str, str] = {}
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for field, below in pairwise(statements):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and _is_text(below):
            notes[field.target.id] = inspect.cleandoc(below.value.value)  # type: ignore[attr-defined]
    return notes


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
