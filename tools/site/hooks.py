"""What MkDocs does beside its own work when it builds the site: pages from outside of docs/, links to them, diagrams.

The pages in docs/ are written for readers of the repository, too. So their links lead to files, and the site gets a
page for each file that they may lead to. Lists are indented as they are everywhere but in Python-Markdown.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
_PROJECT = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "deploy/README.md")
_WIDE = ("reference/http.md", "reference/queue-options.md", "reference/settings.md")
"""Pages that are one table: they get the place of the table of contents."""
_LANGUAGES = {".py": "python", ".yml": "yaml", ".conf": "ini", ".sql": "sql", ".html": "html"}

_LINK = re.compile(r"(\]\()([^()\s#]+)((?:#[^()\s]*)?\))")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_USE = re.compile(r"^(```\w+) [\w ]+$", re.MULTILINE)
_COMMENT = re.compile(r"\A<!--.*?-->\s*", re.DOTALL)
_ITEM = re.compile(r"(?:[-*]|\d+\.) ")
_CELL = re.compile(r"<td.*?</td>", re.DOTALL)
_DIAGRAM = re.compile(r'<img alt="([^"]*)" src="([^"]*\.svg)" ?/?>')
_SVG = "http://www.w3.org/2000/svg"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The lists that grow by a file each get their places in the navigation from the files."""
    ElementTree.register_namespace("", _SVG)
    assert config.nav is not None
    config.nav = [_filled(entry) for entry in config.nav]
    return config


def _filled(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {title: _filled(inner) for title, inner in entry.items()}
    if isinstance(entry, list):
        return [one for inner in entry for one in _expanded(inner)]
    return entry


def _expanded(entry: Any) -> list[Any]:
    """`folder/*.md` is each page in that folder but its README."""
    if not isinstance(entry, str) or "*" not in entry:
        return [_filled(entry)]
    found = sorted(path for path in (ROOT / "docs").glob(entry) if path.name != "README.md")
    return [str(path.relative_to(ROOT / "docs")) for path in found]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for path in _outside():
        address = _address(path)
        if path.suffix == ".md":
            files.append(File.generated(config, address, content=path.read_text(encoding="utf-8")))
        else:
            files.append(File.generated(config, address, content=_source_page(path)))
    return files


def _outside() -> Iterator[Path]:
    """Files that are not in docs/ and have pages all the same."""
    yield from (ROOT / name for name in _PROJECT)
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.is_file() and (path.suffix in _LANGUAGES or path.suffix == ".md") and path.stat().st_size:
            yield path


def _address(path: Path) -> str:
    """Where the page of a file outside of docs/ is, relative to docs/."""
    name = path.relative_to(ROOT)
    if path.suffix != ".md":
        return f"{name.parent}/sources/{path.name}.md"
    return str(name) if name.parts[0] == "examples" else f"project/{name.as_posix().replace('/', '-').lower()}"


def _source_page(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return f"# {path.relative_to(ROOT)}\n\n````{_LANGUAGES[path.suffix]}\n{text.rstrip()}\n````\n"


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    here = _place(page)
    if page.file.src_uri in _WIDE:
        page.meta["hide"] = ["toc"]
    # The title of a page is a heading that nothing stands before.
    markdown = _COMMENT.sub("", markdown)
    rewritten = _outside_of_fences(markdown, lambda text: _LINK.sub(lambda link: _relinked(link, here, page), text))
    return _USE.sub(r"\1", _outside_of_fences(rewritten, _indented))


def _indented(text: str) -> str:
    """Lists as Python-Markdown wants them: with an empty line before, and four spaces before what continues an item."""
    lines: list[str] = []
    width, after_blank = 0, True
    for line in text.split("\n"):
        mark = _ITEM.match(line)
        if mark:
            if not after_blank and (not width or lines[-1].strip() == "```"):
                lines.append("")
            width = len(mark[0])
        elif line and not line.startswith(" ") and after_blank:
            width = 0
        spaces = len(line) - len(line.lstrip(" "))
        levels = spaces // width if width and line.strip() else 0
        lines.append(" " * (levels * (4 - width)) + line)
        after_blank = not line.strip()
    return "\n".join(lines)


def _outside_of_fences(text: str, change: Any) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def _place(page: Page) -> Path:
    """The file that the page is made of; its links are relative to that."""
    written = {_address(path): path for path in _outside()}
    return written.get(page.file.src_uri, ROOT / "docs" / page.file.src_uri)


def _relinked(link: re.Match[str], here: Path, page: Page) -> str:
    begin, target, end = link.groups()
    if "://" in target or target.startswith("mailto:"):
        return link[0]
    path = Path(os.path.normpath(here.parent / target))
    if path.is_dir():
        path /= "README.md"
    if path == ROOT / "README.md":  # what it says is on the first pages of the site
        path = ROOT / "docs/README.md"
    inside = path.is_relative_to(ROOT / "docs")
    address = str(path.relative_to(ROOT / "docs")) if inside else _address(path)
    return begin + posixpath.relpath(address, posixpath.dirname(page.file.src_uri) or ".") + end


def on_page_content(html: str, *, page: Page, **_: object) -> str:
    # In code in a table a code forge takes the backslash before a bar away, and Python-Markdown does not.
    cells = _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)
    return _DIAGRAM.sub(lambda image: _inlined(image, page), cells)


def on_post_template(output: str, *, template_name: str, **_: object) -> str:
    """The page of a wrong address is shown at any, so that its own addresses begin with that of the site."""
    if template_name != "404.html":
        return output
    return re.sub(r'(href|src)="/', r'\1="/docs/', output).replace('"base": "/"', '"base": "/docs"')


def _inlined(image: re.Match[str], page: Page) -> str:
    """A diagram in the page takes the colours of the theme; one in a file of its own could not."""
    path = os.path.normpath((ROOT / "docs" / page.file.src_uri).parent / image[2])
    drawn = ElementTree.parse(path).getroot()
    drawn.set("class", "diagram")
    drawn.set("role", "img")
    drawn.set("aria-label", image[1])
    return ElementTree.tostring(drawn, encoding="unicode")
