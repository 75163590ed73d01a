"""Valid names of queues, partitions, groups, namespaces and tasks; valid ids and labels."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from lockstep.errors import InvalidName, InvalidRequest

QUEUE_MODE = "__QUEUE_MODE__"
"""The group of consumers that name no group; every queue has it."""

DEFAULT_PARTITION = "Default"

GROUPS_MAX = 10_000
"""The default for a queue, unless a setting changes it."""

NAME_LENGTH_MAX = 255
TRANSACTION_ID_LENGTH_MAX = 255

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def check_name(name: object, *, what: str) -> str:
    """Return the name if it is valid: 1 to 255 characters, no control characters."""
    if not isinstance(name, str):
        raise InvalidName(f"{what} must be a string, not {type(name).__name__}")
    if not name:
        raise InvalidName(f"{what} must not be empty")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidName(f"{what} is {len(name)} characters long; at most {NAME_LENGTH_MAX} are allowed")
    if _CONTROL.search(name):
        raise InvalidName(f"{what} contains a control character: {name!r}")
    return name


def check_names(names: list[str], *, what: str) -> None:
    """`check_name` for each name, with a single check of all of them joined."""
    if not names:
        return
    if set(map(type, names)) == {str}:
        lengths = list(map(len, names))
        if min(lengths) > 0 and max(lengths) <= NAME_LENGTH_MAX and not _CONTROL.search("".join(names)):
            return
    for name in names:
        check_name(name, what=what)


def check_label(text: object, *, what: str, length_max: int) -> str:
    """Check free text with a length limit that PostgreSQL can store: no NUL, no lone surrogate."""
    if not isinstance(text, str):
        raise InvalidRequest(f"{what} must be a string, not {type(text).__name__}")
    if len(text) > length_max:
        raise InvalidRequest(f"{what} is {len(text)} characters long; at most {length_max} are allowed")
    if not storable(text):
        raise InvalidRequest(f"{what} contains a NUL character or a lone surrogate")
    return text


def storable(text: str) -> bool:
    """Whether PostgreSQL can store the text as UTF-8."""
    if text.isascii():
        return "\x00" not in text
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in text


def namespace_and_task(queue: str) -> tuple[str, str]:
    """The namespace and task of a queue created by its first push: the first two dot-separated parts of its name."""
    namespace, _, rest = queue.partition(".")
    return namespace, rest.partition(".")[0]


def nearest_of(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a misspelled one, ignoring case and underscores; None if none is close."""
    plain = {one.replace("_", "").lower(): one for one in known}
    found = get_close_matches(name[:NAME_LENGTH_MAX].replace("_", "").replace("-", "").lower(), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None
