"""A cluster of three real servers for each module that wants one, and the command that knows where it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from alpo_command import Alpo
from ports import free_port


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the commands' caches: not the user's own."""
    path = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(path))
        yield path


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("cluster")
    yield path
    Alpo().run("cluster", "stop", "--dir", path, code=None)


@pytest.fixture(scope="module")
def alpo(directory: Path) -> Alpo:
    base = free_port(3)
    servers = Alpo().out("cluster", "start", "--dir", directory, "--base-port", str(base), "--detach").strip()
    assert servers == f"127.0.0.1:{base},127.0.0.1:{base + 1},127.0.0.1:{base + 2}"
    return Alpo(servers)
