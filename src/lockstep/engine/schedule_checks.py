"""Checks of requests about scheduled and recurring messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import get_args

from lockstep.config import Config
from lockstep.core.crons import CRON_NAME_LENGTH_MAX, CatchUp, NewCron, batch_of, check_times
from lockstep.core.gathering import check_schedule
from lockstep.core.messages import NewSchedule
from lockstep.core.names import check_name
from lockstep.core.schedules import ScheduleFilter, ScheduleName, parse_schedule_cursor
from lockstep.engine import checks
from lockstep.engine.incoming import check_batches
from lockstep.errors import InvalidName, InvalidRequest

_SOME_TIME = datetime(2000, 1, 1, tzinfo=UTC)


def check_schedule_name(which: object) -> ScheduleName:
    which = checks.check_kind(which, ScheduleName)
    if which.id is not None:
        if which.key is not None or which.queue is not None:
            raise InvalidRequest("a schedule is named by its id, or by queue and key, and not by both")
        checks.check_integer(which.id, what="schedule id", low=1)
        return which
    if which.queue is None or which.key is None:
        raise InvalidRequest("a schedule is named by its id, or by queue and key")
    checks.check_queue(which.queue)
    check_name(which.key, what="schedule key")
    return which


def check_new_time(schedule: object) -> NewSchedule:
    """A new time for a message that is already scheduled; its key stays."""
    schedule = check_schedule(schedule, messages=1)
    if schedule.key is not None:
        raise InvalidRequest("the key of a schedule cannot be changed")
    return schedule


def check_schedule_filter(where: object) -> ScheduleFilter:
    where = checks.check_kind(where, ScheduleFilter)
    checks.check_names(queue=where.queue, partition=where.partition)
    if where.partition is not None and where.queue is None:
        raise InvalidRequest("a partition needs its queue")
    if where.key_prefix is not None:
        check_name(where.key_prefix, what="key prefix")
    checks.check_period(where.from_at, where.to_at)
    return where


def check_schedule_cursor(cursor: object) -> None:
    if cursor is not None and not isinstance(cursor, str):
        raise InvalidRequest(f"a page cursor must be a string, not {type(cursor).__name__}")
    parse_schedule_cursor(cursor)


def check_cron_name(name: object) -> str:
    checked = check_name(name, what="cron name")
    if len(checked) > CRON_NAME_LENGTH_MAX:
        raise InvalidName(f"cron name is {len(checked)} characters long; at most {CRON_NAME_LENGTH_MAX} are allowed")
    return checked


def check_cron(cron: object, config: Config) -> NewCron:
    """The recurring message, if its name, its times and its message are right."""
    cron = checks.check_kind(cron, NewCron)
    check_cron_name(cron.name)
    for what, text in (("expression", cron.expression), ("time zone", cron.timezone)):
        if not isinstance(text, str):
            raise InvalidRequest(f"the {what} must be a string, not {type(text).__name__}")
    check_times(cron.expression, cron.timezone)
    if cron.catch_up not in get_args(CatchUp):
        raise InvalidRequest(f"catch_up must be one of {', '.join(get_args(CatchUp))}, not {str(cron.catch_up)[:64]!r}")
    checks.check_boolean(cron.enabled, what="enabled")
    try:
        batch = batch_of(cron, [_SOME_TIME])
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"headers must be a mapping of strings to strings: {error}") from error
    check_batches([batch], config)
    return cron
