"""Messages of about 256 bytes, made before anything is measured."""

from __future__ import annotations

import json
import os
import random

MESSAGES = 20_000


class Messages:
    """The same messages as the bytes that we push and as the text that a plain INSERT takes."""

    def __init__(self, count: int = MESSAGES) -> None:
        self._random = random.Random(1)
        self.texts = [self._order(number) for number in range(count)]
        self.payloads = [text.encode() for text in self.texts]

    def batch(self, size: int) -> list[bytes]:
        start = self._start(size)
        return self.payloads[start : start + size]

    def text_batch(self, size: int) -> list[str]:
        start = self._start(size)
        return self.texts[start : start + size]

    def _start(self, size: int) -> int:
        return self._random.randrange(len(self.payloads) - size + 1)

    def _order(self, number: int) -> str:
        pick = self._random.randrange
        items = [{"sku": f"{self._random.getrandbits(32):08x}", "qty": pick(9)} for _ in range(3)]
        order = {
            "order_id": f"ORD-{number:010d}",
            "customer": f"cust_{pick(10**6)}",
            "amount": self._random.random() * 1000,
            "currency": "EUR",
            "status": "created",
            "items": items,
            "ts": 1_700_000_000 + self._random.random() * 10**7,
        }
        return json.dumps(order)


def transaction_ids(count: int) -> list[str]:
    """Random UUIDs of version 4, in canonical spelling, never the same twice."""
    digits = os.urandom(16 * count).hex()
    made = []
    for start in range(0, len(digits), 32):
        d = digits[start : start + 32]
        made.append(f"{d[:8]}-{d[8:12]}-4{d[13:16]}-a{d[17:20]}-{d[20:]}")
    return made
