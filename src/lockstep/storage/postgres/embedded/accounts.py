"""The user who runs PostgreSQL: ourselves, or, since PostgreSQL refuses to run as root, somebody else."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

import msgspec

from lockstep.errors import DataDirectoryUnusable, EmbeddedError, InvalidOption
from lockstep.storage.postgres.embedded.failures import unusable

USER_VARIABLE = "LOCKSTEP_POSTGRES_USER"
USERS = ("postgres", "nobody")


class Account(msgspec.Struct, frozen=True):
    """A user with its groups, and whether we must switch to it."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    is_other: bool

    def take_over(self, path: Path) -> None:
        """Give a directory that we have just made to this user, without following a link."""
        if self.is_other:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def can_enter(self, path: Path) -> bool:
        """Say whether this user may search a directory or execute a file, asking the kernel as that user."""
        if not self.is_other:
            return os.access(path, os.X_OK)
        # A shell is there wherever initdb works; asked for real, ACLs and security modules are included.
        question = ["/bin/sh", "-c", 'test -x "$1"', "sh", os.fspath(path)]
        answer = subprocess.run(question, user=self.uid, group=self.gid, extra_groups=self.groups, cwd="/", check=False)
        return answer.returncode == 0


def server_account(cluster: Path) -> Account:
    """Return the user who runs PostgreSQL on this cluster, which may not exist yet."""
    try:
        owner_uid = cluster.stat().st_uid
    except OSError:
        owner_uid = None
    if os.geteuid() != 0:
        account = _account(pwd_entry(os.geteuid()), is_other=False)
    elif owner_uid and USER_VARIABLE not in os.environ:
        # A cluster works only for its owner, so one that an ordinary user made stays that user's.
        account = _account(pwd_entry(owner_uid), is_other=True)
    else:
        account = _account(_unprivileged_user(), is_other=True)
    if owner_uid is not None and owner_uid != account.uid:
        raise _belongs_to_another(cluster, owner_uid, account)
    return account


def require_reachable(path: Path, account: Account) -> None:
    """Raise unless the user can get to this directory; name the one that bars the way."""
    if account.can_enter(path):
        return
    blocking = next((each for each in (*reversed(path.parents), path) if not account.can_enter(each)), path)
    raise unusable(
        path,
        f"the user {account.name}, who runs PostgreSQL because root may not, cannot enter {blocking}",
        f"Allow it (chmod o+x {blocking}), choose a data directory elsewhere, or name another user in {USER_VARIABLE}.",
    )


def pwd_entry(uid: int) -> pwd.struct_passwd:
    """Return the entry of a user, made up if the system knows no name for it."""
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return pwd.struct_passwd((str(uid), "x", uid, os.getegid() or uid, "", "/", "/bin/sh"))


def _account(entry: pwd.struct_passwd, *, is_other: bool) -> Account:
    groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)) if is_other else ()
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, is_other)


def _unprivileged_user() -> pwd.struct_passwd:
    wanted = os.environ.get(USER_VARIABLE)
    for name in (wanted,) if wanted else USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return entry
    if wanted:
        raise InvalidOption(f"{USER_VARIABLE} must name an existing user other than root, not {wanted!r}.")
    raise EmbeddedError(
        f"PostgreSQL does not run as root, and there is no user {' or '.join(USERS)}. Name one in {USER_VARIABLE}."
    )


def _belongs_to_another(cluster: Path, owner_uid: int, account: Account) -> DataDirectoryUnusable:
    owner = pwd_entry(owner_uid).pw_name
    return unusable(
        cluster.parent,
        f"{cluster} belongs to {owner}, but PostgreSQL is to run as {account.name}",
        # PostgreSQL does not run as root, so that to run as its owner is no way out then.
        ("Hand" if owner_uid == 0 else f"Run as {owner}, or hand")
        + f" it over with: chown -R {account.name} {cluster}",
    )
