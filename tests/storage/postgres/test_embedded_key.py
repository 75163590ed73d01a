"""The key that an embedded database makes for encrypted queues."""

from __future__ import annotations

import os
import stat
from base64 import b64encode
from pathlib import Path

import pytest

from lockstep import open_engine
from lockstep.config import load
from lockstep.core.messages import Batch
from lockstep.core.policy import QueueOptions
from lockstep.core.records import PopRequest
from lockstep.core.sealing import key_id
from lockstep.errors import InvalidOption
from lockstep.storage.postgres.embedded import EmbeddedPostgres
from lockstep.storage.postgres.key_files import KEY_FILE, make_key, with_stored_key
from support.databases import scratch_directory
from support.embedded_tools import SMALL, add_cluster


def dsn_of(directory: Path) -> str:
    return f"postgresql://lockstep@/lockstep?host={directory}&port=5432"


def test_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    path = make_key(tmp_path)
    assert path == tmp_path / KEY_FILE
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    assert make_key(tmp_path) is None
    assert path.read_text() == text
    assert os.listdir(tmp_path) == [KEY_FILE]


def test_key_is_found_by_the_address(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "short").mkdir()
    make_key(tmp_path)
    config = load(environ={})
    [key] = with_stored_key(config, dsn_of(tmp_path / "run")).encryption_keys
    assert with_stored_key(config, dsn_of(tmp_path / "short")) is config
    (tmp_path / "short" / KEY_FILE).symlink_to(tmp_path / KEY_FILE)
    assert with_stored_key(config, dsn_of(tmp_path / "short")).encryption_keys == (key,)
    for address in ("postgresql://db.example/shop", "postgresql://[/", "postgresql:///shop?host=a&host=b"):
        assert with_stored_key(config, address) is config
    given = load({"encryption_key": b64encode(bytes(32)).decode()}, environ={})
    both = with_stored_key(given, dsn_of(tmp_path / "run"))
    assert both.encryption_keys == (bytes(32), key)
    assert with_stored_key(both, dsn_of(tmp_path / "run")) is both


@pytest.mark.parametrize("host", ["", "run"])
def test_key_in_a_directory_of_everybody_is_not_taken(tmp_path: Path, host: str) -> None:
    """PostgreSQL's socket may be in /tmp, where anybody can put a file."""
    (tmp_path / "run").mkdir()
    make_key(tmp_path)
    tmp_path.chmod(0o1777)
    config = load(environ={})
    assert with_stored_key(config, dsn_of(tmp_path / host)) is config
    tmp_path.chmod(0o755)
    assert len(with_stored_key(config, dsn_of(tmp_path / host)).encryption_keys) == 1


def test_file_that_is_no_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / KEY_FILE).write_text("sesame")
    with pytest.raises(InvalidOption) as caught:
        with_stored_key(load(environ={}), dsn_of(tmp_path / "run"))
    assert "sesame" not in str(caught.value)


async def test_encrypted_queues_work_out_of_the_box(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("LOCKSTEP_ENCRYPTION_KEY", "LOCKSTEP_DSN"):
        monkeypatch.delenv(variable, raising=False)
    told: list[str] = []
    with scratch_directory() as root:
        await _use_encrypted_queue(add_cluster(root / "data"), told)


async def _use_encrypted_queue(data_dir: Path, told: list[str]) -> None:
    with EmbeddedPostgres(data_dir, settings=SMALL, on_progress=told.append) as server:
        assert [line for line in told if str(data_dir / KEY_FILE) in line and "Back it up" in line]
        async with open_engine(server.dsn) as engine:
            await engine.configure("secrets", QueueOptions(encryption=True))
            await engine.push([Batch.of("secrets", [b'"hidden"'])])
            [key] = load({"encryption_key_file": data_dir / KEY_FILE}, environ={}).encryption_keys
            assert (await engine.rotate_encryption(count_only=True)).found == {key_id(key): 1}
    told.clear()
    with EmbeddedPostgres(data_dir, settings=SMALL, on_progress=told.append) as server:
        assert not [line for line in told if KEY_FILE in line]
        async with open_engine(server.dsn) as engine:
            assert (await engine.pop([PopRequest(queue="secrets")]))[0].payloads() == [b'"hidden"']
