"""One Spark for all tests that need a JVM. Start-up takes seconds, so a worker starts it once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from lockstep.spark.session import worker_program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A JVM of the tests lives for seconds or minutes: what makes long runs fast makes them slow.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session", autouse=True)
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Python processes of every Spark that a test starts are this Python, and find the package as this process does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", worker_program(tmp_path_factory.mktemp("worker")))
        yield


def java_is_there() -> bool:
    return shutil.which("java") is not None or "JAVA_HOME" in os.environ


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark: two cores, no UI, UTC."""
    if not java_is_there():
        pytest.skip("Spark needs Java 17 or newer, and there is none")
    from pyspark.sql import SparkSession

    warehouse = tmp_path_factory.mktemp("warehouse")
    session = (
        SparkSession.builder.master("local[2]")
        .appName("lockstep-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(warehouse))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.python.authenticate.socketTimeout", "60s")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
