"""How a program of PostgreSQL becomes a child of ours that never outlives us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import ServerStartFailed
from lockstep.storage.postgres.embedded.accounts import Account

LAUNCHER = Path(__file__).with_name("launcher.py")
NO_GO = -1


def launch_command(
    program: Sequence[str | Path], account: Account, *, death_signal: int, go_fd: int = NO_GO
) -> list[str]:
    """Return the command that runs a program as the given user and signals it when our thread ends."""
    groups = ",".join(map(str, account.groups))
    credentials = f"{account.uid}:{account.gid}:{groups}" if account.is_other else "-"
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER)]
    return [*launcher, str(os.getpid()), str(death_signal), str(go_fd), credentials, *map(str, program)]


def clean_environment() -> dict[str, str]:
    """Return an environment in which no PG* variable, locale or time zone of the caller's has a say."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def run_program(program: Sequence[str | Path], account: Account, *, timeout: float, stdin: str = "") -> tuple[int, str]:
    """Run a program to its end; return its exit status and all that it printed."""
    command = launch_command(program, account, death_signal=signal.SIGKILL)
    try:
        done = subprocess.run(
            command,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd="/",
            env=clean_environment(),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise ServerStartFailed(f"{program[0]} did not end within {timeout:g} seconds.") from expired
    return done.returncode, done.stdout
