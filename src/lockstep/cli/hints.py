"""Commands in hints, in the form in which this program was started."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from lockstep.cli.connection import Session


def program() -> str:
    """The name `lockstep`, if the shell finds this program by it; otherwise its path, because .venv is in no PATH."""
    beside = Path(sys.executable).with_name("lockstep")
    found = shutil.which("lockstep")
    if not beside.is_file() or (found is not None and beside.samefile(found)):
        return "lockstep"
    return shlex.quote(str(beside))


def same_target(session: Session) -> str:
    """The options that select the command's target, for the next command. A DSN may contain a password."""
    if session.url is not None:
        return f" --url {shlex.quote(session.url)}"
    if session.data_dir is not None:
        return f" --data-dir {shlex.quote(session.data_dir)}"
    return " --dsn …" if session.dsn is not None else ""
