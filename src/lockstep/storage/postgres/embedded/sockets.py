"""The private directory of the server's socket. Its mode is what keeps strangers out of the database."""

from __future__ import annotations

import contextlib
import os
import shutil
import string
import tempfile
from pathlib import Path

from lockstep.storage.postgres.embedded.accounts import Account
from lockstep.storage.postgres.embedded.directory import PORT
from lockstep.storage.postgres.embedded.failures import unusable

PATH_BYTES_MAX = 107
# A comma separates hosts in a DSN and directories in a setting; anything unusual gets a plain path instead.
PATH_LETTERS = frozenset(string.ascii_letters + string.digits + "/._-+~@")
SHORT_PREFIX = "lockstep-"
PRIVATE_DIRECTORY = 0o040700


def make_socket_dir(data_dir: Path, account: Account, *, previous: Path) -> Path:
    """Make the directory inside the data directory, or a short one elsewhere if that path will not do.

    A short one that was used before is used again.
    """
    own = data_dir / "run"
    if not _fits(own):
        is_reusable = previous.name.startswith(SHORT_PREFIX) and _is_private(previous, account)
        return previous if is_reusable else _make_short(data_dir, account)
    if not _is_private(own, account):
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(mode=0o700)
        account.take_over(own)
    return own


def clean_socket_dir(socket_dir: Path) -> None:
    """Remove the socket of a server that is gone; its lock file bars the next one if its pid is in use."""
    if socket_dir.is_symlink():
        return
    for leftover in socket_dir.glob(".s.PGSQL.*"):
        leftover.unlink(missing_ok=True)


def remove_short_dir(socket_dir: Path) -> None:
    """Remove a directory that was made in a temporary one."""
    if socket_dir.name.startswith(SHORT_PREFIX):
        clean_socket_dir(socket_dir)
        with contextlib.suppress(OSError):
            socket_dir.rmdir()


def _make_short(data_dir: Path, account: Account) -> Path:
    for base in dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp"))):
        if _fits(base / f"{SHORT_PREFIX}12345678") and account.can_enter(base):
            short = Path(tempfile.mkdtemp(prefix=SHORT_PREFIX, dir=base))
            account.take_over(short)
            return short
    raise unusable(data_dir, "its path is too long for a socket, and no temporary directory serves")


def _fits(directory: Path) -> bool:
    path = os.fspath(directory / f".s.PGSQL.{PORT}")
    return len(os.fsencode(path)) <= PATH_BYTES_MAX and PATH_LETTERS.issuperset(path)


def _is_private(directory: Path, account: Account) -> bool:
    try:
        status = directory.lstat()
    except OSError:
        return False
    # Type and permissions in one comparison: a directory of mode 0700, and not a link to one.
    return status.st_mode == PRIVATE_DIRECTORY and status.st_uid == account.uid
