"""A plugin that searches all that tests print and log, and the logs of processes that they start, for secrets.

It finds API keys, signed tokens, private keys and passwords in addresses by their form; and what this process has used
as a key of encryption, or as the secret of tokens, in each spelling of a setting. A test that prints one fails.
`make test-secrets` runs all tests with it.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.core import sealing
from lockstep.server.auth import tokens

FORMS = {
    "an API key": re.compile(r"lsk_[0-9a-f]{16}_[A-Za-z0-9_-]{20,}"),
    "a signed token": re.compile(r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{20,}"),
    "a private key": re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a password": re.compile(r"postgres(?:ql)?://[^\s:/@?]*:(?!\*\*\*@)[^\s/@]+@"),
}
LOG_BYTES_MAX = 16 * 1024 * 1024
_used: set[str] = set()
"""Spellings of secrets that this process has used."""


def learn(secret: bytes) -> None:
    _used.update((b64encode(secret).decode(), secret.hex()))


def found_in(text: str) -> Iterator[str]:
    """What kinds of secrets are in a text."""
    yield from (kind for kind, form in FORMS.items() if form.search(text))
    if any(secret in text for secret in _used):
        yield "a key"


@pytest.fixture(scope="session", autouse=True)
def _learning() -> Generator[None]:
    """Notice the keys that are used."""
    patch = pytest.MonkeyPatch()
    keyring, key_of_secret = sealing.Keyring.__init__, tokens.key_of_secret

    def init(self: sealing.Keyring, *args: Any, **named: Any) -> None:
        keyring(self, *args, **named)
        for key in self.keys:
            learn(key)

    def noted(secret: str) -> tokens.TokenKey:
        _used.add(secret)
        return key_of_secret(secret)

    patch.setattr(sealing.Keyring, "__init__", init)
    patch.setattr(tokens, "key_of_secret", noted)
    yield
    patch.undo()


def _logs(item: pytest.Item) -> Iterator[tuple[str, str]]:
    """The log files of processes that the test has started in its directory."""
    directory = getattr(item, "funcargs", {}).get("tmp_path")
    if isinstance(directory, Path) and directory.is_dir():
        for path in directory.rglob("*.log"):
            if path.is_file() and path.stat().st_size <= LOG_BYTES_MAX:
                yield path.name, path.read_text(encoding="utf-8", errors="replace")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when != "teardown" or item.get_closest_marker("says_secrets") is not None:
        return report
    for title, text in [*report.sections, *_logs(item)]:
        if kinds := list(found_in(text)):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} says {', '.join(kinds)}: in {title}"
    return report
