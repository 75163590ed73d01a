"""What takes long and proves little more than its neighbours do runs in `make soak`, not in every run of the tests."""

from __future__ import annotations

import os

import pytest

soak_only = pytest.mark.skipif(not os.environ.get("LOCKSTEP_SOAK"), reason="runs in make soak")
