"""The key of an embedded database: a file beside its data, which every process that can read it uses automatically."""

from __future__ import annotations

import os
import stat
from base64 import b64encode
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec

from lockstep.config import Config, load
from lockstep.core.sealing import KEY_BYTES
from lockstep.secret_files import read_secret

KEY_FILE = "encryption.key"


def make_key(data_dir: Path) -> Path | None:
    """Create a key for a data directory that we hold, unless it has one. Returns its path if it was created now."""
    path = data_dir / KEY_FILE
    if path.exists():
        return None
    scratch = path.with_suffix(".new")
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(b64encode(os.urandom(KEY_BYTES)) + b"\n")
        file.flush()
        os.fsync(descriptor)
    os.replace(scratch, path)
    return path


def with_stored_key(config: Config, dsn: str) -> Config:
    """The settings, with the key beside the data of the embedded database at this address, if it can be read. A key in
    the settings comes first, and encrypts."""
    path = _key_file_of(dsn)
    if path is None:
        return config
    stored = load({"encryption_key": read_secret(path, "the embedded database")}, environ={}).encryption_key
    given = config.encryption_key
    if stored is None or (given is not None and stored in given):
        return config
    return msgspec.structs.replace(config, encryption_key=stored if given is None else f"{given},{stored}")


def _key_file_of(dsn: str) -> Path | None:
    """The socket of an embedded database is in a directory of its data, or in a short one that has a link. A directory
    that everybody may write to, such as /tmp, is neither: anybody could put a key there."""
    try:
        [host] = parse_qs(urlsplit(dsn).query).get("host", [""])
    except ValueError:
        return None
    if not host.startswith("/"):
        return None
    directory = Path(host)
    path = (directory.parent if directory.name == "run" else directory) / KEY_FILE
    return path if os.access(path, os.R_OK) and not path.parent.stat().st_mode & stat.S_IWOTH else None
