"""Settings: where they come from, and what they may be."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from lockstep.config import SECRETS, VARIABLES, Config, has_password, load
from lockstep.errors import InvalidOption

KEY = b64encode(bytes(range(32))).decode()


def write(directory: Path, text: str) -> Path:
    file = directory / "lockstep.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_defaults_are_within_their_own_limits() -> None:
    config = load(environ={})
    assert config == Config()
    assert msgspec.convert(msgspec.to_builtins(config), Config) == config


def test_every_setting_says_what_it_is_for() -> None:
    for name, hint in get_type_hints(Config, include_extras=True).items():
        descriptions = [meta.description for meta in hint.__metadata__ if meta.description]
        assert len(descriptions) == 1, name
        assert descriptions[0].endswith("."), name


def test_override_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = write(tmp_path, "pop_messages_max = 1\nack_items_max = 1\npush_messages_max = 1\n")
    environ = {"LOCKSTEP_ACK_ITEMS_MAX": "2", "LOCKSTEP_PUSH_MESSAGES_MAX": "2"}
    config = load({"push_messages_max": 3}, environ=environ, file=file)
    assert (config.pop_messages_max, config.ack_items_max, config.push_messages_max) == (1, 2, 3)
    assert config.payload_bytes_max == 16 * 1024 * 1024


def test_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_POOL_CONNECTIONS_MAX", "3")
    assert load().pool_connections_max == 3


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("pool_connections_max", "7", 7),
        ("connect_timeout_seconds", "2.5", 2.5),
        ("connect_timeout_seconds", "2", 2.0),
        ("encryption_allow_plain", "true", True),
        ("encryption_allow_plain", "1", True),
        ("encryption_allow_plain", "False", False),
        ("data_dir", "/srv/queue", "/srv/queue"),
        ("encryption_key", KEY, KEY),
    ],
)
def test_environment_variables_are_converted(name: str, text: str, value: object) -> None:
    assert getattr(load(environ={f"LOCKSTEP_{name.upper()}": text}), name) == value


def test_what_is_not_given_is_not_given() -> None:
    assert load({"data_dir": None}, environ={"LOCKSTEP_DATA_DIR": ""}) == Config()


def test_path_is_a_data_dir(tmp_path: Path) -> None:
    assert load({"data_dir": tmp_path}, environ={}).data_dir == str(tmp_path)


def test_other_variables_are_left_alone() -> None:
    environ = {"LOCKSTEP_TEST_DSN": "x", "LOCKSTEP_POSTGRES_USER": "y", "HOME": "/", "lockstep_z": "1"}
    assert load(environ=environ) == Config()


def test_unknown_names_are_named_wherever_they_stand(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="given: no_such, nor_this") as caught:
        load({"nor_this": None, "no_such": 1}, environ={})
    assert caught.value.details["unknown"] == ["no_such", "nor_this"]
    with pytest.raises(InvalidOption, match="environment: LOCKSTEP_NO_SUCH, LOCKSTEP_dsn"):
        load(environ={"LOCKSTEP_NO_SUCH": "", "LOCKSTEP_dsn": "x"})
    with pytest.raises(InvalidOption, match=r"lockstep\.toml: table"):
        load(environ={}, file=write(tmp_path, "[table]\ndsn = 'x'\n"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("push_messages_max", 0),
        ("push_messages_max", 65_537),
        ("push_messages_max", "many"),
        ("push_messages_max", True),
        ("push_messages_max", 1.5),
        ("payload_bytes_max", -1),
        ("page_items_max", 999),
        ("connect_timeout_seconds", 0),
        ("connect_timeout_seconds", float("nan")),
        ("connect_timeout_seconds", float("inf")),
        ("encryption_allow_plain", "perhaps"),
        ("dsn", 5),
        ("encryption_key", "c2hvcnQ="),
        ("encryption_key", "not base64"),
        ("encryption_key", KEY + "A"),
        ("encryption_key", f"{KEY},{KEY}"),
        ("encryption_key", f"{KEY},c2hvcnQ="),
        ("encryption_key", ","),
    ],
)
def test_bad_values_name_their_setting(name: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=f"^{name} is not valid"):
        load({name: value}, environ={})


def test_bad_value_says_where_it_stands(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"^LOCKSTEP_ACK_ITEMS_MAX is not valid"):
        load(environ={"LOCKSTEP_ACK_ITEMS_MAX": "-1"})
    with pytest.raises(InvalidOption, match=r"^ack_items_max in .*lockstep\.toml is not valid"):
        load(environ={}, file=write(tmp_path, "ack_items_max = 'x'"))


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"missing\.toml"):
        load(environ={}, file=tmp_path / "missing.toml")
    with pytest.raises(InvalidOption, match="not TOML"):
        load(environ={}, file=write(tmp_path, "dsn ="))


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        (
            "postgresql://ann:s3cret@db:5432/app?sslmode=require",
            "postgresql://ann:***@db:5432/app?sslmode=require",
        ),
        ("postgresql://ann:s3@cret@db/app", "postgresql://ann:***@db/app"),
        ("postgresql://db/app?user=ann&password=s3cret", "postgresql://db/app?user=ann&password=***"),
        (
            "postgresql:///app?host=/run/pg&sslpassword=s3cret",
            "postgresql:///app?host=/run/pg&sslpassword=***",
        ),
        ("postgresql://ann:s3/cret@db/app", "***"),
        ("postgresql://ann:s3#cret@db/app", "***"),
        ("host=db password=s3cret", "***"),
        ("postgresql://[ann:s3cret@db", "***"),
        ("postgresql://db:5432/app", "postgresql://db:5432/app"),
    ],
)
def test_repr_hides_passwords(dsn: str, shown: str) -> None:
    text = repr(load({"dsn": dsn}, environ={}))
    assert f"dsn={shown!r}" in text
    assert "s3" not in text


def test_repr_and_errors_hide_the_encryption_key() -> None:
    config = load({"encryption_key": KEY}, environ={})
    assert config.encryption_keys == (bytes(range(32)),)
    assert KEY not in repr(config)
    assert KEY not in f"{config}"
    with pytest.raises(InvalidOption) as caught:
        load({"encryption_key": KEY[:-4]}, environ={})
    assert KEY[:-4] not in str(caught.value)


@pytest.mark.parametrize("between", [",", "\n", " , "])
def test_several_keys_are_separated_by_commas_or_lines(between: str) -> None:
    other = b64encode(bytes(32)).decode()
    config = load({"encryption_key": f"{other}{between}{KEY}"}, environ={})
    assert config.encryption_keys == (bytes(32), bytes(range(32)))
    assert Config().encryption_keys == ()


@pytest.mark.parametrize("name", Config.__struct_fields__)
def test_error_says_what_a_setting_must_be(name: str) -> None:
    with pytest.raises(InvalidOption, match=r"it must be (one of|true or false|a whole number|a number|text)"):
        load({name: []}, environ={})


# --- Secrets in files -----------------------------------------------------------------------------------------


def secret_file(directory: Path, content: str | bytes, name: str = "secret") -> Path:
    file = directory / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


def test_secrets_are_read_from_files_that_any_source_names(tmp_path: Path) -> None:
    file = secret_file(tmp_path, f"{KEY}\n")
    assert load({"encryption_key_file": str(file)}, environ={}).encryption_key == KEY
    assert load({"encryption_key_file": file}, environ={}).encryption_key == KEY
    assert load(environ={"LOCKSTEP_ENCRYPTION_KEY_FILE": str(file)}).encryption_key == KEY
    assert load(environ={}, file=write(tmp_path, f"encryption_key_file = '{file}'")).encryption_key == KEY
    dsn = secret_file(tmp_path, "postgresql://ann:s3cret@db/app\n", "dsn")
    assert load(environ={"LOCKSTEP_DSN_FILE": str(dsn)}).dsn == "postgresql://ann:s3cret@db/app"


def test_every_secret_setting_has_a_file() -> None:
    assert {"encryption_key"} <= set(SECRETS)
    for name in SECRETS:
        assert f"LOCKSTEP_{name.upper()}_FILE" in VARIABLES
        assert f"{name}=None" in repr(Config())


def test_stronger_source_wins_whether_it_names_a_file_or_not(tmp_path: Path) -> None:
    other = b64encode(bytes(32)).decode()
    file = secret_file(tmp_path, KEY)
    assert load({"encryption_key": other}, environ={"LOCKSTEP_ENCRYPTION_KEY_FILE": str(file)}).encryption_key == other
    assert load({"encryption_key_file": file}, environ={"LOCKSTEP_ENCRYPTION_KEY": other}).encryption_key == KEY


def test_secret_and_its_file_from_one_source_exclude_each_other(tmp_path: Path) -> None:
    file = str(secret_file(tmp_path, KEY))
    environ = {"LOCKSTEP_ENCRYPTION_KEY": KEY, "LOCKSTEP_ENCRYPTION_KEY_FILE": file}
    with pytest.raises(InvalidOption, match="LOCKSTEP_ENCRYPTION_KEY and LOCKSTEP_ENCRYPTION_KEY_FILE exclude") as said:
        load(environ=environ)
    assert KEY not in str(said.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"", "is empty"), (b" \n", "is empty"), (b"\xff\xfe", "is not text"), (b"x" * 70_000, "more than 65536 bytes")],
    ids=["empty", "blank", "binary", "large"],
)
def test_bad_secret_files_are_refused(tmp_path: Path, content: bytes, told: str) -> None:
    file = secret_file(tmp_path, content)
    with pytest.raises(InvalidOption, match=rf"^the file that LOCKSTEP_DSN_FILE names, '{file}',.* {told}"):
        load(environ={"LOCKSTEP_DSN_FILE": str(file)})


def test_missing_secret_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"nowhere.* cannot be read: No such file"):
        load({"dsn_file": tmp_path / "nowhere"}, environ={})
    with pytest.raises(InvalidOption, match="dsn_file is not valid: it must be the path of a file"):
        load({"dsn_file": 5}, environ={})


def test_contents_of_a_bad_secret_file_are_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="LOCKSTEP_ENCRYPTION_KEY_FILE is not valid") as said:
        load(environ={"LOCKSTEP_ENCRYPTION_KEY_FILE": str(secret_file(tmp_path, "c2VzYW1l"))})
    assert "c2VzYW1l" not in str(said.value)


@pytest.mark.parametrize(
    ("dsn", "has"),
    [
        ("postgresql://ann:s3cret@db/app", True),
        ("postgresql://ann:s3@cret@db/app", True),
        ("postgresql://db/app?user=ann&password=s3cret", True),
        ("postgresql://db/app?sslpassword=s3cret", True),
        ("host=db password=s3cret", True),
        ("host=db password = 's3cret'", True),
        ("postgresql://ann@db:5432/app?sslmode=require", False),
        ("postgresql://db:5432,other:5433/app", False),
        ("postgresql:///app?host=/run/a@b:c", False),
        ("postgresql:///password?passfile=/x", False),
        ("host=db user=ann", False),
        ("memory://", False),
    ],
)
def test_password_in_a_dsn_is_found(dsn: str, has: bool) -> None:
    assert has_password(dsn) is has
