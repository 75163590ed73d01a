"""The documents, and the Python in them.

A block of Python may say after `python` how it is used: `sketch` is compiled and not executed, `postgres` needs a
database, `run` is a program of its own (shell.py). What a `print` prints is the comment behind it; ` | ` separates the
lines of one that prints several times.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs/guides").rglob("*.md"))
DOCUMENTS = [ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
USES = {"", "sketch", "postgres", "run"}

_BLOCK = re.compile(r"^```python *([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINT = re.compile(r"\bprint\(.*\)  # (.*)$", re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """One block of Python in a document."""

    path: Path
    line: int
    use: str
    source: str

    def __str__(self) -> str:
        return f"{name_of(self.path)}:{self.line}"

    def parse(self) -> ast.Module:
        return ast.parse(self.source, str(self))

    def compile(self) -> CodeType:
        """The block as code; with an await outside of a function it gives a coroutine."""
        # The blank lines make the line numbers of a failure those of the document.
        source = "\n" * self.line + self.source
        return compile(source, str(self.path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    def prints(self) -> list[str]:
        """What the comments say that it prints."""
        return [line for comment in _PRINT.findall(self.source) for line in comment.split(" | ")]


def blocks_of(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        yield Block(path, text.count("\n", 0, match.start()) + 1, match[1].strip(), match[2])
