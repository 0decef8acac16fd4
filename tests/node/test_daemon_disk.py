"""alpod and its data directory: what it will not open, what is taken away under it, and the one line that says so."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from alpod import WAIT_S, Serving, flags, run
from ports import free_port

from alpo import connect_sync
from alpo.core.disk import Write
from alpo.storage.sqlite import SqliteStore


def test_a_directory_in_use_names_the_process_that_holds_it(tmp_path: Path) -> None:
    first = flags(tmp_path, free_port())
    with Serving(*first) as server:
        for second in (first, flags(tmp_path, free_port())):
            code, err = run(*second)
            assert code == 1
            assert str(server.process.pid) in err and len(err.splitlines()) == 1


def test_a_wal_that_would_lose_commits_is_not_opened(tmp_path: Path) -> None:
    """Exit 1, a line that names the file, and the files as they were."""
    store = SqliteStore.open(tmp_path, 1)
    for number in range(1, 9):
        store.commit([Write(number, number, 0, None, [], [], 0, 0)])
    left = {name: (tmp_path / name).read_bytes() for name in ("alpo.db", "alpo.db-wal")}
    store.close()
    wal = bytearray(left["alpo.db-wal"])
    wal[len(wal) // 2] ^= 1
    left["alpo.db-wal"] = bytes(wal)
    for name, content in left.items():
        (tmp_path / name).write_bytes(content)
    code, err = run(*flags(tmp_path, free_port()))
    assert code == 1 and len(err.splitlines()) == 1
    assert err.startswith(f"alpod: {tmp_path}/alpo.db-wal: ") and "synced" in err
    assert {name: (tmp_path / name).read_bytes() for name in left} == left


#: alpod on a system where no file called so can be synced.
_NO_SYNC = """
import errno, os, sys
name, sync = sys.argv.pop(1), os.fsync
def fails(descriptor):
    if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/" + name):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    sync(descriptor)
os.fsync = fails
from alpo.daemon import main
main()
"""


@pytest.mark.parametrize("name", ["alpo.db-wal", "alpo.db", "data"])
def test_a_disk_that_cannot_be_synced_at_the_start(tmp_path: Path, name: str) -> None:
    """The server exits with 1 and a line that names the file, sends nothing, and leaves the store as it was."""
    data = tmp_path / "data"
    store = SqliteStore.open(data, 1)
    store.commit([Write(1, 1, 0, None, [], [], 0, 0)])
    left = {name: (data / name).read_bytes() for name in ("alpo.db", "alpo.db-wal")}
    store.close()
    for each, content in left.items():
        (data / each).write_bytes(content)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        other.setblocking(False)
        more = ["--member", f"2=127.0.0.1:{other.getsockname()[1]}"]
        arguments = [sys.executable, "-c", _NO_SYNC, name, *flags(data, free_port()), *more]
        ended = subprocess.run(arguments, capture_output=True, text=True, timeout=WAIT_S, check=False)
        with pytest.raises(BlockingIOError):
            other.accept()
    assert (ended.returncode, ended.stdout) == (1, "")
    path = data if name == "data" else data / name
    told = json.loads(ended.stderr)
    assert (told["event"], told["why"]) == ("cannot_run", f"{path}: cannot be synced: Input/output error")
    assert {path.name: path.read_bytes() for path in data.iterdir() if path.name != "alpo.lock"} == left


def test_a_directory_of_another_server_is_not_touched(tmp_path: Path) -> None:
    with Serving(*flags(tmp_path, free_port())) as server:
        server.process.terminate()
        server.process.wait(WAIT_S)
    before = (tmp_path / "alpo.db").read_bytes()
    code, err = run(*flags(tmp_path, free_port(), id=2))
    assert code == 1 and len(err.splitlines()) == 1 and err.startswith("alpod: ")
    assert (tmp_path / "alpo.db").read_bytes() == before


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    code, err = run(*flags(tmp_path / "file" / "data", free_port()))
    assert code == 1 and err.startswith("alpod: ") and len(err.splitlines()) == 1


@pytest.mark.parametrize("harm", ["removed", "replaced", "without its WAL"])
def test_a_store_that_is_taken_away_ends_it_with_one_line(tmp_path: Path, harm: str) -> None:
    """Asked for its status meanwhile it ends no sooner, and not with a traceback."""
    port = free_port()
    data = tmp_path / "data"
    with Serving(*flags(data, port)) as server:
        if harm == "removed":
            shutil.rmtree(data)
        elif harm == "replaced":
            shutil.copy(data / "alpo.db", tmp_path / "copy")
            (tmp_path / "copy").rename(data / "alpo.db")
        else:
            (data / "alpo.db-wal").unlink()
        with connect_sync(f"127.0.0.1:{port}") as log:
            while server.process.poll() is None:
                log.status()
        _, err = server.process.communicate(timeout=WAIT_S)
        assert server.process.returncode == 1
        last = json.loads(err.splitlines()[-1])
        assert "Traceback" not in err and last["event"] == "cannot_run"
        name = "alpo.db-wal" if "WAL" in harm else "alpo.db"
        assert last["why"] == (
            f"{data}/{name} was removed or replaced under the running server: what it writes would be lost; start it"
            " again, on what shall be its data"
        )


#: alpod one of whose tasks fails for a reason that it was not ready for.
_FAILS = """
import sys
from alpo.node.status import Growth
from alpo.storage.interface import StoreError
async def run(self):
    raise eval(sys.argv[1])
Growth.run = run
from alpo.daemon import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize(("error", "why"), [
    ("StoreError('a.db: no more')", "a.db: no more"),
    ("OSError(5, 'Input/output error', 'a.db')", "a.db: Input/output error"),
    ("OSError(24, 'Too many open files')", "Too many open files"),
])
def test_what_the_disk_or_the_system_refuses_ends_it_with_one_line(tmp_path: Path, error: str, why: str) -> None:
    arguments = [error, *flags(tmp_path, free_port()), "--log-format"]
    said = [
        subprocess.run([sys.executable, "-c", _FAILS, *arguments, form], capture_output=True, text=True, timeout=WAIT_S,
                       check=False)
        for form in ("console", "json")
    ]
    assert [done.returncode for done in said] == [1, 1]
    assert said[0].stderr.splitlines()[-1] == f"alpod: {why}" and "Traceback" not in said[0].stderr
    assert json.loads(said[1].stderr.splitlines()[-1])["why"] == why


def test_a_data_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "keep.alpo").write_text("a backup")
    code, err = run(*flags(tmp_path / "keep.alpo", free_port()))
    assert (code, err) == (1, f"alpod: {tmp_path}/keep.alpo is a file: the data directory of a server is wanted\n")
