"""Whether the demo's numbers add up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lockstep.cli.demo.shop import Order


@dataclass(frozen=True)
class Counted:
    """The result of the checks at the end."""

    stored: Mapping[str, int]
    """Messages by queue."""
    dead: Mapping[str, int]
    """Dead letters by queue."""
    archived: Mapping[str, int]
    parcels: Mapping[str, Sequence[tuple[int, str | None]]]
    """What the warehouse received, by customer and in order: order numbers and traces."""
    windows: Mapping[str, int]
    """Orders in each window of the revenue, according to its last message."""


@dataclass(frozen=True)
class Check:
    """A sentence, and whether it is true."""

    text: str
    holds: bool


@dataclass(frozen=True)
class Ways:
    """The queues of the demo."""

    intake: str
    orders: Sequence[str]
    """In the order in which an order goes through them."""
    charged: str
    revenue: str
    delivery: str


def check(orders: Sequence[Order], found: Counted, ways: Ways) -> Iterator[Check]:
    yield from _check_once(orders, found, ways)
    yield from _check_way(orders, found, ways.orders)
    charged, told = found.stored.get(ways.charged, 0), sum(found.windows.values())
    text = f"{charged:,} charged orders are {told:,} in the {len(found.windows)} windows of {ways.revenue}"
    yield Check(text, charged == told)
    joined, shipped = found.stored.get(ways.delivery, 0), found.stored.get(ways.orders[-1], 0)
    yield Check(f"{shipped:,} parcels were joined with their charge: {joined:,} in {ways.delivery}", joined == shipped)
    archived, stored = sum(found.archived.values()), sum(found.stored.values())
    yield Check(f"the archive has all {stored:,} messages: {archived:,}", dict(found.archived) == dict(found.stored))


def _check_once(orders: Sequence[Order], found: Counted, ways: Ways) -> Iterator[Check]:
    pushed, repeated = found.stored.get(ways.intake, 0), sum(order.is_repeated for order in orders)
    text = f"{len(orders):,} orders were made, {repeated:,} of them twice, and {pushed:,} are in {ways.intake}"
    yield Check(text, pushed == len(orders) + repeated)
    kept = found.stored.get(ways.orders[0], 0)
    text = f"{ways.intake} → {ways.orders[0]}: {pushed:,} = {kept:,} passed on + {pushed - kept:,} that came again"
    yield Check(text, kept == len(orders))


def _check_way(orders: Sequence[Order], found: Counted, queues: Sequence[str]) -> Iterator[Check]:
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


def _expected(orders: Sequence[Order]) -> dict[str, list[tuple[int, str | None]]]:
    expected: dict[str, list[tuple[int, str | None]]] = defaultdict(list)
    for order in orders:
        if order.fate == "shipped":
            expected[order.customer].append((order.number, order.trace_id))
    return dict(expected)
