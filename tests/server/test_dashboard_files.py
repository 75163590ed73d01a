"""The files of the dashboard, as the server sends them."""

from __future__ import annotations

import gzip
import re

import pytest

from lockstep.server import dashboard
from support.http import Http

pytestmark = pytest.mark.skipif(dashboard.page() is None, reason="the dashboard is not built (make setup)")


def scripts(http: Http) -> list[str]:
    return re.findall(r'src="(/assets/[^"]+\.js)"', http.get("/").body.decode())


def test_page_allows_no_inline_script_and_nothing_from_elsewhere(memory_http: Http) -> None:
    answer = memory_http.get("/")
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "<script>" not in answer.body.decode()
    assert answer.headers["cache-control"] == "no-cache"


def test_each_page_has_a_nonce_of_its_own(memory_http: Http) -> None:
    nonces = set()
    for _ in range(2):
        answer = memory_http.get("/queues/any")
        nonce = re.search(r"'nonce-([^']+)'", answer.headers["content-security-policy"])
        assert nonce is not None
        assert f'content="{nonce[1]}"' in answer.body.decode()
        nonces.add(nonce[1])
    assert len(nonces) == 2


def test_file_is_packed_as_the_browser_likes_it_and_kept_for_good(memory_http: Http) -> None:
    path = scripts(memory_http)[0]
    plain = memory_http.send("GET", path)
    packed = memory_http.send("GET", path, headers={"accept-encoding": "gzip"})
    smallest = memory_http.send("GET", path, headers={"accept-encoding": "gzip, deflate, br"})
    assert plain.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in plain.headers["cache-control"]
    assert gzip.decompress(packed.body) == plain.body
    assert smallest.headers["content-encoding"] == "br"
    assert len(smallest.body) < len(packed.body) < len(plain.body)


@pytest.mark.parametrize("name", ["nothing.js", "..a%2Findex.html", "index.html"])
def test_what_is_no_file_is_not_found(memory_http: Http, name: str) -> None:
    assert memory_http.get(f"/assets/{name}").code == "no_such_route"
