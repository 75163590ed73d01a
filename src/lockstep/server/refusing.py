"""Pushes that a busy server refuses, without parsing them.

In a spike most requests are refused, and what that takes is missing for those that are not. Refusing a push the usual
way takes a parser, a task, and a body that is copied for nobody. So the bytes of a connection are looked at before all
that. Only what is plainly one push is refused here: a whole head, with a length, and with nothing that would have to be
understood. All else goes the usual way, and is refused there.
"""

from __future__ import annotations

import logging
import re

from lockstep.errors import Overloaded
from lockstep.server.exchange import answer
from lockstep.server.failures import error_content
from lockstep.server.node import Node

_METHOD, _PATH = "POST", "/api/v1/push"
_BEGINNING = b"POST /api/v1/push"
_HEAD = re.compile(rb"POST /api/v1/push(?:\?[!-~]*)? HTTP/1\.1\r\n(?:[!-9;-~]+:[\t -~]*\r\n)+\r\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r\n", re.IGNORECASE)
# A second length, another framing, an end of the connection, a client that waits to be asked for the body, or one that
# wants to find its own id in the answer.
_UNUSUAL = re.compile(
    rb"content-length:.*content-length:|transfer-encoding:|upgrade:|expect:|x-request-id:"
    rb"|\r\nconnection:(?![ \t]*keep-alive[ \t]*\r\n)",
    re.IGNORECASE | re.DOTALL,
)
_ANSWER = (
    b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\nretry-after: %d\r\n"
    b"access-control-allow-origin: *\r\nx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b"
)


class Refusing:
    """Refuses pushes to a node while it is busy."""

    def __init__(self, node: Node) -> None:
        self._node = node
        # Who logs every request wants to see these, too.
        self._is_logged = logging.getLogger("lockstep.server").isEnabledFor(logging.DEBUG)

    def refuse(self, data: bytes) -> tuple[bytes, int] | None:
        """If data begins with a push that is refused now, the answer, and how long the request is: what of it has not
        come yet is to be skipped. None for all else."""
        if not self._node.engine.is_busy("push") or not data.startswith(_BEGINNING) or self._is_logged:
            return None
        length = self._length(data)
        if length is None:
            return None
        try:
            self._node.engine.let_in_push()
        except Overloaded as error:
            return self._answer(error), length
        return None

    def _length(self, data: bytes) -> int | None:
        """Of a request that is plainly a push; None if it is not."""
        config = self._node.config
        head = _HEAD.match(data, 0, config.request_headers_bytes_max)
        if head is None or _UNUSUAL.search(data, 0, head.end()) is not None:
            return None
        length = _LENGTH.search(data, 0, head.end())
        if length is None or int(length[1]) > config.body_bytes_max:
            return None
        return head.end() + int(length[1])

    def _answer(self, error: Overloaded) -> bytes:
        body = answer(error_content(error)).body
        self._node.counters.requests[_METHOD, _PATH, error.status] += 1
        request_id = self._node.next_request_id().encode()
        return _ANSWER % (error.details["retry_after_seconds"], request_id, len(body), body)
