"""The server and its store on the wire: settings and consistency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from lockstep.core.records import Problem


class SettingRow(Struct):
    name: str
    value: Any
    """Secrets are hidden."""
    source: str
    """The variable, file or option that sets it, or `default`."""
    meaning: str


class SettingsAnswer(Struct):
    settings: list[SettingRow]
    """Sorted by name."""


class VerifyBody(Struct):
    queue: str | None = None
    """Check only the data of this queue."""


class ProblemRow(Struct, rename="camel"):
    kind: str
    text: str
    repairable: bool
    queue: str | None


class VerifyAnswer(Struct):
    problems: list[ProblemRow]


def settings_answer(
    shown: Mapping[str, Any], sources: Mapping[str, str], meanings: Mapping[str, str]
) -> SettingsAnswer:
    return SettingsAnswer(
        [
            SettingRow(name, value, sources.get(name, "default"), meanings.get(name, ""))
            for name, value in sorted(shown.items())
        ]
    )


def verify_answer(problems: Sequence[Problem]) -> VerifyAnswer:
    return VerifyAnswer([ProblemRow(one.kind, one.text, one.repairable, one.queue) for one in problems])
