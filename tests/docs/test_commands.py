"""The command lines in the documents are ones that `lockstep` takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from blocks import GUIDES, ROOT, name_of

from lockstep.cli.main import cli

_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"(?:^|\$\(|/)lockstep ")


def command_lines() -> Iterator[tuple[str, str]]:
    """The document and the line, with what a backslash continues."""
    for path in (ROOT / "README.md", *GUIDES):
        for block in _BLOCK.findall(path.read_text(encoding="utf-8")):
            for line in block.replace("\\\n", " ").splitlines():
                if _LINE.search(line):
                    yield name_of(path), line


def words(line: str) -> list[str]:
    """The arguments of `lockstep`, up to whatever else the shell does on that line."""
    after = re.split(r"(?:^|\$\(|/)lockstep ", line, maxsplit=1)[1]
    read = shlex.shlex(after.partition(')"')[0], posix=True, punctuation_chars="|<>&;")
    read.whitespace_split = True
    found = []
    for word in read:
        if word[0] in "|<>&;":
            break
        found.append(word)
    return found


def parse(arguments: list[str]) -> click.Context:
    """What would be run. Raises what the user would be told."""
    context = cli.make_context("lockstep", list(arguments))
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize(("document", "line"), [*command_lines()])
def test_command_line_is_taken(document: str, line: str) -> None:
    assert parse(words(line)).command.name, document


def test_command_line_that_is_wrong_is_not_taken() -> None:
    with pytest.raises(click.UsageError):
        parse(words("lockstep queues --no-such-option"))
    with pytest.raises(click.UsageError):
        parse(words("lockstep queue nothing orders"))
