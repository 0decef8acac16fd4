"""Lets the tests of this folder import `node_rig`, and keeps their logs out of the output."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import structlog

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _quiet_logs():
    with structlog.testing.capture_logs():
        yield
