"""The site that `make docs` builds has every page and needs nothing from elsewhere, and its links lead somewhere."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from blocks import ROOT

PAGES = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built strictly: a page that is not in the navigation, or a link that leads nowhere, fails it."""
    folder = tmp_path_factory.mktemp("documentation") / "site"
    command = [ROOT / "tools/docs", "--strict", "--to", folder]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (built.returncode, built.stdout, built.stderr) == (0, "", "")
    return folder


class _Page(HTMLParser):
    """The addresses that a page names, the places in it, and what its policy would refuse."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.refused: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a":
            self.links += [found.get("href") or ""] if "href" in found else []
        else:
            self.loaded += [value for name in ("src", "href", "srcset", "data", "action") if (value := found.get(name))]
        self.refused += [f"<{tag} {name}>" for name in found if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in found and found.get("type") != "application/json"):
            self.refused.append(f"<{tag}>")


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, _Page]:
    return {path: _Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def _article(path: Path) -> str:
    """What the author wrote of a page."""
    return path.read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]


def test_site_has_every_page(site: Path) -> None:
    missing = [
        page for page in PAGES if not (site / str(page).replace("README", "index")).with_suffix(".html").exists()
    ]
    assert missing == []


def test_every_link_leads_somewhere(site: Path, pages: dict[Path, _Page]) -> None:
    assert [broken for path in pages for broken in _broken(site, pages, path)] == []


def _broken(site: Path, pages: dict[Path, _Page], path: Path) -> Iterator[str]:
    for link in pages[path].links + pages[path].loaded:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        # The page of a wrong address is shown anywhere, so its links begin at the root of the server.
        place = parts.path.removeprefix("/docs/") if path.name == "404.html" else parts.path
        target = path if not place else ((site if path.name == "404.html" else path.parent) / unquote(place)).resolve()
        if target.is_dir():
            target /= "index.html"
        if not target.is_file() or (parts.fragment and parts.fragment not in pages[target].ids | {"__skip"}):
            yield f"{path.relative_to(site)}: {link}"


def test_pages_load_nothing_from_elsewhere_and_nothing_inline(pages: dict[Path, _Page]) -> None:
    assert [one for page in pages.values() for one in page.loaded if re.match(r"(https?:)?//", one)] == []
    assert {one for page in pages.values() for one in page.refused} == set()


def test_styles_and_scripts_load_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.css"):
        assert re.findall(r"url\(['\"]?(?:https?:)?//|@import", path.read_text(encoding="utf-8")) == [], path


def test_markdown_became_html(pages: dict[Path, _Page]) -> None:
    """Lists and tables that lack the empty line before them would stay text."""
    for path in pages:
        text = re.sub(r"<(pre|code)\b.*?</\1>", "", _article(path), flags=re.DOTALL)
        assert re.findall(r"\n\s*(?:[-*] |\| |#+ |```).*|\]\([^)]*\)", re.sub(r"<svg.*?</svg>", "", text)) == [], path


def test_bars_in_tables_have_no_backslashes(pages: dict[Path, _Page]) -> None:
    cells = {path: re.findall(r"<td.*?</td>", _article(path), flags=re.DOTALL) for path in pages}
    assert any("|" in cell for found in cells.values() for cell in found)
    assert [cell for found in cells.values() for cell in found if "\\|" in cell] == []


def test_manifest_names_every_file(site: Path) -> None:
    named = json.loads((site / "manifest.json").read_text())
    files = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    packed = {name for name in files if name.endswith(".gz")}
    assert set(named) == files - packed - {"manifest.json"}
    assert {name.removesuffix(".gz") for name in packed} <= set(named)
    assert len(named) > len(PAGES)


def test_search_finds_every_page(site: Path) -> None:
    places = {entry["location"] for entry in json.loads((site / "search/search_index.json").read_text())["docs"]}
    found = {place.partition("#")[0] for place in places}
    assert {str(page).replace("README", "index").removesuffix(".md") + ".html" for page in PAGES} - found == set()


def test_generated_pages_have_their_titles(site: Path) -> None:
    """Not the names of their files: a comment stands before their headings."""
    for name, title in (("cli", "The command line"), ("http", "HTTP routes"), ("sql", "SQL")):
        assert f"<title>{title} - Lockstep</title>" in (site / f"reference/{name}.html").read_text(encoding="utf-8")
