"""The site of the documentation at /docs/."""

from __future__ import annotations

import gzip
import json
from importlib import resources

import pytest

from lockstep.server import documentation
from lockstep.storage.memory import MemoryStore
from support.http import Http
from support.serving import serving

built = pytest.mark.skipif(not documentation.is_built(), reason="the documentation is not built (make docs)")
THEME_FILE = next(
    (name for name in documentation._hashes() if name.startswith("assets/javascripts/bundle.")), "not built"
)


def test_address_without_its_slash_is_completed(memory_http: Http) -> None:
    answer = memory_http.get("/docs")
    assert (answer.status, answer.headers["location"]) == (308, "/docs/")


@built
@pytest.mark.parametrize(
    ("path", "media"),
    [
        ("/docs/", "text/html; charset=utf-8"),
        ("/docs/guides/client.html", "text/html; charset=utf-8"),
        ("/docs/search/search_index.json", "application/json"),
        ("/docs/assets/stylesheets/lockstep.css", "text/css; charset=utf-8"),
        ("/docs/pictures/order.svg", "image/svg+xml"),
        (f"/docs/{THEME_FILE}", "text/javascript; charset=utf-8"),
    ],
)
def test_files_have_types_and_a_strict_policy(memory_http: Http, path: str, media: str) -> None:
    answer = memory_http.get(path)
    assert (answer.status, answer.headers["content-type"]) == (200, media)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


@built
def test_browser_keeps_what_cannot_change_and_asks_for_the_rest(memory_http: Http) -> None:
    assert memory_http.get(f"/docs/{THEME_FILE}").headers["cache-control"] == "public, max-age=31536000, immutable"
    page = memory_http.get("/docs/quick-start.html")
    assert page.headers["cache-control"] == "no-cache"
    again = memory_http.send("GET", "/docs/quick-start.html", headers={"If-None-Match": page.headers["etag"]})
    assert (again.status, again.body, again.headers["etag"]) == (304, b"", page.headers["etag"])
    assert "content-length" not in again.headers
    other = memory_http.send("GET", "/docs/quick-start.html", headers={"If-None-Match": 'W/"other"'})
    assert other.status == 200


@built
def test_files_are_packed_for_those_who_take_that(memory_http: Http) -> None:
    plain = memory_http.get("/docs/quick-start.html")
    packed = memory_http.send("GET", "/docs/quick-start.html", headers={"Accept-Encoding": "br, gzip;q=0.8"})
    assert "content-encoding" not in plain.headers
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2


@built
@pytest.mark.parametrize("path", ["nothing.html", "manifest.json", "index.html.gz", "guides", ".sources"])
def test_only_files_of_the_manifest_are_served(memory_http: Http, path: str) -> None:
    answer = memory_http.get(f"/docs/{path}")
    assert answer.status == 404
    assert b"<title>Lockstep</title>" in answer.body


@built
def test_every_file_of_the_manifest_is_served(memory_http: Http) -> None:
    manifest = resources.files("lockstep.server") / "documentation/manifest.json"
    names = json.loads(manifest.read_text(encoding="utf-8"))
    assert len(names) > 100
    assert [name for name in names if memory_http.get(f"/docs/{name}").status != 200] == []


def test_server_without_the_site_says_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documentation, "_hashes", dict)
    with serving(MemoryStore()) as url:
        http = Http(url)
        page, routes = http.get("/docs/"), http.get("/docs/api")
    assert page.status == 200
    assert b"make docs" in page.body
    assert "unsafe" not in page.headers["content-security-policy"]
    assert routes.status == 200
