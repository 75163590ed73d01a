"""Who may do what: rights, roles that bundle rights, and rules that grant rights on queues by pattern.

A right applies to queues, which are named by a pattern: `*` stands for any text, every other character for itself.
Anything that does not concern a single queue needs the right on `*`. A rule is written as `RIGHTS PATTERN`: `push,pop
orders.*`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

from lockstep.errors import InvalidRequest

Right = Literal["push", "pop", "browse", "manage", "configure", "admin"]
"""`push` creates messages, including schedules, crons and redriven messages. `pop` consumes: it includes ack, renew,
nack and creating groups. `browse` reads. `manage` sets options, seeks, and handles single messages. `configure` adds
clear, purge and delete to that. `admin` includes everything, and the server itself."""
Level = Literal["public", "ro", "rw", "admin"]
"""The role that suffices for a route, according to the protocol."""

RIGHTS: tuple[Right, ...] = get_args(Right)
LEVELS: Mapping[Right, Level] = {
    "browse": "ro",
    "push": "rw",
    "pop": "rw",
    "manage": "rw",
    "configure": "admin",
    "admin": "admin",
}
_IMPLIED: Mapping[Right, frozenset[Right]] = {
    "configure": frozenset({"configure", "manage"}),
    "admin": frozenset(RIGHTS),
}

ANY_QUEUE = "*"
ROLES: Mapping[str, tuple[str, ...]] = {
    "admin": ("admin *",),
    "read-write": ("push,pop,browse,manage *",),
    "read-only": ("browse *",),
}
RULES_MAX = 100
PATTERN_LENGTH_MAX = 255
_REMEMBERED_MAX = 10_000


class Pattern:
    """Matches queue names. For each piece of the pattern, the time is linear in the length of the name."""

    __slots__ = ("_first", "_last", "_middle", "_whole", "text")

    def __init__(self, text: str) -> None:
        pieces = text.split("*")
        self.text = text
        self._whole = len(pieces) == 1
        self._first, self._middle, self._last = pieces[0], [piece for piece in pieces[1:-1] if piece], pieces[-1]

    def matches(self, name: str) -> bool:
        if self._whole:
            return name == self.text
        end = len(name) - len(self._last)
        at = len(self._first)
        if at > end or not name.startswith(self._first) or not name.endswith(self._last):
            return False
        for piece in self._middle:
            found = name.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True


class Rights:
    """The rights of a caller. Equal rules make equal rights."""

    def __init__(self, rules: Iterable[str]) -> None:
        """Raises InvalidRequest for an invalid rule."""
        self.rules = tuple(rules)
        if len(self.rules) > RULES_MAX:
            raise InvalidRequest(f"there are {len(self.rules)} rules; at most {RULES_MAX} are allowed")
        parsed = [parse_rule(rule) for rule in self.rules]
        self._patterns = [(rights, Pattern(pattern)) for rights, pattern in parsed]
        self.everywhere = frozenset(right for rights, pattern in parsed if pattern == ANY_QUEUE for right in rights)
        """Rights on all queues, and on everything that does not concern a single queue."""
        self.somewhere = frozenset(right for rights, _ in parsed for right in rights)
        self._remembered: dict[tuple[Right, str], bool] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rights) and set(self.rules) == set(other.rules)

    def __hash__(self) -> int:
        return hash(frozenset(self.rules))

    def may(self, right: Right, queue: str) -> bool:
        if right in self.everywhere:
            return True
        known = self._remembered.get((right, queue))
        if known is None:
            known = any(right in rights and pattern.matches(queue) for rights, pattern in self._patterns)
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            self._remembered[right, queue] = known
        return known


def parse_rule(rule: object) -> tuple[frozenset[Right], str]:
    """The rights of a rule, including implied ones, and its pattern. Raises InvalidRequest."""
    pieces = rule.split() if isinstance(rule, str) else []
    if len(pieces) != 2 or len(pieces[1]) > PATTERN_LENGTH_MAX:
        raise InvalidRequest(f"a rule is written as 'push,pop orders.*', not {str(rule)[:100]!r}")
    rights: set[Right] = set()
    for word in pieces[0].split(","):
        known = next((right for right in RIGHTS if right == word), None)
        if known is None:
            raise InvalidRequest(f"there is no right {word[:100]!r}; there are {', '.join(RIGHTS)}")
        rights |= _IMPLIED.get(known, {known})
    return frozenset(rights), pieces[1]


def rules_of(roles: Iterable[str], own: Iterable[str] = (), *, known: Mapping[str, tuple[str, ...]] = ROLES) -> Rights:
    """The rights of the known roles among `roles`, and of the rules."""
    return Rights([*(rule for role in roles for rule in known.get(role, ())), *own])


EVERYTHING = Rights(ROLES["admin"])
"""The rights of every caller on a server without auth."""
