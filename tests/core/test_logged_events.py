"""The table of events has everything that is logged anywhere in Lockstep, and nothing else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import lockstep
from lockstep.logs import EVENTS

SOURCE = Path(lockstep.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
OF_EXCEPTION = {"exception": "error"}


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of a logger, with its place."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS:
                receiver = ast.unparse(node.func.value)
                if receiver.endswith("logger") or receiver.startswith("logging"):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", node


def logged() -> Iterator[tuple[str, str, str]]:
    """The place, the name and the level of every event, as far as the call itself names them."""
    for place, call in calls():
        assert isinstance(call.func, ast.Attribute)
        name = call.args[1] if call.func.attr == "log" else call.args[0]
        if isinstance(name, ast.Constant):
            yield place, str(name.value), OF_EXCEPTION.get(call.func.attr, call.func.attr)
        else:
            # engine/background.py: the name of the work decides.
            assert (place.partition(":")[0], ast.unparse(name)) == ("engine/background.py", "event"), place
            for work in background_works():
                yield place, f"{work}_failed", "error"


def background_works() -> set[str]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Background":
                name = node.args[0]
                found.add(str(name.value) if isinstance(name, ast.Constant) else path.stem)
    return found


def test_everything_logged_is_in_the_table() -> None:
    assert len(list(calls())) > 50
    assert [place for place, name, _ in logged() if name not in EVENTS] == []


def test_sentences_are_logged_by_what_runs_inside_of_spark_alone() -> None:
    loggers = {
        path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py") if re.search(r"\b_log\.", path.read_text())
    }
    assert loggers == {"spark"}, "elsewhere a record is an event of the table"


def test_everything_in_the_table_is_logged() -> None:
    assert set(EVENTS) - {name for _, name, _ in logged()} == set()


def test_levels_of_the_table_are_those_that_are_used() -> None:
    for place, name, level in logged():
        if level != "log":  # then the level is decided when it is logged
            assert level in EVENTS[name].level.split(", "), place


def test_action_of_a_record_is_its_event() -> None:
    for place, call in calls():
        [extra] = [keyword.value for keyword in call.keywords if keyword.arg == "extra"]
        if isinstance(extra, ast.Dict):
            actions = [
                value.value
                for key, value in zip(extra.keys, extra.values, strict=True)
                if isinstance(key, ast.Constant) and key.value == "action" and isinstance(value, ast.Constant)
            ]
            assert all(action in EVENTS and action in ast.unparse(call.args[-1]) for action in actions), place


def test_texts_are_sentences() -> None:
    for event in EVENTS.values():
        assert event.text[0].isupper()
        assert event.text.endswith(".")
