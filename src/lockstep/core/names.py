"""What may be a name of a queue, partition, group, namespace or task, and what may be an id or a label."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from lockstep.errors import InvalidName, InvalidRequest

QUEUE_MODE = "__QUEUE_MODE__"
"""The group of plain competing consumers, which every queue has."""

DEFAULT_PARTITION = "Default"

GROUPS_MAX = 10_000
"""Of a queue, where no setting says otherwise."""

NAME_LENGTH_MAX = 255
TRANSACTION_ID_LENGTH_MAX = 255

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def check_name(name: object, *, what: str) -> str:
    """The name, if it is one: 1 to 255 characters, none of them a control character."""
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
    """`check_name` of each, at the price of one look at all of them joined."""
    if not names:
        return
    if set(map(type, names)) == {str}:
        lengths = list(map(len, names))
        if min(lengths) > 0 and max(lengths) <= NAME_LENGTH_MAX and not _CONTROL.search("".join(names)):
            return
    for name in names:
        check_name(name, what=what)


def check_label(text: object, *, what: str, length_max: int) -> str:
    """Free text with a length limit that PostgreSQL can store: no NUL, no lone surrogate."""
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
    """Namespace and task of a queue that its first push creates: the first two dot-separated pieces."""
    namespace, _, rest = queue.partition(".")
    return namespace, rest.partition(".")[0]


def nearest_of(name: str, known: Iterable[str]) -> str | None:
    """The known name that is closest to a misspelled one, ignoring case and underscores; None if none is close."""
    plain = {one.replace("_", "").lower(): one for one in known}
    found = get_close_matches(name[:NAME_LENGTH_MAX].replace("_", "").replace("-", "").lower(), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None
