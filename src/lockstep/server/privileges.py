"""A server started by root switches to the user who owns its data, after it has bound and opened what it needs."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

if TYPE_CHECKING:
    from lockstep.storage.postgres.embedded import EmbeddedPostgres

logger = logging.getLogger("lockstep.server")


def drop_root(embedded: EmbeddedPostgres | None) -> None:
    """Without an embedded database there is no such user. The user must be able to read what this process imports
    later, and so must its workers; otherwise the server continues as root, and logs that."""
    if embedded is None or os.geteuid() != 0:
        return
    account = embedded.account
    code = [Path(sys.executable), *(Path(file or "") for file in (os.__file__, __file__, uvicorn.__file__))]
    closed = next((path for path in code if not account.can_read(path)), None)
    if closed is None and not account.can_enter(Path.cwd()):
        closed = Path.cwd()
    if closed is not None:
        fields = {"action": "root_kept", "user": account.name, "unreadable": str(closed)}
        logger.warning("root_kept", extra=fields)
        return
    embedded.drop_root()
    logger.info("root_dropped", extra={"action": "root_dropped", "user": account.name})
