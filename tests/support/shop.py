"""A shop with everything a dashboard shows: queues that keep up and queues that do not, groups, leases, dead letters,
scheduled and recurring messages, traces, pipelines, and hours of history.

The tests of the dashboard and `make screenshots` look at the same one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from support.http import Http
from support.server import ServerProcess, running_server

ORDERS, PAYMENTS, SHIPMENTS = "shop.orders", "shop.payments", "shop.shipments"
MAIL, INVOICES, SEARCH, AUDIT = "mail.outbox", "billing.invoices", "search.index", "audit.events"
QUEUES = (ORDERS, PAYMENTS, SHIPMENTS, MAIL, INVOICES, SEARCH, AUDIT)
ERRORS = ("card declined: insufficient funds", "payment provider timed out after 30 s", "address has no postcode")
TOLD = 4
"""The number of an order that went through all queues, and of which consumers told."""
BACKLOG = 1_900
"""Payments that nobody has taken yet."""
_LATE = timedelta(minutes=24)
"""Since when the group of payments is too slow."""
_HISTORY = timedelta(hours=26)
_SAMPLE_STEP = timedelta(minutes=1)


@dataclass
class Shop:
    """What was put into a server, and what it is called."""

    http: Http
    traces: list[str] = field(default_factory=list)
    dead: int = 0

    def fill(self) -> None:
        self._queues()
        self._orders()
        self._work()
        self._backlog()
        self._others()
        self._schedules()
        self._trace_events()
        self._keys()

    def _queues(self) -> None:
        self._configure(ORDERS, retryLimit=2, retryDelay=30_000)
        self._configure(PAYMENTS, retryLimit=0, leaseTime=1800)
        self._configure(SHIPMENTS, onExhausted="stop", retryLimit=0)
        self._configure(MAIL, maxSize=40)
        self._configure(INVOICES, retentionEnabled=True, retentionSeconds=604_800)
        self._configure(SEARCH, groupMode="shared")
        self._configure(AUDIT, completedRetentionSeconds=86_400, retentionEnabled=True)

    def _configure(self, queue: str, **options: object) -> None:
        answer = self.http.post("/api/v1/configure", {"queue": queue, "options": options})
        assert answer.status == 200, answer.body

    def _orders(self) -> None:
        for number in range(120):
            trace = str(UUID(int=(0x0190A7C4_0000_7000_8000 << 48) + number))
            self.traces.append(trace)
            customer = f"customer-{number % 17:03d}"
            order = {
                "number": 1000 + number,
                "customer": {"name": f"Customer {number % 17}", "country": "DE"},
                "items": [{"sku": f"SKU-{number * 7 % 90:04d}", "quantity": 1 + number % 3}],
                "total": round(12.5 + number * 1.37, 2),
            }
            headers = {"x-channel": "web" if number % 3 else "app"}
            self.http.push(ORDERS, order, partition=customer, traceId=trace, kind="order.placed", headers=headers)
            payment = {"order": 1000 + number, "amount": order["total"], "method": "card"}
            self.http.push(PAYMENTS, payment, partition=customer, traceId=trace, kind="payment.requested")

    def _work(self) -> None:
        """Payments: most succeed, some become dead letters, some are being worked on. Orders: one group is done."""
        self._take(ORDERS, "checkout", 120)
        self._take(ORDERS, "analytics", 70)
        failing = iter([index % 9 == 3 for index in range(10_000)])
        for message in self._popped(PAYMENTS, "payments", 90):
            if next(failing):
                self.http.ack(message, "dlq", error=ERRORS[self.dead % len(ERRORS)])
                self.dead += 1
            else:
                self.http.ack(message)
                shipment = {"order": message["data"]["order"], "parcel": f"P{message['seq']:05d}"}
                trace = message["traceId"]
                self.http.push(SHIPMENTS, shipment, partition=message["partition"], traceId=trace, kind="parcel.packed")
        self.http.pop(PAYMENTS, consumerGroup="payments", batch=5, partitions=4)
        first = self.http.pop(SHIPMENTS, consumerGroup="carrier", batch=1)["messages"][0]
        self.http.ack(first, "failed", error="carrier refused the parcel: no customs form")
        self._take(SHIPMENTS, "carrier", 30)

    def _backlog(self) -> None:
        """More payments than the group of that name takes: as many as `age` says that came in the last minutes."""
        for start in range(0, BACKLOG, 500):
            items = [
                {
                    "queue": PAYMENTS,
                    "partition": f"customer-{number % 17:03d}",
                    "payload": {"order": 5000 + number, "amount": 20 + number % 90, "method": "card"},
                }
                for number in range(start, min(start + 500, BACKLOG))
            ]
            assert self.http.post("/api/v1/push", {"items": items}).status == 201

    def _take(self, queue: str, group: str, count: int) -> None:
        for message in self._popped(queue, group, count):
            self.http.ack(message)

    def _popped(self, queue: str, group: str, count: int) -> Iterator[dict[str, Any]]:
        taken = 0
        while taken < count:
            answer = self.http.get(f"/api/v1/pop/queue/{queue}", consumerGroup=group, batch=1)
            if answer.status == 204:
                return
            for message in answer.json()["messages"]:
                taken += 1
                yield message

    def _others(self) -> None:
        for number in range(38):
            self.http.push(MAIL, {"to": f"user{number}@example.com", "template": "receipt"}, partition=f"user-{number}")
        for number in range(12):
            self.http.push(INVOICES, {"invoice": number, "due": "2026-12-01"}, partition=f"account-{number % 4}")
            self.http.push(SEARCH, {"document": number}, partition="catalogue")
            self.http.push(AUDIT, {"actor": "checkout", "action": "order.placed", "n": number}, partition="web")
        self._take(INVOICES, "accounting", 12)
        self._take(AUDIT, "archiver", 12)
        self.http.pop(SEARCH, consumerGroup="indexer", batch=4, mode="shared")

    def _schedules(self) -> None:
        now = datetime.now(UTC)
        for minutes, what in ((4, "reminder"), (55, "follow-up"), (60 * 9, "newsletter"), (60 * 30, "renewal")):
            at = (now + timedelta(minutes=minutes)).isoformat()
            payload = {"template": what}
            self.http.push(INVOICES, payload, partition="account-1", deliverAt=at, scheduleKey=f"{what}-1")
        crons = (
            ("nightly-report", "0 2 * * *", "Europe/Berlin"),
            ("cart-reminders", "*/15 * * * *", "UTC"),
            ("monthly-invoices", "0 6 1 * *", "Europe/Berlin"),
        )
        for name, expression, timezone in crons:
            body = {
                "name": name,
                "queue": AUDIT,
                "expression": expression,
                "timezone": timezone,
                "payload": {"job": name},
            }
            assert self.http.post("/api/v1/crons", body).status == 200

    def _messages_of(self, trace: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get(f"/api/v1/traces/{trace}").json()["messages"]
        return found

    def _keys(self) -> None:
        keys = (("checkout-service", {"rules": ["push shop.*"]}), ("dashboard", {"role": "read-only"}))
        for name, rights in (*keys, ("old-worker", {"role": "read-write"})):
            made = self.http.post("/api/v1/keys", {"name": name, **rights})
            assert made.status == 200, made.body
        assert self.http.delete(f"/api/v1/keys/{made.json()['key']['id']}").status == 200
        self.http.post(f"/api/v1/consumer-groups/archiver/queues/{AUDIT}/seek", {"toEnd": True})

    def _trace_events(self) -> None:
        for message in [one for trace in (0, TOLD) for one in self._messages_of(self.traces[trace])]:
            for event, text in (("info", "validated"), ("step", f"stored in {message['queue']}")):
                body = {
                    "transactionId": message["transactionId"],
                    "partitionId": message["partitionId"],
                    "data": {"text": text},
                    "eventType": event,
                    "workerId": "worker-1",
                    "traceNames": ["checkout"],
                }
                assert self.http.post("/api/v1/traces", body).status in (200, 201)


@contextmanager
def running_shop(dsn: str, directory: Path, **settings: object) -> Iterator[tuple[ServerProcess, Shop]]:
    """A server with the shop. Another one fills it: this one must not remember what was young then."""
    with running_server(dsn, directory, **settings) as first:
        shop = Shop(Http(first.url))
        shop.fill()
    age(dsn)
    with running_server(dsn, directory, **settings) as server:
        shop.http = Http(server.url)
        yield server, shop


def age(dsn: str, *, seed: int = 7) -> None:
    """A day of samples, as the duty would have taken them; and what was stored is a while ago."""
    with psycopg.connect(dsn) as connection:
        _put_samples(connection, random.Random(seed))
        _put_server_samples(connection, random.Random(seed))
        # Something must be late: what has not been read was created a quarter of an hour ago.
        connection.execute("update lockstep.segment set created_at = created_at - interval '14 minutes'")
        _tell_traces(connection)
        _put_pipeline(connection)


def _tell_traces(connection: psycopg.Connection[Any]) -> None:
    """Orders take a while from queue to queue, and consumers told when they began."""
    for queue, later, began, ended in ((ORDERS, 0, 1.4, 2.9), (PAYMENTS, 3.1, 0.8, 4.9), (SHIPMENTS, 6.2, 3.6, 5.1)):
        connection.execute(
            "update lockstep.segment s set created_at = s.created_at + make_interval(secs => %s) "
            "from lockstep.queue q where q.id = s.queue_id and q.name = %s",
            (later, queue),
        )
        connection.execute(
            "update lockstep.trace_event e set created_at = s.created_at + "
            "make_interval(secs => case e.event_type when 'info' then %s else %s end) "
            "from lockstep.run r join lockstep.segment s on s.id = r.segment_id "
            "join lockstep.queue q on q.id = s.queue_id "
            "where r.partition_id = e.partition_id and e.seq between r.first_seq and r.last_seq and q.name = %s",
            (began, ended, queue),
        )


def _put_samples(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    rows: list[tuple[Any, ...]] = []
    for place, queue in enumerate(QUEUES):
        pending, scale = 0.0, (6.0, 4.2, 4.0, 1.6, 0.8, 2.7, 10.0)[place]
        at = now - _HISTORY
        while at < now:
            hour = at.hour + at.minute / 60
            wave = 1.1 + math.sin((hour - 8) / 24 * 2 * math.pi) + 0.25 * math.sin(hour * 2.1 + place)
            pushed = max(int(scale * 60 * wave * chance.uniform(0.85, 1.15)), 0)
            late = queue == PAYMENTS and now - at <= _LATE
            wait = BACKLOG * _SAMPLE_STEP / _LATE
            done = int(pushed - wait) if late else int(pushed * chance.uniform(0.97, 1.03) + pending * 0.7)
            done = min(done, int(pending) + pushed)
            pending = max(pending + pushed - done, 0)
            dead = int(at.minute % 3 == 0) if late else int(chance.random() > 0.985 and now - at > 2 * _LATE)
            lag = pending / max(done / 60, 1.0)
            rows.append((at, queue, 60.0, pushed, done, dead, int(pending), lag))
            at += _SAMPLE_STEP
    with (
        connection.cursor() as cursor,
        cursor.copy(
            "copy lockstep.sample (at, queue, seconds, pushed, completed, dead, pending, lag_seconds) from stdin"
        ) as copy,
    ):
        for row in rows:
            copy.write_row(row)


def _put_server_samples(connection: psycopg.Connection[Any], chance: random.Random) -> None:
    """What a server did that has stopped since."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    at = now - _HISTORY
    with (
        connection.cursor() as cursor,
        cursor.copy(
            "copy lockstep.server_sample "
            "(at, server, seconds, requests, client_errors, server_errors, queued, rejected, load) from stdin"
        ) as copy,
    ):
        while at < now:
            late = now - at <= _LATE
            failed = int(late and at.minute % 4 == 0)
            requests = int(60 * chance.uniform(35, 50))
            copy.write_row((at, "shop-1", 60.0, requests, chance.randrange(3), failed, 0, 0, chance.uniform(0.05, 0.3)))
            at += _SAMPLE_STEP


_STEPS = (
    ("validate", [ORDERS], [PAYMENTS], 1, 118, 2, 41.5, None),
    ("charge", [PAYMENTS], [SHIPMENTS], 2, 96, 9, 35.2, None),
    ("ship", [SHIPMENTS], [AUDIT], 3, 71, 0, 0.0, "java.net.SocketTimeoutException: carrier API did not answer"),
)


def _put_pipeline(connection: psycopg.Connection[Any]) -> None:
    for name, sources, sinks, batch, pushed, rejected, speed, error in _STEPS:
        connection.execute(
            "insert into lockstep.pipeline_step (pipeline, step, sources, sinks, group_name, query_id, started_at, "
            "seen_at, batch_id, committed_at, batch_pushed, batch_rejected, pushed, rejected, rows_per_second, error) "
            "values ('fulfilment', %s, %s, %s, null, %s, now() - interval '3 hours', now() + interval '1 hour', %s, "
            "now() - interval '4 s', 12, 0, %s, %s, %s, %s)",
            (name, sources, sinks, str(UUID(int=batch)), 400 + batch, pushed, rejected, speed, error),
        )
    connection.execute(
        "with batch as (insert into lockstep.archive_batch (archive, query, batch, begun_at, committed_at, messages) "
        "select 's3://shop-archive/orders', 'nightly', n, now() - make_interval(hours => 24 * n), "
        "now() - make_interval(hours => 24 * n) + interval '3 min', 2150000 - 40000 * n "
        "from generate_series(1, 3) n returning id) "
        "insert into lockstep.archive_file (batch_id, path, queue, day, messages, bytes, first_at, last_at) "
        "select b.id, q.queue || '/day', q.queue, current_date, 1000000, 61000000, now(), now() "
        "from batch b cross join unnest(%s::text[]) q (queue)",
        ([ORDERS, PAYMENTS],),
    )
    connection.execute(
        "insert into lockstep.stat_window (queue, group_name, window_seconds, window_start, computed_at) "
        "select %s, '', 3600, date_trunc('hour', now()) - make_interval(hours => n), now() - interval '12 min' "
        "from generate_series(1, 24) n",
        (ORDERS,),
    )
