"""Commands on Spark: starting Spark, and selecting the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lockstep.cli.connection import Session, database_in
from lockstep.cli.output import at_screen, note
from lockstep.config import ENVIRONMENT_PREFIX
from lockstep.spark.session import LOCAL, check_spark, spark_session
from lockstep.storage.postgres.embedded import running_dsn
from lockstep.storage.postgres.key_files import with_stored_key

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import SparkSession

    from lockstep.spark.database import Access

F = TypeVar("F", bound=Callable[..., Any])

_EXECUTORS_NEED = ("encryption_key",)


def _setting(value: str) -> tuple[str, str]:
    """A setting of Spark as `key=value`."""
    name, equals, text = value.partition("=")
    if not (name.startswith("spark.") and equals):
        raise click.BadParameter(f"{value!r} is no setting of Spark; give one as spark.executor.memory=4g")
    return name, text


def spark_options(command: F) -> F:
    """Options for running Spark."""
    for option in (
        click.option(
            "--conf", type=_setting, multiple=True, metavar="KEY=VALUE", help="A setting of Spark; repeatable."
        ),
        click.option("--master", help=f"Where Spark runs; default $SPARK_MASTER, or else {LOCAL}."),
    ):
        command = option(command)
    return command


@dataclass
class RunningSpark:
    """A running Spark session and its database."""

    session: SparkSession
    access: Access
    stop: threading.Event = field(default_factory=threading.Event)


@contextmanager
def running(
    session: Session,
    name: str,
    master: str | None,
    conf: Sequence[tuple[str, str]],
    *,
    first: Callable[[psycopg.Connection[Any]], object] | None = None,
) -> Iterator[RunningSpark]:
    """Spark, within the context. Starting it takes long, so an unreachable database, and problems that `first` finds in
    it, are reported before."""
    check_spark()
    from lockstep.spark.database import Access

    with database_of(session) as dsn:
        access = Access(dsn=dsn)
        with access.connect() as connection:
            if first is not None:
                first(connection)
        if at_screen():
            note("starting Spark …")
        made = spark_session(f"lockstep {name}", master=master, conf=dict(conf), environment=_secrets(session, dsn))
        with made as spark:
            yield RunningSpark(spark, access)


def _secrets(session: Session, dsn: str) -> dict[str, str]:
    """The secrets that executors need, as variables, because executors cannot read the files of this machine."""
    config = with_stored_key(session.settings(), dsn)
    needed = {name: getattr(config, name) for name in _EXECUTORS_NEED}
    return {f"{ENVIRONMENT_PREFIX}{name.upper()}": value for name, value in needed.items() if value is not None}


@contextmanager
def database_of(session: Session) -> Iterator[str]:
    """The DSN of --dsn, --data-dir, LOCKSTEP_DSN, or of the server that runs on the default directory."""
    config = session.settings()
    with nullcontext(config.dsn) if session.data_dir is None else database_in(session.data_dir) as found:
        dsn = found or running_dsn(config.data_dir)
        if dsn is None:
            text = "Name the database: --dsn, LOCKSTEP_DSN or --data-dir. No server runs on the default data directory."
            raise click.UsageError(text)
        yield dsn
