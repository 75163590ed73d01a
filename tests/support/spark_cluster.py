"""A standalone cluster of Spark on this machine: a master, and two workers of one core each."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

BIN = Path(pyspark.__file__).parent / "bin"
START_SECONDS = 90
WORKERS = (1, 2)
EXECUTORS_HAVE: Mapping[str, str] = {
    "spark.executor.memory": "500m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "4",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.ui.enabled": "false",
}
"""Settings under which a program finds its place on such a cluster."""


@contextmanager
def running_cluster(folder: Path, variables: Mapping[str, str]) -> Iterator[str]:
    """The address of its master. `variables` are in the environment of its workers; their files are in `folder`."""
    environment = {
        **os.environ,
        **variables,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    on = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with ExitStack() as processes:
        master = ["org.apache.spark.deploy.master.Master", *on]
        processes.enter_context(_started(master, folder / "master.log", environment))
        url = _said(folder / "master.log", r"spark://127\.0\.0\.1:[0-9]+")
        for number in WORKERS:
            limits = ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / f"work{number}")]
            worker = ["org.apache.spark.deploy.worker.Worker", *on, *limits, url]
            processes.enter_context(_started(worker, folder / f"worker{number}.log", environment))
        for number in WORKERS:
            _said(folder / f"worker{number}.log", "Successfully registered with master")
        yield url


@contextmanager
def _started(arguments: Sequence[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(BIN / "spark-class"), *arguments], stdout=output, stderr=output, env=environment
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _said(log: Path, pattern: str) -> str:
    """What a log says, once it does."""
    deadline = time.monotonic() + START_SECONDS
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)
    return found[0]
