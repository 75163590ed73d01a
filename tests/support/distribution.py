"""Assigns tests to workers: the tests of a file stay together, so that shared fixtures are created once, and files with
the same `xdist_group` share a worker, so that they share a Spark session.

xdist's own `loadgroup` takes the groups from names that it gives to the tests, which pytest 9.2 ignores: every test
would go wherever there is room, and each worker would start everything.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling

# Of a whole file; in a list of marks it stands on a line of its own.
_GROUP = re.compile(r"^(?:pytestmark = |    )pytest\.mark\.xdist_group\(\"([\w-]+)\"\)", re.MULTILINE)
_WEIGHTS = {"tests/spark/": 15, "tests/chaos/": 30, "tests/e2e/": 5, "tests/browser/": 5, "tests/benchmarks/": 10}
"""About how many times as long as another test one in these folders takes."""


@cache
def _group(file: Path) -> str | None:
    found = _GROUP.search(file.read_text(encoding="utf-8"))
    return found[1] if found else None


class ByFile(LoadScopeScheduling):
    """Assigns files and groups, the longest first, so that all workers finish at about the same time."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _group(self.config.rootpath / file) or file

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=self._weight), last=False)
        super()._assign_work_unit(node)

    def _weight(self, scope: str) -> int:
        tests = self.workqueue[scope]
        first = next(iter(tests))
        return len(tests) * next((weight for folder, weight in _WEIGHTS.items() if first.startswith(folder)), 1)
