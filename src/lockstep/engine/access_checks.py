"""Checks of requests about API keys and about owners."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.core.access import KEY_NAME_LENGTH_MAX, NewApiKey, OwnedKind
from lockstep.core.ids import parse_uuid
from lockstep.core.names import check_label, check_name
from lockstep.core.rights import ROLES, Rights
from lockstep.core.times import check_time
from lockstep.engine import checks
from lockstep.errors import InvalidRequest

_BY_NUMBER: tuple[OwnedKind, ...] = ("partition", "dead_letter", "stream_query")


def check_key(key: NewApiKey) -> None:
    """Raises InvalidRequest."""
    checks.check_kind(key, NewApiKey)
    check_name(key.name, what="key name")
    check_label(key.name, what="key name", length_max=KEY_NAME_LENGTH_MAX)
    if key.role is not None and key.role not in ROLES:
        raise InvalidRequest(f"there is no role {key.role[:100]!r}; there are {', '.join(ROLES)}")
    if key.role is None and not key.rules:
        raise InvalidRequest("a key needs a role, or rules")
    for rule in Rights(key.rules).rules:
        check_label(rule, what="rule", length_max=1_000)
    if key.expires_at is not None:
        check_time(key.expires_at, what="expires_at")


def checked_owned(kind: OwnedKind, ids: Sequence[str]) -> list[str]:
    """The well-formed ids; the others cannot belong to anything."""
    if kind in _BY_NUMBER:
        return [one for one in ids if one.isascii() and one.isdigit() and int(one) <= checks.BIGINT_MAX]
    if kind == "lease":
        return [one for one in ids if _is_uuid(one)]
    return list(ids)


def _is_uuid(text: str) -> bool:
    try:
        return str(parse_uuid(text, what="lease id")) == text
    except InvalidRequest:
        return False


def check_queue_names(queues: object) -> None:
    """Raises InvalidRequest."""
    if not isinstance(queues, list | tuple):
        raise InvalidRequest("queues must be a list of names")
    for queue in queues:
        check_name(queue, what="queue")
