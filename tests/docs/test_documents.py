"""What the documents point at exists, and the Python in them is Python."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from blocks import DOCUMENTS, ROOT, USES, Block, blocks_of, name_of

import lockstep
import lockstep.spark
from lockstep import Engine

BLOCKS = [block for path in DOCUMENTS for block in blocks_of(path)]
VERBS = [name for name, _ in inspect.getmembers(Engine, inspect.isfunction) if not name.startswith("_")]

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_relative_links_resolve(path: Path) -> None:
    links = [link for link in _LINK.findall(_prose(path)) if "://" not in link]
    assert [link for link in links if not _resolves(path, link)] == []


def _prose(path: Path) -> str:
    return _FENCED.sub("", path.read_text(encoding="utf-8"))


def _resolves(path: Path, link: str) -> bool:
    place, _, anchor = link.partition("#")
    target = (path.parent / place).resolve() if place else path
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(path: Path) -> set[str]:
    """The headings as GitHub names them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(_prose(path))}


def test_contributing_has_every_target_of_make() -> None:
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [target for target in targets if target != "help" and f"`make {target}`" not in text] == []


def test_table_of_additions_names_files_that_are_there() -> None:
    text = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Where things go")[2].partition("\n## ")[0]
    )
    named = re.findall(r"`([\w./]+\.(?:py|sql|tsx|md|yml))`", text)
    roots = [ROOT, ROOT / "src/lockstep", ROOT / "dashboard/src", ROOT / "src/lockstep/storage/postgres"]
    assert len(named) > 20
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []


def test_map_has_every_folder() -> None:
    architecture = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\w+", architecture.partition("## The map")[2].partition("## ")[0]))
    files = [*ROOT.glob("src/lockstep/**/*.*"), *ROOT.glob("tests/*/*.py"), *ROOT.glob("*/*.py"), *ROOT.glob("tools/*")]
    # "assets" is what Vite writes, "documentation" what tools/docs does; git ignores all three.
    built = {"__pycache__", "assets", "documentation"}
    folders = {file.parent.relative_to(ROOT) for file in files if not built.intersection(file.parts)}
    assert {str(folder) for folder in folders if folder.name not in named} == set()


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_python_compiles_and_imports_what_is_there(block: Block) -> None:
    assert block.use in USES
    block.compile()
    assert [name for name in _names_of_lockstep(block) if not _exists(*name)] == []


def _names_of_lockstep(block: Block) -> Iterator[tuple[str, str]]:
    """Module and name of all that the block takes from Lockstep."""
    for node in ast.walk(block.parse()):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "lockstep":
            yield from ((node.module or "", alias.name) for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lockstep":
            yield "lockstep", node.attr


def _exists(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name)


def test_public_names_are_the_exported_ones() -> None:
    """The guides may use any module; the README only what `lockstep` and `lockstep.spark` export."""
    used = {name for block in blocks_of(ROOT / "README.md") for name in _names_of_lockstep(block)}
    exported = {"lockstep": lockstep.__all__, "lockstep.spark": lockstep.spark.__all__}
    assert {name for module, name in used if name not in exported.get(module, ())} == set()


@pytest.mark.parametrize("verb", VERBS)
def test_guide_of_the_library_mentions_every_verb(verb: str) -> None:
    text = (ROOT / "docs/guides/library.md").read_text(encoding="utf-8")
    assert f"engine.{verb}(" in text or f"`{verb}`" in text
