"""Settings of every Lockstep session, whichever driver opens it and whatever the defaults of database and role are."""

from __future__ import annotations

# "Lock, then look" needs a fresh snapshot for the look.
ISOLATION = {"default_transaction_isolation": "read committed"}

# Our statements have one right plan, through indexes, whatever the values are and however poor the statistics of a new
# table are. Planning a pop takes three times as long as running it. See docs/decisions/0006.
PLANNER = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
}


def limits(
    *,
    statement_timeout_seconds: float,
    lock_timeout_seconds: float,
    idle_transaction_timeout_seconds: float,
    client_check_seconds: float,
    keepalive_seconds: float,
) -> dict[str, str]:
    """Time limits of a session, and when the server ends it because its process hangs or its machine is gone: an
    abandoned session in a transaction keeps its locks. See docs/concepts/waiting.md."""
    return {
        "statement_timeout": _milliseconds(statement_timeout_seconds),
        "lock_timeout": _milliseconds(lock_timeout_seconds),
        "idle_in_transaction_session_timeout": _milliseconds(idle_transaction_timeout_seconds),
        "client_connection_check_interval": _milliseconds(client_check_seconds),
        **_keepalives(keepalive_seconds),
    }


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


def _keepalives(seconds: float) -> dict[str, str]:
    """A silent client is probed three times in the second half of the time. The user timeout ends a session that waits
    to write to a client that does not read. Over a Unix socket none of this has an effect."""
    if not seconds:
        return {}
    return {
        "tcp_keepalives_idle": str(max(int(seconds / 2), 1)),
        "tcp_keepalives_interval": str(max(int(seconds / 6), 1)),
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": _milliseconds(seconds),
    }
