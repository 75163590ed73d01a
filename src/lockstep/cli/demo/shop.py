"""The ends of the demo's pipeline: customers who order, and a warehouse that receives the parcels, both using the
client.

They are ordinary users of the server: a producer, and a consumer group of its own.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import lockstep
from lockstep.core.messages import NewMessage
from lockstep.errors import LockstepError

CUSTOMERS = 40
UNREADABLE_EVERY, FREE_EVERY, DECLINED_EVERY = 53, 41, 23
"""Which orders are bad: unreadable, free, or paid with a card that is declined."""

REPEATED_EVERY = 29
"""Which orders are sent twice."""

_TICK_SECONDS = 0.25


@dataclass(frozen=True)
class Order:
    """One order and its expected outcome."""

    number: int
    customer: str
    trace_id: str

    @property
    def fate(self) -> str:
        if self.number % UNREADABLE_EVERY == 0 or self.number % FREE_EVERY == 0:
            return "invalid"
        return "declined" if self.number % DECLINED_EVERY == 0 else "shipped"

    @property
    def is_repeated(self) -> bool:
        return self.number % REPEATED_EVERY == 0

    def payload(self) -> dict[str, Any]:
        total: object = round(5 + self.number * 7.31 % 200, 2)
        if self.number % UNREADABLE_EVERY == 0:
            total = "a lot"
        elif self.number % FREE_EVERY == 0:
            total = 0
        card = "declined" if self.number % DECLINED_EVERY == 0 else "valid"
        return {"number": self.number, "customer": self.customer, "total": total, "card": card}

    def message(self, queue: str) -> NewMessage:
        return lockstep.new_message(
            queue, self.payload(), partition=self.customer, trace_id=self.trace_id, kind="order"
        )


def make_orders(count: int) -> list[Order]:
    """Numbered orders, distributed unevenly over the customers."""
    return [
        Order(number, f"customer-{(number * number + number // 7) % CUSTOMERS + 1}", str(uuid4()))
        for number in range(1, count + 1)
    ]


class ShopPart(ABC, threading.Thread):
    """A part of the shop that runs beside the pipeline until it is done or stopped."""

    def __init__(self, url: str, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._stop_event = stop
        self.failure: LockstepError | None = None

    def run(self) -> None:
        try:
            with lockstep.connect(self._url) as client:
                self.work(client)
        except LockstepError as error:
            self.failure = error

    @abstractmethod
    def work(self, client: lockstep.Client) -> None: ...


class Customers(ShopPart):
    """Push orders, spread over some seconds."""

    def __init__(self, url: str, stop: threading.Event, orders: list[Order], *, seconds: float, queue: str) -> None:
        super().__init__(url, stop)
        self._orders = orders
        self._seconds = seconds
        self._queue = queue
        self.pushed = 0

    def work(self, client: lockstep.Client) -> None:
        began = time.monotonic()
        for portion in self._portions():
            repeated = [order for order in portion if order.is_repeated]
            client.push_many([order.message(self._queue) for order in (*portion, *repeated)])
            self.pushed += len(portion)
            due = began + self._seconds * self.pushed / len(self._orders)
            if self._stop_event.wait(max(due - time.monotonic(), 0)):
                return

    def _portions(self) -> Iterator[list[Order]]:
        size = max(round(len(self._orders) * _TICK_SECONDS / max(self._seconds, _TICK_SECONDS)), 1)
        for start in range(0, len(self._orders), size):
            yield self._orders[start : start + size]


class Warehouse(ShopPart):
    """Receives parcels in order of arrival, by customer."""

    def __init__(self, url: str, stop: threading.Event, *, queue: str) -> None:
        super().__init__(url, stop)
        self._queue = queue
        self.parcels: dict[str, list[tuple[int, str | None]]] = defaultdict(list)
        """By customer: the numbers of their orders, with their traces."""

    @property
    def received(self) -> int:
        return sum(map(len, self.parcels.values()))

    def work(self, client: lockstep.Client) -> None:
        while not self._stop_event.is_set():
            batch = client.pop(
                self._queue, group="warehouse", batch=500, partitions=CUSTOMERS, wait=True, timeout_seconds=1
            )
            for message in batch:
                self.parcels[message.partition].append((message.payload["number"], message.trace_id))
            if batch:
                batch.ack()
