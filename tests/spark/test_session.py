"""What Spark needs, and what is said when it is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep import errors
from lockstep.errors import JobFailed, QueueFull, SparkUnavailable
from lockstep.spark import session
from lockstep.spark.failures import explain
from lockstep.spark.session import check_java, find_java, java_version


def fake_java(folder: Path, says: str, *, code: int = 0) -> str:
    """A program called java."""
    java = folder / "bin" / "java"
    java.parent.mkdir(exist_ok=True)
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {code}\n")
    java.chmod(0o755)
    return str(java)


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_391"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g openjdk version "11.0.2"', 11),
    ],
)
def test_version_of_a_java(tmp_path: Path, says: str, version: int) -> None:
    assert java_version(fake_java(tmp_path, says)) == version


def test_java_that_is_missing_too_old_or_broken_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=r"there is none: install Java 17 or newer \(Debian: openjdk-17"):
        check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match=f"and JAVA_HOME, which is {tmp_path}, has none: install Java 17"):
        check_java()
    java = fake_java(tmp_path, 'openjdk version "11.0.2"')
    assert find_java() == java
    with pytest.raises(SparkUnavailable, match="is Java 11, which is too old for Spark"):
        check_java()
    fake_java(tmp_path, "no such library", code=1)
    with pytest.raises(SparkUnavailable, match="does not run"):
        check_java()
    fake_java(tmp_path, "hello")
    with pytest.raises(SparkUnavailable, match="does not say which version"):
        check_java()
    fake_java(tmp_path, 'openjdk version "17.0.1"')
    check_java()


def test_command_without_pyspark_says_what_to_install(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from lockstep.cli.main import main; main()"
    arguments = ["job", "archive", "q", "--to", str(tmp_path), "--dsn", "postgresql://nowhere/x"]
    said = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 1
    assert said.stderr == "Error: PySpark is not installed: pip install 'lockstep[spark]' (spark_unavailable)\n"


def test_settings_of_the_caller_win(tmp_path: Path) -> None:
    given = {"spark.master": "spark://host:7077", "spark.sql.session.timeZone": "Europe/Berlin"}
    settings = session._settings("local[1]", tmp_path, {"LOCKSTEP_DSN": "secret"}, given)
    assert settings["spark.master"] == "spark://host:7077"
    assert settings["spark.sql.session.timeZone"] == "Europe/Berlin"
    assert "spark.driver.bindAddress" not in settings
    assert settings["spark.executorEnv.LOCKSTEP_DSN"] == "secret"
    local = session._settings(None, tmp_path, {}, {})
    assert local["spark.master"] == "local[*]"
    assert local["spark.driver.bindAddress"] == "127.0.0.1"


def test_workers_take_pyspark_as_it_is_installed(tmp_path: Path) -> None:
    program = session.worker_program(tmp_path)
    given = "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9-src.zip:/a folder:/mine.zip"
    asked = "import os, sys; print(os.environ['PYTHONPATH'], sys.executable)"
    said = subprocess.run(
        [program, "-c", asked], env={"PYTHONPATH": given}, capture_output=True, text=True, timeout=60, check=True
    )
    assert said.stdout == f"/a folder:/mine.zip {sys.executable}\n"


def test_workers_are_who_the_user_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert session._workers("local[2]", tmp_path) == {"PYSPARK_PYTHON": str(tmp_path / "python")}
    assert session._workers("spark://head:7077", tmp_path) == {}
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert session._workers("local[2]", tmp_path) == {}


def test_error_of_ours_is_found_in_what_spark_raises() -> None:
    text = """[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was raised by the Python Proxy.
Traceback (most recent call last):
  File "x.py", line 1, in write
lockstep.errors.Unavailable: the database went away: closed

The above exception was the direct cause of the following exception:
lockstep.errors.QueueFull: queue 'q' is full: 3 of 3
SQLSTATE: XXKST"""
    found = explain(RuntimeError(text))
    assert isinstance(found, QueueFull)
    assert found.message == "queue 'q' is full: 3 of 3"
    other = explain(RuntimeError("[PATH_NOT_FOUND] Path does not exist: file:/x.\nmore"))
    assert isinstance(other, JobFailed)
    assert other.message == "Spark says: [PATH_NOT_FOUND] Path does not exist: file:/x."
    python = "[FAILED] Failed when: Traceback (most recent call last):\n  File x\n    y\nValueError: no number\n\tat Z"
    assert explain(RuntimeError(python)).message == "Spark says: ValueError: no number"
    java = "An error occurred while calling o1.x.\n: java.io.IOException: disk full\n\tat A.b(C.java:1)"
    assert explain(RuntimeError(java)).message == "Spark says: disk full"
    assert isinstance(explain(RuntimeError("lockstep.errors.annotations: x")), JobFailed)
    assert errors.JobFailed.code == "job_failed"
