"""The options of a read: what they mean, and errors that name the option."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from lockstep.errors import InvalidOption, Unavailable
from lockstep.spark.database import Access
from lockstep.spark.options import ReadOptions, ReadPosition
from lockstep.spark.read.offsets import EARLIEST
from lockstep.spark.read.schema import ddl


def test_names_are_in_any_case() -> None:
    options = ReadOptions.of({"QUEUE": "orders", "maxmessagespertrigger": "10", "FailOnDataLoss": "FALSE"})
    assert (options.queues, options.messages_max, options.fail_on_data_loss) == (("orders",), 10, False)


@pytest.mark.parametrize(
    ("given", "queues"),
    [
        ({"queue": "a, b,a"}, ("a", "b")),
        ({"queue": '["a,b", "c"]'}, ("a,b", "c")),
        ({"path": "orders"}, ("orders",)),
    ],
)
def test_one_queue_or_several(given: dict[str, str], queues: tuple[str, ...]) -> None:
    assert ReadOptions.of(given).queues == queues


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", ReadPosition("earliest")),
        ("Latest", ReadPosition("latest")),
        ("-1h30m", ReadPosition("ago", ago=timedelta(minutes=90))),
        ("2026-01-02T03:04:05Z", ReadPosition("time", at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))),
        ("2026-01-02", ReadPosition("time", at=datetime(2026, 1, 2, tzinfo=UTC))),
        (
            '{"base":"1:1:","to":"1:1:","segment":0,"system":"s/1"}',
            ReadPosition("offset", place=EARLIEST, system="s/1"),
        ),
    ],
)
def test_positions(text: str, position: ReadPosition) -> None:
    assert ReadOptions.of({"queue": "q", "startingPosition": text}).starting == position


def test_unknown_option_is_named_and_the_known_ones_are_listed() -> None:
    with pytest.raises(InvalidOption, match=r"unknown option queu; known are .*queue") as raised:
        ReadOptions.of({"queu": "orders"})
    assert raised.value.details == {"unknown": ["queu"]}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue", ""),
        ("queue", "a,,b"),
        ("queue", "[1]"),
        ("queue", "[not json"),
        ("partitions", "\x00"),
        ("traceId", "not-a-uuid"),
        ("columns", "seq,colour"),
        ("columns", ""),
        ("payloadType", "json"),
        ("payloadMode", "maybe"),
        ("startingPosition", "yesterday"),
        ("startingPosition", "-10 parsecs"),
        ("startingPosition", '{"base":"1:1:"}'),
        ("startingPosition", "{"),
        ("startingPosition", '{"base":"9:9:","to":"8:8:","segment":0}'),
        ("endingPosition", "2026-13-01"),
        ("maxMessagesPerTrigger", "0"),
        ("maxMessagesPerTrigger", "many"),
        ("maxMessagesPerTrigger", "9" * 40),
        ("maxBytesPerTrigger", "64q"),
        ("minMessagesPerTrigger", "-1"),
        ("maxTriggerDelay", "5"),
        ("maxTriggerDelay", "999999999999d"),
        ("parallelism", "1.5"),
        ("mode", "group"),
        ("failOnDataLoss", "perhaps"),
        ("streamName", ""),
        ("dsn", ""),
    ],
)
def test_bad_value_is_an_error_that_names_the_option(name: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=f"the option {name} is not valid"):
        ReadOptions.of({"queue": "q", name: value})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "the option queue is missing"),
        ({"queue": "a", "path": "b"}, "given twice"),
        ({"queue": "a", "queuePattern": "b*"}, "exclude each other"),
        ({"queuePattern": "b*", "mode": "lease", "group": "g"}, "a group is of a queue"),
        ({"queuePattern": "b*", "startingSeqs": '{"b": {"p": 1}}'}, "not with queuePattern"),
        ({"queue": "a", "mode": "lease"}, "needs the option group"),
        ({"queue": "a", "group": "g"}, "mode lease"),
        ({"queue": "a", "columns": "data"}, "needs the option payloadSchema"),
        ({"provider": "lockstep", "option.queue": "a", "queue": "a"}, "Use create temporary view"),
        ({"queue": "a", "minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "8"}, "is more than"),
    ],
)
def test_options_that_do_not_go_together(given: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidOption, match=text):
        ReadOptions.of(given)


def test_columns_are_in_any_case_and_in_the_order_that_is_asked_for() -> None:
    columns = ReadOptions.of({"queue": "q", "columns": "Data,SEQ,seq", "payloadSchema": "n int"}).columns
    assert columns == ("data", "seq")
    assert ddl(columns, data="struct<n int>").endswith("struct<n int>, `seq` bigint")


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("64k", 65536), ("2MB", 2 * 1024**2), ("1g", 1024**3)])
def test_sizes(text: str, size: int) -> None:
    assert ReadOptions.of({"queue": "q", "maxBytesPerTrigger": text}).bytes_max == size


def test_secrets_are_in_no_text() -> None:
    options = ReadOptions.of({"queue": "q", "dsn": "postgresql://me:hunter2@db/prod"})
    assert "hunter2" not in repr(options)
    with pytest.raises(InvalidOption) as raised, Access(dsn="postgresql://me:hunter2@db:not a port/prod").connect():
        pass
    assert "hunter2" not in str(raised.value)


def test_dsn_comes_from_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_SALES_DSN", "postgresql://sales")
    monkeypatch.setenv("LOCKSTEP_DSN", "postgresql://general")
    assert Access(dsn_env="LOCKSTEP_SALES_DSN").config().dsn == "postgresql://sales"
    assert Access(dsn="postgresql://own").config().dsn == "postgresql://own"
    assert Access(dsn_env="LOCKSTEP_DSN").config().dsn == "postgresql://general"
    monkeypatch.delenv("LOCKSTEP_SALES_DSN")
    assert Access().config().dsn == "postgresql://general"
    with pytest.raises(InvalidOption, match="dsnEnv names the environment variable LOCKSTEP_SALES_DSN"):
        Access(dsn_env="LOCKSTEP_SALES_DSN").config()


def test_without_a_dsn_the_error_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCKSTEP_DSN", raising=False)
    with pytest.raises(InvalidOption, match="dsnEnv"), Access().connect():
        pass


def test_database_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(Unavailable), Access(dsn="postgresql://127.0.0.1:1/nothing").connect():
        pass
