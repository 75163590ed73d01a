"""PostgreSQL's settings for a queue: durable, modest in memory, reachable only through its socket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import InvalidOption
from lockstep.storage.postgres.embedded.directory import PORT
from lockstep.storage.postgres.embedded.installs import Install

MEBIBYTE = 1 << 20
SHARED_BUFFERS_MAX_MB = 256
SHARED_BUFFERS_MIN_MB = 16
SHARED_BUFFERS_PART_OF_MEMORY = 8
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

DEFAULTS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "200",
    "huge_pages": "try",
    "jit": "off",
    "wal_compression": "off",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # We look for reasons in the log, in English.
    "lc_messages": "C",
    # A statement that fails may carry a payload, and payloads do not belong into logs.
    "log_min_error_statement": "panic",
}

# The supervisor depends on these.
RESERVED = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "lc_messages",
        "listen_addresses",
        "log_destination",
        "logging_collector",
        "port",
        "unix_socket_directories",
        "unix_socket_permissions",
    }
)


def check_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's settings; raise if one of them is not the caller's to set."""
    reserved = sorted(name for name in settings if name.lower() in RESERVED)
    if reserved:
        raise InvalidOption(f"The embedded PostgreSQL sets these itself: {', '.join(reserved)}.")
    return dict(settings)


def server_program(install: Install, cluster: Path, socket_dir: Path, settings: Mapping[str, str]) -> list[str | Path]:
    """Return the command line of the server."""
    program: list[str | Path] = [install.program("postgres"), "-D", cluster]
    for name, value in _all_settings(socket_dir, settings).items():
        program += ["-c", f"{name}={value}"]
    return program


def _all_settings(socket_dir: Path, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        **DEFAULTS,
        "shared_buffers": f"{shared_buffers_mb(memory_bytes())}MB",
        **settings,
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": str(socket_dir),
        "unix_socket_permissions": "0700",
        "log_destination": "stderr",
        "logging_collector": "off",
    }


def shared_buffers_mb(memory: int) -> int:
    """Return the size of PostgreSQL's own cache for a machine with that many bytes of memory."""
    part = memory // MEBIBYTE // SHARED_BUFFERS_PART_OF_MEMORY
    return max(SHARED_BUFFERS_MIN_MB, min(part, SHARED_BUFFERS_MAX_MB))


def memory_bytes() -> int:
    """Return the memory that we may use: the machine's, or the container's if that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_cgroup_limits()])


def _cgroup_limits() -> list[int]:
    texts = [Path(path).read_text().strip() for path in CGROUP_LIMITS if os.access(path, os.R_OK)]
    return [int(text) for text in texts if text.isdecimal()]
