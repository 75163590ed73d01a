"""`lockstep tail` while messages are pushed."""

from __future__ import annotations

import json
import subprocess

from command_lines import PROGRAM, CommandLine


def test_tail_prints_what_is_pushed_meanwhile(direct: CommandLine, queue: str) -> None:
    direct("push", queue, "1", "-p", "a")
    command = [*PROGRAM, *direct.target, "tail", queue, "--interval", "0.05", "--limit", "4", "-o", "ndjson"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline())]
    direct("push", queue, "2", "-p", "a")
    # A partition that did not exist before is new from its first message on.
    direct("push", queue, "-", "-p", "b", stdin="3\n4\n")
    rest, _ = process.communicate(timeout=60)
    seen += map(json.loads, rest.splitlines())
    assert process.returncode == 0
    assert {(message["partition"], message["payload"]) for message in seen} == {("a", 1), ("a", 2), ("b", 3), ("b", 4)}
    assert [message["payload"] for message in seen if message["partition"] == "b"] == [3, 4]
