"""The demo, run as a user runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.databases import scratch_directory
from support.soak import soak_only

pytestmark = pytest.mark.xdist_group("spark-pipelines")


def program(directory: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "lockstep", "demo", "--dir", str(directory / "demo"), *arguments]


def test_demo_adds_up() -> None:
    with scratch_directory() as directory:
        command = program(directory, "--orders", "120", "--seconds", "1")
        ended = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        said = ended.stdout.splitlines()
        answers = [line for line in said if line.startswith(("yes", "NO"))]
        assert len(answers) == 12
        assert all(line.startswith("yes") for line in answers)
        assert "Everything adds up." in said
        assert "<svg" in (directory / "demo/report.html").read_text()
        assert list((directory / "demo/archive").rglob("*.parquet"))


@soak_only
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_it_and_its_server(number: signal.Signals) -> None:
    with scratch_directory() as directory:
        command = program(directory, "--orders", "1000", "--seconds", "600")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            while not process.stdout.readline().startswith("Orders come in"):
                assert process.poll() is None
            assert "ordered" in process.stdout.readline()
            process.send_signal(number)
            said, told = process.communicate(timeout=120)
            assert process.returncode == 130, told
            assert "Stopped before the end." in said
        finally:
            process.kill()
            process.communicate()
        # Nobody is left on its database.
        assert not list((directory / "demo/data").rglob("postmaster.pid"))
