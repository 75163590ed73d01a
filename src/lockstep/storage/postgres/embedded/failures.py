"""Turns what the operating system and PostgreSQL say into errors that tell the user what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lockstep.errors import DataDirectoryUnusable, EmbeddedError, ServerStartFailed

NO_SPACE = "No space left on device"
ADVICE = {
    NO_SPACE: "Free some space there, or choose a data directory on another disk.",
    "Disk quota exceeded": "Free some space there, or choose a data directory on another disk.",
    "Read-only file system": "Choose a data directory on a writable file system.",
    "Permission denied": "Give the user who runs PostgreSQL access to it, or choose another data directory.",
}
# What PostgreSQL says instead after a write that was cut short by the end of the disk.
SHORT_WRITE = "Check free disk space"
SPACE_MIN_BYTES = 1 << 20
TAIL_LINES = 20


@contextmanager
def directory_errors(data_dir: Path) -> Iterator[None]:
    """Report every failure of the file system inside the block as a data directory that cannot be used."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        place = f" ({error.filename})" if error.filename else ""
        raise unusable(data_dir, f"{reason}{place}", ADVICE.get(reason, "")) from error


def unusable(data_dir: Path, reason: str, advice: str = "") -> DataDirectoryUnusable:
    """Return the error for a data directory that cannot be used, with the way out of it."""
    message = f"The data directory {data_dir} cannot be used: {reason.rstrip('.')}. {advice}"
    return DataDirectoryUnusable(message.rstrip(), data_dir=str(data_dir))


def program_failure(what: str, data_dir: Path, output: str) -> EmbeddedError:
    """Return the error for a PostgreSQL program that failed, from what it printed."""
    for line in output.splitlines():
        # The kernel uses the same words for its limit on shared memory, which has nothing to do with disks.
        if "shared memory" in line:
            continue
        for reason, advice in ADVICE.items():
            if reason in line:
                return unusable(data_dir, f"{what} says: {line.strip()}", advice)
    # A server on a full disk often cannot even log why it fails.
    if SHORT_WRITE in output or _space_is_used_up(data_dir):
        return unusable(data_dir, NO_SPACE, ADVICE[NO_SPACE])
    return ServerStartFailed(f"{what} failed. Its last words:\n{last_words(output)}", data_dir=str(data_dir))


def last_words(output: str) -> str:
    """Return the last lines of what a program printed."""
    return "\n".join(output.splitlines()[-TAIL_LINES:]) or "(it printed nothing)"


def _space_is_used_up(data_dir: Path) -> bool:
    try:
        return data_dir.is_dir() and _free_bytes(data_dir) < SPACE_MIN_BYTES
    except OSError:
        return False


def _free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize
