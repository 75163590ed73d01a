"""The search for secrets finds what it is for: a check that finds nothing would always pass."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

import secret_search

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("GET lsk_0123456789abcdef_" + "s" * 43, "an API key"),
        ("Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4iLCJleHAiOjF9." + "x" * 43, "a signed token"),
        ("-----BEGIN EC PRIVATE KEY-----", "a private key"),
        ("connecting to postgresql://app:open-sesame@db/queues", "a password"),
    ],
)
def test_secrets_are_found_by_their_form(text: str, kind: str) -> None:
    assert list(secret_search.found_in(text)) == [kind]


@pytest.mark.parametrize(
    "text",
    ["postgresql://app:***@db/queues", "postgresql://app@db:5432/queues", "lsk_<id>_<secret>", "key 0f3a of ann", ""],
)
def test_what_is_no_secret_is_not(text: str) -> None:
    assert list(secret_search.found_in(text)) == []


def test_keys_that_were_used_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_search, "_used", set())
    key = bytes(range(100, 132))
    secret_search.learn(key)
    assert list(secret_search.found_in(f"key={b64encode(key).decode()}")) == ["a key"]
    assert list(secret_search.found_in(key.hex())) == ["a key"]


@pytest.mark.says_secrets
@pytest.mark.parametrize(
    "saying",
    ["print(SECRET)", "import logging; logging.error(SECRET)", "(tmp_path / 'server.log').write_text(SECRET)"],
)
def test_test_that_says_a_secret_fails(pytester: pytest.Pytester, saying: str) -> None:
    secret = "lsk_0123456789abcdef_" + "s" * 43
    pytester.makeconftest('pytest_plugins = ["secret_search"]')
    pytester.makepyfile(f"SECRET = {secret!r}\ndef test_it(tmp_path):\n    {saying}\n")
    path = Path(secret_search.__file__).parent
    pytester.syspathinsert(path)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nmarkers = says_secrets")
    result = pytester.runpytest_inprocess("-p", "no:randomly", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*says an API key*"])
