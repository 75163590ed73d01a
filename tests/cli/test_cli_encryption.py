"""`lockstep encryption`: keys, what is stored under them, and switching encryption off."""

from __future__ import annotations

import stat
from base64 import b64encode
from pathlib import Path

from click.testing import CliRunner

from lockstep.cli.main import cli
from lockstep.config import load
from lockstep.core.sealing import key_id
from support.databases import Databases

OLD, NEW = b64encode(bytes(range(32))).decode(), b64encode(bytes(32)).decode()


def run(*arguments: str, code: int = 0, key: str = "") -> str:
    done = CliRunner().invoke(cli, arguments, env={"LOCKSTEP_ENCRYPTION_KEY": key or None})
    assert done.exit_code == code, done.output
    return done.output


def test_key_is_created_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "key"
    said = run("encryption", "create", str(path))
    [key] = load({"encryption_key_file": path}, environ={}).encryption_keys
    assert key_id(key) in said
    assert path.read_text().strip() not in said
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "cannot be written" in run("encryption", "create", str(path), code=1)


def test_keys_rotate_and_encryption_is_switched_off(databases: Databases) -> None:
    on = ("--dsn", databases.emptied())
    run("queue", "configure", "q", "--encryption", *on, key=OLD)
    run("push", "q", '{"n": 1}', *on, key=OLD)
    both = f"{NEW},{OLD}"
    assert "false" in run("encryption", "status", "-o", "json", *on, key=both)
    assert "1 stored item encrypted" in run("encryption", "rotate", *on, key=both)
    assert '"active": true' in run("encryption", "status", "-o", "json", *on, key=NEW)
    assert '"n": 1' in run("pop", "q", "-o", "json", *on, key=NEW)
    assert "encryption_unavailable" in run("encryption", "rotate", *on, code=1)
    assert "encryption off" in run("queue", "configure", "q", "--no-encryption", *on, code=2, key=NEW)
    assert "encryption off" in run("queue", "update", "q", "--no-encryption", *on, code=2, key=NEW)
    run("queue", "configure", "q", "--reset", *on, key=NEW)
    run("encryption", "off", "q", "--yes", *on)
    assert '"encryption": false' in run("queue", "show", "q", "-o", "json", *on)
