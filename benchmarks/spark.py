"""The Spark benchmark: our source and sink against Spark's own JDBC ones, and pipelines against a stream that only
reads, on the same server in the same run.

    make bench-spark                        2,000,000 messages read, 1,000,000 written and run through
                                            pipelines; exit code 1 if a bar is missed
    make bench-spark ARGS=--short           a quick look; missed bars are printed and no failure
    make bench-spark ARGS="--only read"     one part: read, write or pipeline
    make bench-spark ARGS="--dsn postgresql://…"   in a database of yours, which must be empty

JDBC needs a driver in /usr/share/java/postgresql.jar (Debian: libpostgresql-jdbc-java), or where --jdbc-jar says.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from benchmarks import harness
from benchmarks.harness import Outcome, progress
from benchmarks.scenarios.spark_pipeline import spark_pipeline
from benchmarks.scenarios.spark_read import spark_read
from benchmarks.scenarios.spark_write import spark_write
from benchmarks.tcp_server import running_tcp_server
from lockstep.spark.session import spark_session
from lockstep.storage.postgres.store import PostgresStore

JDBC_JAR = Path("/usr/share/java/postgresql.jar")
READ_MESSAGES, WRITE_MESSAGES, PIPELINE_MESSAGES, SHORT_MESSAGES = 2_000_000, 1_000_000, 1_000_000, 100_000


def main() -> int:
    arguments = _arguments()
    if not arguments.jdbc_jar.is_file():
        progress(f"there is no JDBC driver {arguments.jdbc_jar}: install libpostgresql-jdbc-java, or name a jar")
        return 1
    with running_tcp_server(arguments.dsn) as dsn:
        asyncio.run(_migrate(dsn))
        outcomes = _run(dsn, arguments)
    result = f"spark.{arguments.only}" if arguments.only else "spark"
    environment = {**harness.environment(), "mode": "short" if arguments.short else "full"}
    bars = harness.report(result, outcomes, environment=environment)
    return 0 if arguments.short or all(bar.ok for bar in bars) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.spark", description="The Spark benchmark of Lockstep.")
    parser.add_argument("--short", action="store_true", help="a quick look: few messages, one round")
    parser.add_argument("--only", choices=["read", "write", "pipeline"], help="one part")
    parser.add_argument("--dsn", help="an empty database to use, as a URL with a host")
    parser.add_argument("--rounds", type=int, help="how often each is measured")
    parser.add_argument("--jdbc-jar", type=Path, default=JDBC_JAR, help="PostgreSQL's JDBC driver")
    return parser.parse_args()


def _run(dsn: str, arguments: argparse.Namespace) -> dict[str, Outcome]:
    short: bool = arguments.short
    tasks = os.cpu_count() or 2
    given: dict[str, Any] = {"rounds": arguments.rounds or (1 if short else 3), "tasks": tasks}
    conf = {"spark.jars": str(arguments.jdbc_jar), "spark.driver.memory": "2g"}
    outcomes: dict[str, Outcome] = {}
    with spark_session("lockstep-benchmark", master=f"local[{tasks}]", conf=conf) as spark, _executing(dsn) as execute:
        if arguments.only in (None, "read"):
            progress("read")
            count = SHORT_MESSAGES if short else READ_MESSAGES
            outcomes["read"] = spark_read(spark, dsn, _jdbc(dsn), count=count, **given)
        if arguments.only in (None, "write"):
            progress("write")
            count = SHORT_MESSAGES if short else WRITE_MESSAGES
            jdbc = {**_jdbc(dsn), "reWriteBatchedInserts": "true"}
            outcomes["write"] = spark_write(spark, dsn, jdbc, count=count, execute=execute, **given)
        if arguments.only in (None, "pipeline"):
            progress("pipeline")
            count = SHORT_MESSAGES if short else PIPELINE_MESSAGES
            outcomes["pipeline"] = spark_pipeline(spark, dsn, count=count, rounds=given["rounds"])
    return outcomes


async def _migrate(dsn: str) -> None:
    store = PostgresStore(dsn)
    await store.open()
    await store.close()


@contextmanager
def _executing(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection.execute


def _jdbc(dsn: str) -> dict[str, str]:
    parts = urlsplit(dsn)
    return {
        "url": f"jdbc:postgresql://{parts.hostname}:{parts.port or 5432}{parts.path}",
        "user": parts.username or "",
        "password": parts.password or "",
        "driver": "org.postgresql.Driver",
    }


if __name__ == "__main__":
    sys.exit(main())
