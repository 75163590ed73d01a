"""Secrets in separate files, as systemd, Docker and Kubernetes provide them: no process list or environment dump shows
them."""

from __future__ import annotations

import os

from lockstep.errors import InvalidOption

FILE_SUFFIX = "_file"
"""Suffix of settings that name the file with the value of another setting."""

_BYTES_MAX = 64 * 1024


def read_secret(path: object, source: str) -> str:
    """The text of a file without surrounding white space. The errors name the file but never its contents."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidOption(f"{source} is not valid: it must be the path of a file")
    shown = os.fspath(path)
    try:
        with open(os.path.expanduser(shown), "rb") as file:
            content = file.read(_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        raise InvalidOption(f"the file that {source} names, {shown!r}, cannot be read: {reason}") from None
    if len(content) > _BYTES_MAX:
        raise InvalidOption(f"the file that {source} names, {shown!r}, has more than {_BYTES_MAX} bytes")
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        raise InvalidOption(f"the file that {source} names, {shown!r}, is not text") from None
    if not text:
        raise InvalidOption(f"the file that {source} names, {shown!r}, is empty")
    return text
