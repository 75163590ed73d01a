"""The caller of a request, once identified."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from lockstep.core.rights import EVERYTHING, Right, Rights

if TYPE_CHECKING:
    from lockstep.server.node import Node

CallerKind = Literal["key", "token", "anonymous"]


@dataclass(slots=True, eq=False)
class Caller:
    """A caller and its rights. The same key or token yields the same object while it is cached."""

    kind: CallerKind
    name: str
    """The name of the key, or the subject of the token: in the audit log."""
    rights: Rights
    role: str | None = None
    sub: str | None = None
    """The producer name of messages that the caller pushes."""
    key_id: str | None = None
    expires_at: float | None = None
    """Unix time."""
    node: Node | None = field(default=None, repr=False)
    """The server as this caller sees it (Node.seen_by)."""

    def may_enter(self, rights: tuple[Right, ...]) -> bool:
        """Whether the caller has one of the rights on some queue. Any right admits to the right `browse`; the answer
        then shows only the queues that the caller has rights on."""
        somewhere = self.rights.somewhere
        return not rights or any(right in somewhere for right in rights) or ("browse" in rights and bool(somewhere))


ANYBODY = Caller("anonymous", "anonymous", EVERYTHING)
"""Every caller of a server without authentication."""
NOBODY = Caller("anonymous", "anonymous", Rights(()))
"""A caller without credentials, on a server with authentication."""
