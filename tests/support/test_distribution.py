"""Files that say so share a worker, and with it their Spark: nothing would fail if they did not, it would only take
longer."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

_CONFTEST = """
from support.distribution import ByFile

def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)
"""
_TESTS = """
import os
from pathlib import Path

import pytest

{mark}

@pytest.mark.parametrize("n", range(6))
def test_it(n):
    Path({said!r}, f"{{os.environ['PYTEST_XDIST_WORKER']}} {name} {{n}}").touch()
"""
_MARKS = {
    "first": 'pytestmark = pytest.mark.xdist_group("spark")',
    "second": 'pytestmark = [\n    pytest.mark.filterwarnings("error"),\n    pytest.mark.xdist_group("spark"),\n]',
    "third": "",
}


def test_file_stays_whole_and_groups_share_a_worker(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    said = pytester.mkdir("said")
    pytester.makeconftest(_CONFTEST)
    for name, mark in _MARKS.items():
        pytester.makepyfile(**{f"test_{name}": _TESTS.format(mark=mark, said=str(said), name=name)})
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # there are many, and they take seconds
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.runpytest_subprocess("-p", "xdist.plugin", "-n", "2", "-p", "no:cacheprovider").assert_outcomes(passed=18)
    workers = defaultdict(set)
    for worker, name, _ in (path.name.split() for path in said.iterdir()):
        workers[name].add(worker)
    assert workers["first"] == workers["second"] != workers["third"]
    assert [len(found) for found in workers.values()] == [1, 1, 1]
