"""Checks of this machine: Python, Java, the data directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from lockstep.cli.checks.findings import CheckResult, fail, ok, warn
from lockstep.storage.postgres.embedded import default_data_dir

_PYTHON_MIN = (3, 11)
_JAVA_MIN = 17
_JAVA_TIMEOUT_SECONDS = 20
_GIB = 1024**3
_FREE_BYTES_FAIL, _FREE_BYTES_WARN = _GIB // 2, 5 * _GIB
_JAVA_ADVICE = f"Only Spark needs it: install Java {_JAVA_MIN} or newer, or set JAVA_HOME."
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def check_python() -> CheckResult:
    text = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < _PYTHON_MIN:
        return fail("python", text, f"Use Python {'.'.join(map(str, _PYTHON_MIN))} or newer.")
    return ok("python", text)


def check_java() -> CheckResult:
    program = _java()
    if program is None:
        return warn("java", "not found", _JAVA_ADVICE)
    try:
        said = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return warn("java", f"{program} does not run: {error}", _JAVA_ADVICE)
    version = _JAVA_VERSION.search(said.stderr + said.stdout)
    if said.returncode != 0 or version is None:
        return warn("java", f"{program} does not say its version", _JAVA_ADVICE)
    if int(version[1]) < _JAVA_MIN:
        return warn("java", f"{version[1]} at {program}", _JAVA_ADVICE)
    return ok("java", f"{version[1]} at {program}")


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")


def check_data_dir(data_dir: str | None) -> Iterator[CheckResult]:
    """The data directory of the embedded PostgreSQL."""
    path = (Path(data_dir) if data_dir else default_data_dir()).expanduser().resolve()
    existing = _existing(path)
    if not existing.is_dir():
        yield fail("data directory", f"{existing} is no directory", "Name another one with --data-dir.")
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        advice = "Give this user the right to write there, or name another one with --data-dir."
        yield fail("data directory", f"{existing} is not writable", advice)
    elif existing == path:
        yield ok("data directory", str(path))
    else:
        yield ok("data directory", f"{path}; the first start makes it")
    yield _check_space(existing)


def check_spool_dir(path: Path) -> Iterator[CheckResult]:
    """The directory in which a server on an external PostgreSQL buffers pushes while PostgreSQL is unavailable. Without
    it, pushes are refused."""
    existing = _existing(path)
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield warn("spool directory", f"{existing} is not writable", "Name another one with LOCKSTEP_SPOOL_DIR.")
    else:
        yield ok("spool directory", str(path))
    yield _check_space(existing)


def _existing(path: Path) -> Path:
    """The directory, or the closest existing parent."""
    # Unlike Path.exists, this does not fail at a directory without read permission.
    return next(place for place in (path, *path.parents) if os.path.exists(place))


def _check_space(path: Path) -> CheckResult:
    free = shutil.disk_usage(path).free
    text = f"{free / _GIB:.1f} GiB free on the disk of {path}"
    if free < _FREE_BYTES_FAIL:
        return fail("disk", text, "Make room: PostgreSQL stops when the disk is full.")
    if free < _FREE_BYTES_WARN:
        return warn("disk", text, "Make room soon, or let queues remove old messages (retention).")
    return ok("disk", text)
