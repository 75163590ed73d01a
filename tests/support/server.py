"""A real server for tests: the ASGI application on uvicorn, in a process of its own, on a free loopback port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_MAIN = """
import sys
from lockstep.config import load
from lockstep.server.logs import log_to_stderr
from lockstep.server.serving import run, serve

if __name__ == "__main__":
    config = load(file=None)
    log_to_stderr(config)
    run(serve(config, announce=lambda url, address: print(url, flush=True)))
"""


@dataclass
class ServerProcess:
    """A server that runs."""

    url: str
    process: subprocess.Popen[str]
    dsn: str
    """Of its store."""

    def kill(self) -> None:
        """kill -9, of the server and its workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@contextmanager
def running_server(dsn: str, directory: Path, **settings: object) -> Iterator[ServerProcess]:
    """A server on a store, stopped at the end. Settings by name."""
    script = directory / "serve.py"
    script.write_text(_MAIN)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    environ |= {"LOCKSTEP_DSN": dsn, "LOCKSTEP_PORT": "0", "LOCKSTEP_SPOOL_DIR": str(directory / "spool")}
    environ |= {f"LOCKSTEP_{name.upper()}": str(value) for name, value in settings.items()}
    with (directory / "server.log").open("a") as log:
        process = subprocess.Popen(
            [sys.executable, str(script)],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        if not url:
            raise RuntimeError(f"the server did not start: {(directory / 'server.log').read_text()}")
        yield ServerProcess(url, process, dsn)
    finally:
        process.stdout.close()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        with suppress(ProcessLookupError):  # of a server that was killed, workers may be left
            os.killpg(process.pid, signal.SIGKILL)
