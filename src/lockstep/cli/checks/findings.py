"""The result of a check."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]


class CheckResult(msgspec.Struct, frozen=True):
    level: Level
    subject: str
    text: str
    advice: str | None = None
    """How to fix it."""


def ok(subject: str, text: str) -> CheckResult:
    return CheckResult("ok", subject, text)


def warn(subject: str, text: str, advice: str) -> CheckResult:
    return CheckResult("warn", subject, text, advice)


def fail(subject: str, text: str, advice: str) -> CheckResult:
    return CheckResult("fail", subject, text, advice)
