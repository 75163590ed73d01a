"""`lockstep demo`: a shop that uses all of Lockstep, and checks its numbers at the end."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lockstep.cli.arguments import Seconds
from lockstep.cli.demo.checks import Counted, Ways, check
from lockstep.cli.demo.server import DemoServer, prepare, running_server
from lockstep.cli.demo.shop import CUSTOMERS, Customers, Order, Warehouse, make_orders
from lockstep.cli.on_spark import spark_options
from lockstep.cli.output import styled
from lockstep.errors import LockstepError
from lockstep.exit_codes import FAILED, INTERRUPTED
from lockstep.spark.session import check_java, check_spark, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.core.pipelines import PipelineStep
    from lockstep.spark.database import Access

DIRECTORY = ".lockstep/demo"
_TELL_SECONDS = 5.0
_PATIENCE_SECONDS = 300.0
_WINDOW_SECONDS = 10
_WINDOWS_SHOWN = 6


@click.command()
@click.option(
    "--orders", "count", type=click.IntRange(1, 1_000_000), default=2_000, show_default=True, help="How many."
)
@click.option("--seconds", type=Seconds(0, 86_400), default=60.0, show_default=True, help="Over which time.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(DIRECTORY),
    show_default=True,
    help="The demo's own directory, which it empties first.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=0, help="Where its server listens; default any free one."
)
@spark_options
@click.pass_context
def demo(
    ctx: click.Context,
    count: int,
    seconds: float,
    directory: Path,
    port: int,
    master: str | None,
    conf: Sequence[tuple[str, str]],
) -> None:
    """Run a demo shop, and check that the numbers add up.

    Customers push orders, some of them twice. A Spark pipeline drops the duplicates, validates, charges and ships the
    other orders from queue to queue, sums up the revenue in windows and joins parcels with charges. A warehouse
    receives the parcels. Finally, the messages are archived, counted and traced. Needs Spark (pip install
    'lockstep[spark]') and Java 17 or newer. Ctrl-C ends it.
    """
    check_spark()
    check_java()
    directory = directory.expanduser().resolve()
    prepare(directory)
    show = Show(make_orders(count), seconds, directory)
    show.introduce()
    try:
        with running_server(directory, port=port) as server:
            show.say_where(server)
            with spark_session("lockstep demo", master=master, conf=dict(conf)) as spark:
                show.run_pipeline(spark, server)
                holds = show.look_back(spark, server)
    except KeyboardInterrupt:
        click.echo("\nStopped before the end.")
        ctx.exit(INTERRUPTED)
    show.say_goodbye()
    if not holds:
        ctx.exit(FAILED)


@dataclass
class Show:
    """The demo, act by act."""

    orders: list[Order]
    seconds: float
    directory: Path
    parcels: dict[str, list[tuple[int, str | None]]] = field(default_factory=dict)
    began_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def introduce(self) -> None:
        bad = sum(order.fate != "shipped" for order in self.orders)
        twice = sum(order.is_repeated for order in self.orders)
        click.echo(
            f"A shop with {CUSTOMERS} customers: {len(self.orders):,} orders come in over {self.seconds:g} seconds,"
            f" {twice:,} of them twice.\n"
            "A pipeline on Spark drops those that came again, and validates, charges and ships the others, from queue\n"
            "to queue. Beside that it sums up the revenue in windows, and joins parcels with charges. The orders of a\n"
            f"customer stay in order, each has a trace, and {bad:,} of them are bad: those become dead letters.\n"
            "In the end we count."
        )

    def say_where(self, server: DemoServer) -> None:
        _head("The server")
        click.echo(f"It listens on {server.url}, and has a PostgreSQL of its own in {self.directory / 'data'}.")
        click.echo(f"Watch it from another terminal: {_program()} queues --url {server.url}")
        click.echo(
            "Spark starts now, which takes 10 to 30 seconds: it starts Java, and a Python for each source of a step.\n"
            "Warnings of Java can be ignored."
        )

    def run_pipeline(self, spark: SparkSession, server: DemoServer) -> None:
        """Raises KeyboardInterrupt if it was stopped early."""
        from lockstep.cli.demo.orders import INTAKE, SHIPPED, orders
        from lockstep.spark.database import Access
        from lockstep.spark.pipelines.running import RunOptions, run

        _head("The pipeline")
        click.echo(orders.draw())
        _head("Orders come in")
        click.echo(
            f"For {self.seconds:g} seconds. The six steps take what is there in batches, and an order goes through up\n"
            "to five of them: it is on its way for some seconds to half a minute, and so is the last one when the\n"
            "shop has closed. The numbers stay 0 until the first batches are done."
        )
        access = Access(dsn=server.dsn)
        stop, shop_closes = threading.Event(), threading.Event()
        customers = Customers(server.url, shop_closes, self.orders, seconds=self.seconds, queue=INTAKE)
        warehouse = Warehouse(server.url, shop_closes, queue=SHIPPED)
        watch = OrderWatch(access, customers, warehouse, len(self.orders), stop)
        _create(server, INTAKE)
        with _running(customers, warehouse, watch, closing=shop_closes):
            options = RunOptions(access=access, checkpoints=str(self.directory / "checkpoints"))
            run(orders, options, spark=spark, stop=stop)
        self.parcels = dict(warehouse.parcels)
        for part in (customers, warehouse, watch):
            if part.failure is not None:
                raise part.failure
        if not watch.ended:
            raise KeyboardInterrupt

    def look_back(self, spark: SparkSession, server: DemoServer) -> bool:
        """Archive, statistics, a trace, dead letters; and whether everything adds up."""
        from lockstep.cli.demo.orders import DELIVERY, INTAKE, ORDERS, PAYMENT, REVENUE, SHIPPED, SHIPPING
        from lockstep.spark.database import Access

        access = Access(dsn=server.dsn)
        queues = (INTAKE, ORDERS, PAYMENT, SHIPPING, SHIPPED, REVENUE, DELIVERY)
        ways = Ways(INTAKE, (ORDERS, PAYMENT, SHIPPING, SHIPPED), SHIPPING, REVENUE, DELIVERY)
        archived = self._archive(spark, access, queues)
        self._report(spark, access)
        self._trace(spark, access)
        dead = self._dead_letters(server, queues)
        stored = _stored(spark, access, queues)
        windows = self._revenue(spark, access, REVENUE)
        _head("Do the numbers add up?")
        checks = list(check(self.orders, Counted(stored, dead, archived, self.parcels, windows), ways))
        for one in checks:
            click.echo(f"{styled('yes', 'green') if one.holds else styled('NO ', 'bold red')}  {one.text}")
        holds = all(one.holds for one in checks)
        click.echo("\nEverything adds up." if holds else "\nNOT everything adds up.")
        return holds

    def _archive(self, spark: SparkSession, access: Access, queues: Sequence[str]) -> dict[str, int]:
        from lockstep.spark.jobs.archive import ArchiveOptions, job
        from lockstep.spark.jobs.archives import Selection, read_archive
        from lockstep.spark.jobs.files import ArchiveFolder
        from lockstep.spark.jobs.manifest import Manifest

        _head("The archive")
        location = str(self.directory / "archive")
        done = job(spark, ArchiveOptions(location=location, queues=tuple(queues), access=access))
        size = sum(one.bytes for one in done)
        files = sum(one.files for one in done)
        messages = sum(one.messages for one in done)
        click.echo(f"{messages:,} messages are in {files} Parquet files ({size / 1024:,.0f} KiB) under {location}.")
        with access.connect() as connection:
            archive = ArchiveFolder(spark, location)
            rows = read_archive(spark, archive, Manifest(connection, archive.location), Selection())
            return dict(rows.groupBy("queue").count().collect())

    def _report(self, spark: SparkSession, access: Access) -> None:
        from lockstep.spark.jobs.report import ReportSpan, read_windows, render
        from lockstep.spark.jobs.stats import StatsOptions, job

        _head("Statistics")
        done = job(spark, StatsOptions(access=access, from_at=self.began_at, window_seconds=_WINDOW_SECONDS))
        path = self.directory / "report.html"
        span = ReportSpan(done.from_at, done.to_at, done.window_seconds)
        with access.connect() as connection:
            path.write_text(render(read_windows(connection, span), span, title="Lockstep demo"), encoding="utf-8")
        click.echo(f"{done.windows:,} windows of {done.queues} queues were computed. The report with plots: {path}")

    def _trace(self, spark: SparkSession, access: Access) -> None:
        from lockstep.spark.jobs.traces import TraceOptions, job

        _head("The way of one order")
        order = next((order for order in reversed(self.orders) if order.fate == "shipped"), self.orders[-1])
        for trace in job(spark, TraceOptions(access=access, trace_id=order.trace_id)):
            click.echo(f"Trace {trace.trace_id}, order {order.number} of {order.customer}: {trace.status}")
            for step in trace.steps:
                click.echo(f"  +{step.elapsed_seconds:7.3f} s  {step.queue:<14} seq {step.seq:<6} {step.status}")

    def _revenue(self, spark: SparkSession, access: Access, queue: str) -> dict[str, int]:
        """Orders by window: for each key, the last message counts."""
        from lockstep.spark import inputs

        _head("Revenue")
        rows = inputs.latest(queue, payload_schema="orders bigint, total double").load(spark, access)
        windows = {row["partition"]: row["data"] for row in rows.orderBy("partition").collect()}
        for at, window in list(windows.items())[:_WINDOWS_SHOWN]:
            click.echo(f"  {at}  {window['orders']:>6,} orders  {window['total']:>12,.2f}")
        if len(windows) > _WINDOWS_SHOWN:
            click.echo(f"  and {len(windows) - _WINDOWS_SHOWN} windows more")
        return {at: window["orders"] for at, window in windows.items()}

    def _dead_letters(self, server: DemoServer, queues: Sequence[str]) -> dict[str, int]:
        import lockstep

        _head("Dead letters")
        dead: dict[str, int] = {}
        with lockstep.connect(server.url) as client:
            for queue in queues:
                page = client.dead_letters(queue=queue, limit=1)
                dead[queue] = page.total
                for letter in page.items:
                    click.echo(f"{page.total:>6,} in {queue}, such as: {letter.error}")
        return dead

    def say_goodbye(self) -> None:
        data = self.directory / "data"
        click.echo(f"\nAll of it is still there: {_program()} serve --data-dir {data}")


class OrderWatch(threading.Thread):
    """Reports the progress of the shop, and stops the pipeline when all orders are finished."""

    def __init__(
        self, access: Access, customers: Customers, warehouse: Warehouse, total: int, stop: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._access = access
        self._customers = customers
        self._warehouse = warehouse
        self._total = total
        self._stop_event = stop
        self._moved_at = time.monotonic()
        self._last: tuple[int, ...] = ()
        self.ended = False
        self.failure: LockstepError | None = None

    def run(self) -> None:
        try:
            with self._access.connect() as connection:
                self._watch(connection)
        except LockstepError as error:
            self.failure = error
        finally:
            self._stop_event.set()

    def _watch(self, connection: Any) -> None:
        from lockstep.spark.pipelines.status import list_steps

        told_at = 0.0
        while not self._stop_event.wait(0.25):
            steps = {one.step: one for one in list_steps(connection, "orders")}
            if time.monotonic() - told_at > _TELL_SECONDS:
                self._tell(steps)
                told_at = time.monotonic()
            if self._is_over(steps):
                self._tell(steps)
                self.ended = True
                return
            if self._customers.failure or self._warehouse.failure or self._hangs(steps):
                return

    def _is_over(self, steps: dict[str, PipelineStep]) -> bool:
        """Whether every order was passed on or rejected by each step that it reached."""
        expected = self._total
        for name in ("once", "validate", "charge", "ship"):
            if name not in steps or steps[name].pushed + steps[name].rejected < expected:
                return False
            expected = steps[name].pushed
        joined = "deliver" in steps and steps["deliver"].pushed >= expected
        summed = "revenue" in steps and steps["revenue"].lag == 0
        return joined and summed and self._warehouse.received >= expected

    def _hangs(self, steps: dict[str, PipelineStep]) -> bool:
        now = (*(one.pushed + one.rejected for one in steps.values()), self._warehouse.received, self._customers.pushed)
        if now != self._last:
            self._last, self._moved_at = now, time.monotonic()
        self.ended = time.monotonic() - self._moved_at > _PATIENCE_SECONDS  # the final count will show what is missing
        return self.ended

    def _tell(self, steps: dict[str, PipelineStep]) -> None:
        def said(name: str, verb: str) -> str:
            step = steps.get(name)
            if step is None:
                return f"0 {verb}"
            return f"{step.pushed:,} {verb}" + (f" ({step.rejected:,} rejected)" if step.rejected else "")

        verbs = {"once": "kept", "validate": "validated", "charge": "charged", "ship": "shipped", "deliver": "joined"}
        parts = [said(name, verb) for name, verb in verbs.items()]
        received = self._warehouse.received
        click.echo(f"{self._customers.pushed:,} ordered · {' · '.join(parts)} · {received:,} received")
        sys.stdout.flush()


@contextmanager
def _running(*parts: threading.Thread, closing: threading.Event) -> Iterator[None]:
    for part in parts:
        part.start()
    try:
        yield
    finally:
        closing.set()
        for part in parts:
            part.join(timeout=30)


def _create(server: DemoServer, queue: str) -> None:
    import lockstep

    with lockstep.connect(server.url) as client:
        client.configure(queue)


def _stored(spark: SparkSession, access: Access, queues: Sequence[str]) -> dict[str, int]:
    reader = spark.read.format("lockstep").options(dsn=access.dsn, queue=",".join(queues), columns="queue")
    return dict(reader.load().groupBy("queue").count().collect())


def _program() -> str:
    """How the user calls this program: by its name if it is found in the path, otherwise by its location."""
    here = Path(sys.executable).with_name("lockstep")
    if shutil.which("lockstep") or not here.exists():
        return "lockstep"
    return str(here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here)


def _head(text: str) -> None:
    click.echo(f"\n{styled(text, 'bold')}")
