"""Which spool is for a database whose address is all that is known."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from lockstep.engine.spool.addresses import directory_of, unclaimed

ONE, OTHER = uuid4(), uuid4()
DSN = "postgresql://user:secret@host/lockstep"


def name(root: Path, address: str | None, store: UUID | None) -> str:
    directory = directory_of(root, address, store)
    assert directory.parent == root
    return directory.name


def test_spool_has_the_name_of_the_store(tmp_path: Path) -> None:
    assert name(tmp_path, DSN, ONE) == str(ONE)
    assert name(tmp_path, DSN, None) == str(ONE), "known from before"
    assert name(tmp_path, None, OTHER) == str(OTHER)


def test_spool_that_was_begun_without_the_store_stays_when_it_comes(tmp_path: Path) -> None:
    begun = name(tmp_path, DSN, None)
    assert name(tmp_path, DSN, None) == begun, "for all processes"
    assert begun != str(ONE)
    assert name(tmp_path, DSN, ONE) == begun
    assert name(tmp_path, DSN, ONE) == begun
    assert name(tmp_path, "postgresql://elsewhere/lockstep", ONE) == begun, "one database has one spool"


def test_another_store_at_the_same_address_has_another_spool(tmp_path: Path) -> None:
    begun = name(tmp_path, DSN, None)
    name(tmp_path, DSN, ONE)
    assert name(tmp_path, DSN, OTHER) == str(OTHER)
    assert name(tmp_path, DSN, None) == str(OTHER)
    assert begun != str(OTHER)


def test_what_was_buffered_for_an_address_that_nobody_reached_is_found(tmp_path: Path) -> None:
    own, empty = directory_of(tmp_path, DSN, None), directory_of(tmp_path, "postgresql://nobody/empty", None)
    left = directory_of(tmp_path, "postgresql://nobody/left", None)
    reached = directory_of(tmp_path, "postgresql://reached/left", ONE)
    for directory in (own, empty, left, reached):
        directory.mkdir()
    for directory in (own, left, reached):
        (directory / "a.0.log").write_bytes(b"12345")
        (directory / "a.5.log").write_bytes(b"12")
    assert unclaimed(tmp_path, own) == [(left, 7)]
    directory_of(tmp_path, "postgresql://nobody/left", OTHER)
    assert unclaimed(tmp_path, own) == []


def test_password_may_change(tmp_path: Path) -> None:
    begun = name(tmp_path, DSN, None)
    assert name(tmp_path, DSN.replace("secret", "other"), None) == begun
    assert name(tmp_path, DSN.replace("host", "another"), None) != begun
    assert all(b"secret" not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"{", b'{"directory": 7}', bytes(100)])
def test_file_that_nobody_can_read_is_written_anew(tmp_path: Path, content: bytes) -> None:
    name(tmp_path, DSN, ONE)
    [path] = tmp_path.glob("*.address")
    path.write_bytes(content)
    assert name(tmp_path, DSN, ONE) == str(ONE)
    assert name(tmp_path, DSN, None) == str(ONE)


def test_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        directory_of(tmp_path / "file", DSN, ONE)
