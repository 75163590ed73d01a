"""Becomes PostgreSQL: the short-lived script between our fork and PostgreSQL's `main`.

It runs as a program of its own, in an interpreter without site-packages, because none of this may run
between fork and exec of a process that has threads. Nothing of Lockstep is imported here.

    launcher.py SUPERVISOR_PID DEATH_SIGNAL GO_FD CREDENTIALS PROGRAM ARGUMENT...

GO_FD is a pipe on which the supervisor writes a byte once it has recorded our pid, or -1 for none.
CREDENTIALS is `uid:gid:group,group…`, or `-` to stay who we are.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Take the credentials, tie our life to the supervisor's, and turn into the program."""
    supervisor_pid, death_signal, go_fd, credentials, *program = arguments
    # An ignored SIGINT (nohup, `&` in a script) or Python's own handler must not swallow the death signal.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if credentials != "-":
        become(credentials)
    # Only now: a change of credentials clears the death signal.
    die_with(int(supervisor_pid), int(death_signal))
    if int(go_fd) >= 0:
        await_go(int(go_fd))
    os.umask(0o077)
    os.execv(program[0], program)


def become(credentials: str) -> None:
    """Switch to the given user for good."""
    uid, gid, groups = credentials.split(":")
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(int(gid))
    os.setuid(int(uid))


def die_with(supervisor_pid: int, death_signal: int) -> None:
    """Ask the kernel for a signal when the supervisor dies; leave at once if it is dead already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    # If it died before the call above, no signal will come, but we have another parent by now.
    if os.getppid() != supervisor_pid:
        sys.exit("the supervisor is gone")


def await_go(go_fd: int) -> None:
    """Wait until the supervisor has recorded who we are; end of file means that it never will."""
    if not os.read(go_fd, 1):
        sys.exit("the supervisor is gone")
    os.close(go_fd)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.exit(f"cannot run {sys.argv[5]}: {error}")
