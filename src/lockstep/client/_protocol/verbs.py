"""Calls of the engine's verbs that have no route of their own (core/wire/verbs.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from lockstep.client._protocol.exchange import HttpAnswer, HttpRequest, check_finite, decoded, encoded
from lockstep.core.wire.verbs import VERBS, verb_path


class _Result(Struct):
    result: Raw = Raw(b"null")


_result = msgspec.json.Decoder(_Result)
_results = {name: msgspec.json.Decoder(verb.result) for name, verb in VERBS.items()}


def health() -> HttpRequest:
    """Whether a server is up. A server that buffers pushes while its database is away is up, although it is not
    ready.
    """
    return HttpRequest("GET", "/health")


def call(verb: str, arguments: Mapping[str, Any]) -> HttpRequest:
    if verb == "ping":
        return HttpRequest("GET", "/ready")
    given = {name: value for name, value in arguments.items() if value is not None}
    for name, value in given.items():
        check_finite(value, what=name)
    return HttpRequest("POST", verb_path(verb), encoded(given), VERBS[verb].repeatable)


def result_of(answer: HttpAnswer, verb: str) -> Any:
    if verb == "ping":
        return None
    raw = decoded(answer, _result).result
    return decoded(HttpAnswer(answer.status, bytes(raw)), _results[verb])
