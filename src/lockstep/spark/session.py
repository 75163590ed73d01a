"""A Spark session for jobs and pipelines: the same on a laptop and on a cluster, quiet, and offline if local.

Missing requirements (PySpark, a recent Java) are detected before Spark starts and reported in one sentence.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.errors import SparkUnavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
LOCAL = "local[*]"

_JAVA_TIMEOUT_SECONDS = 60
_VERSION = re.compile(r'version "(?:1\.)?([0-9]+)')
_INSTALL_JAVA = f"install Java {JAVA_VERSION_MIN} or newer (Debian: openjdk-17-jre-headless), or set JAVA_HOME to one"

# Only errors, on standard error. The two loggers are those of the program that PySpark starts: without a level of their
# own, it announces the level that it sets.
_LOGGING = """\
status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.repl.name = org.apache.spark.repl.Main
logger.repl.level = error
# A query that fails raises its error in whoever waits for it.
logger.query.name = org.apache.spark.sql.execution.streaming
logger.query.level = off
logger.task.name = org.apache.spark.executor
logger.task.level = off
logger.stage.name = org.apache.spark.scheduler
logger.stage.level = off
logger.write.name = org.apache.spark.sql.execution.datasources
logger.write.level = off
logger.abort.name = org.apache.spark.util.Utils
logger.abort.level = off
"""

# Spark puts a copy of PySpark before the installed one. It is a zip, which Python compiles again in every process, and
# Spark starts several for each query and one for each batch: each of them needed 0.7 seconds of CPU time for that.
_WORKER = """\
#!/bin/sh
paths=
IFS=:
for path in $PYTHONPATH; do
    case $path in
        */pyspark.zip | */py4j-*-src.zip) ;;
        *) paths=$paths${{paths:+:}}$path ;;
    esac
done
PYTHONPATH=$paths exec {python} "$@"
"""

_REDACTED = r"(?i)secret|password|passwd|token|access[.]?key|dsn|encryption_key"
"""Settings that Spark redacts: its own pattern and ours."""


@contextmanager
def spark_session(
    name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """A Spark session; an existing one, as under spark-submit, is used unchanged.

    The variables of `environment` are set for this process and for every executor; they may be secrets. Raises
    SparkUnavailable.
    """
    check_spark()
    from pyspark.sql import SparkSession

    with _variables(environment or {}):
        active = SparkSession.getActiveSession()
        if active is not None:
            yield active
            return
        check_java()
        with tempfile.TemporaryDirectory(prefix="lockstep-spark-") as folder:
            settings = _settings(master, Path(folder), environment or {}, conf or {})
            builder = SparkSession.builder.appName(name)
            for key, value in settings.items():
                builder = builder.config(key, value)
            with _variables(_workers(settings["spark.master"], Path(folder))):
                _start_apart(settings)
                session = builder.getOrCreate()
                try:
                    yield session
                finally:
                    session.stop()


def _start_apart(settings: Mapping[str, str]) -> None:
    """Start Spark's Java in a separate process group. Signals that systemd, `timeout` and terminals send to the whole
    group then reach only this program, which finishes its work first. Java reads from this program and ends with it."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        SparkContext._ensure_initialized(gateway=launch_gateway(conf, {"start_new_session": True}))  # type: ignore[no-untyped-call]


def check_spark() -> None:
    """Raises SparkUnavailable if PySpark is not installed."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        raise SparkUnavailable("PySpark is not installed: pip install 'lockstep[spark]'")


def check_java() -> None:
    """Raises SparkUnavailable if Java is missing or too old."""
    java = find_java()
    if java is None:
        home = os.environ.get("JAVA_HOME")
        none = f"JAVA_HOME, which is {home}, has none" if home else "there is none"
        raise SparkUnavailable(f"Spark needs Java, and {none}: {_INSTALL_JAVA}")
    version = java_version(java)
    if version < JAVA_VERSION_MIN:
        raise SparkUnavailable(f"{java} is Java {version}, which is too old for Spark: {_INSTALL_JAVA}")


def find_java() -> str | None:
    """The Java that Spark will use: that of JAVA_HOME, otherwise the first on the path."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")


def java_version(java: str) -> int:
    """The major version of a Java. Raises SparkUnavailable if it does not run."""
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SparkUnavailable(f"{java} does not run: {error}; {_INSTALL_JAVA}") from error
    found = _VERSION.search(said.stderr + said.stdout)
    if found is None:
        raise SparkUnavailable(f"{java} does not say which version it is; {_INSTALL_JAVA}")
    return int(found[1])


def _settings(
    master: str | None, folder: Path, environment: Mapping[str, str], conf: Mapping[str, str]
) -> dict[str, str]:
    """The settings for the session; given ones take precedence."""
    master = conf.get("spark.master") or master or os.environ.get("SPARK_MASTER") or LOCAL
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    settings = {
        "spark.master": master,
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging}",
        "spark.redaction.regex": _REDACTED,
        # Spark and its Python processes connect within 15 s by default, which may be too short on a busy machine.
        "spark.python.authenticate.socketTimeout": "60s",
        **(_local_settings(folder) if master.startswith("local") else {}),
    }
    settings.update({f"spark.executorEnv.{name}": value for name, value in environment.items()})
    return {**settings, **conf}


def _local_settings(folder: Path) -> dict[str, str]:
    """For one machine: nothing listens on other interfaces, and temporary files are deleted at the end."""
    return {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder),
        "spark.sql.shuffle.partitions": str(max(os.cpu_count() or 1, 2)),
    }


def _workers(master: str, folder: Path) -> dict[str, str]:
    """On one machine Spark's Python processes must use this Python, which has this package."""
    if not master.startswith("local") or "PYSPARK_PYTHON" in os.environ:
        return {}
    return {"PYSPARK_PYTHON": worker_program(folder)}


def worker_program(folder: Path) -> str:
    """The Python program for Spark: with the installed PySpark instead of Spark's own copy."""
    program = folder / "python"
    program.write_text(_WORKER.format(python=shlex.quote(sys.executable)))
    program.chmod(0o700)
    # The file system of the temporary files may be mounted without execution.
    return str(program) if os.access(program, os.X_OK) else sys.executable


@contextmanager
def _variables(environment: Mapping[str, str]) -> Iterator[None]:
    """Environment variables set within the context: the JVM and its workers inherit them."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
