"""Whether the demo's numbers add up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lockstep.cli.demo.shop import Order


@dataclass(frozen=True)
class Counted:
    """What was found when all was done."""

    stored: Mapping[str, int]
    """Messages by queue."""
    dead: Mapping[str, int]
    """Dead letters by queue."""
    archived: Mapping[str, int]
    parcels: Mapping[str, Sequence[tuple[int, str | None]]]
    """What the warehouse received, by customer and in this order: numbers of orders and their traces."""


@dataclass(frozen=True)
class Check:
    """A sentence, and whether it is true."""

    text: str
    holds: bool


def check(orders: Sequence[Order], found: Counted, queues: Sequence[str]) -> Iterator[Check]:
    """`queues` in the order in which an order goes through them."""
    pushed = found.stored.get(queues[0], 0)
    yield Check(f"{len(orders):,} orders were made, and {pushed:,} are in {queues[0]}", pushed == len(orders))
    for before, after in pairwise(queues):
        came, went, dead = found.stored.get(before, 0), found.stored.get(after, 0), found.dead.get(before, 0)
        text = f"{before} → {after}: {came:,} = {went:,} passed on + {dead:,} dead letters"
        yield Check(text, came == went + dead)
    for queue, fate in zip(queues, ("invalid", "declined"), strict=False):
        expected = sum(order.fate == fate for order in orders)
        yield Check(f"{expected:,} {fate} orders are the dead letters of {queue}", found.dead.get(queue) == expected)
    received = sum(map(len, found.parcels.values()))
    last = queues[-1]
    yield Check(f"the warehouse received {received:,} parcels, once each", received == found.stored.get(last, 0))
    text = f"the parcels of each of {len(found.parcels)} customers came in the order of their orders, with their traces"
    yield Check(text, _expected(orders) == {name: list(parcels) for name, parcels in found.parcels.items()})
    archived, stored = sum(found.archived.values()), sum(found.stored.values())
    yield Check(f"the archive has all {stored:,} messages: {archived:,}", dict(found.archived) == dict(found.stored))


def _expected(orders: Sequence[Order]) -> dict[str, list[tuple[int, str | None]]]:
    expected: dict[str, list[tuple[int, str | None]]] = defaultdict(list)
    for order in orders:
        if order.fate == "shipped":
            expected[order.customer].append((order.number, order.trace_id))
    return dict(expected)
