"""The pages for people, and the OpenAPI document."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from lockstep.server.openapi import document
from lockstep.server.routes import ROUTES
from support.http import Http


@pytest.mark.parametrize("path", ["/", "/docs/api"])
def test_a_page_needs_nothing_from_elsewhere(memory_http: Http, path: str) -> None:
    answer = memory_http.get(path)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    page = answer.body.decode()
    assert re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page) == []
    assert "{version}" not in page
    assert re.findall(r"<style|<script>|\son\w+=|style=", page.replace('name="style', "")) == []


class _Assets(HTMLParser):
    """What a page would load or run, the text of its code elements, and what was left open."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.code: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "code":
            self.code.append(data)


def test_the_documentation_lists_every_route_without_a_script(memory_http: Http) -> None:
    page = memory_http.get("/docs/api").body.decode()
    found = _Assets()
    found.feed(page)
    assert found.open == []
    assert found.code == [f"{route.method} {route.path}" for route in ROUTES.all]
    files = {"/pages/routes.css", "/pages/routes.js"}
    assert set(found.loaded) == {"data:,", "/", "/docs/", "/openapi.json", *files}
    # Nor does what runs on it ask for anything but the document and what its reader sends.
    page += "".join([memory_http.get(file).body.decode() for file in files])
    assert set(re.findall(r"fetch\(([^,)]*)", page)) == {'"/openapi.json"', "target"}
    assert re.findall(r"https?://|@import|url\(|import\(|WebSocket|XMLHttpRequest|sendBeacon", page) == []


def test_file_of_a_page_is_one_of_a_list(memory_http: Http) -> None:
    assert memory_http.get("/pages/routes.js").headers["content-type"] == "text/javascript; charset=utf-8"
    for name in ("routes.html", "not_built.html", "a", "..a"):
        assert memory_http.get(f"/pages/{name}").code == "no_such_route"


def test_the_links_of_the_first_page_lead_somewhere(memory_http: Http) -> None:
    page = memory_http.get("/").body.decode()
    links = re.findall(r'(?:href|src)="(/[^"]*)"', page)
    assert len(links) > 2
    for link in links:
        assert memory_http.get(link).status == 200, link


def test_the_document_is_served(memory_http: Http) -> None:
    served = memory_http.get("/openapi.json").json()
    assert served["openapi"] == "3.1.0"
    assert set(served["paths"]) == set(document(ROUTES.all)["paths"])


def _references(schema: Any) -> set[str]:
    if isinstance(schema, dict):
        own = {schema["$ref"]} if "$ref" in schema else set()
        return own.union(*[_references(value) for value in schema.values()])
    if isinstance(schema, list):
        return set().union(*[_references(value) for value in schema])
    return set()


def test_every_reference_of_the_document_leads_somewhere() -> None:
    described = document(ROUTES.all)
    for reference in _references(described):
        name = reference.removeprefix("#/components/schemas/")
        assert name in described["components"]["schemas"], reference


def test_operations_have_names_of_their_own() -> None:
    described = document(ROUTES.all)
    names = [operation["operationId"] for path in described["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names)) == len(ROUTES.all)


def test_parameters_have_types_defaults_and_texts() -> None:
    described = document(ROUTES.all)
    clear = described["paths"]["/api/v1/queues/{queue}/clear"]["delete"]
    by_name = {parameter["name"]: parameter for parameter in clear["parameters"]}
    assert (by_name["queue"]["in"], by_name["queue"]["required"]) == ("path", True)
    assert by_name["partition"] == {"name": "partition", "in": "query", "required": False, "schema": {"type": "string"}}
    assert by_name["scope"]["schema"] == {"enum": ["all", "scheduled", "unleased"], "default": "all"}
    assert by_name["scope"]["description"].startswith("`unleased`")


def test_a_payload_is_any_json() -> None:
    item = document(ROUTES.all)["components"]["schemas"]["PushItem"]
    assert item["properties"]["payload"] == {}
    assert item["required"] == ["queue"]
