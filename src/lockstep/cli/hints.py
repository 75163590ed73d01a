"""Commands in hints, spelled for the way this program was started."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from lockstep.cli.connection import Session


def program() -> str:
    """The name `lockstep`, if a shell finds this one by it. Else its path: that in .venv is in no PATH."""
    beside = Path(sys.executable).with_name("lockstep")
    found = shutil.which("lockstep")
    if not beside.is_file() or (found is not None and beside.samefile(found)):
        return "lockstep"
    return shlex.quote(str(beside))


def same_target(session: Session) -> str:
    """The options that name what the command worked on, for the next one. A DSN may hold a password."""
    if session.url is not None:
        return f" --url {shlex.quote(session.url)}"
    if session.data_dir is not None:
        return f" --data-dir {shlex.quote(session.data_dir)}"
    return " --dsn …" if session.dsn is not None else ""
