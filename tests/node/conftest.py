"""Lets the tests of this folder import `node_rig`, keeps logs out of the output, sees that connections are closed, and
makes certificates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

sys.path.insert(0, str(Path(__file__).parent))


import node_rig
import tls_kit


@pytest.fixture(scope="session")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the certificates: of a CA, of servers 1 to 3, and of `tls_kit.CLIENTS`. Tests only read it."""
    return tls_kit.certificates(tmp_path_factory.mktemp("certs"))


@pytest.fixture(autouse=True)
def _all_closed() -> Iterator[None]:
    yield
    assert node_rig._open == [], "a connection was made outside a rig"


@pytest.fixture(autouse=True)
def _quiet_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@pytest.fixture(autouse=True)
def _whole_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no busy machine end a page, or a range of the scrub, by its time."""
    monkeypatch.setattr("alpo.node.pages.STRETCH_S", 60.0)
    monkeypatch.setattr("alpo.storage.scrub.STRETCH_S", 60.0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a status wait for the disk's answer, and for other members', for longer than a busy machine ever takes."""
    monkeypatch.setattr("alpo.node.report.DISK_S", 10.0)
    monkeypatch.setattr("alpo.node.http.site.ANSWER_S", 20.0)
