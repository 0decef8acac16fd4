"""Servers run as their containers would: `python pods.py PLAN.json`, in namespaces of its own (`unshare`).

Each server has uid 10001, no capabilities, a root that is read-only as a whole, and one folder that it may write. All
of them share a network of their own, in which names are what the plan says. One JSON object on stdout tells what came
of it.

PLAN.json: ``hosts``: name -> address; ``pods``: for each ``environment``, ``volume`` (a folder), ``log`` (a file),
``probes`` (URLs to ask); ``command``: the environment of the alpo command; ``python``: what to start.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

UID = 10001
WITHIN_S = 60.0
#: Write into the log as whom a server runs, and become it.
_SAY_WHO = 'grep -E "^(Uid|CapEff):" /proc/self/status >&2; exec "$@"'
_ALPOD = "from alpo.daemon import main; main()"
ALPO = "from alpo_cli.main import main; main()"
_MOUNT_SETATTR, _AT_RECURSIVE, _RDONLY = 442, 0x8000, 1
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18


def bring_up_loopback() -> None:
    """A new network namespace has a loopback that is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS, IFF_UP and IFF_RUNNING


def _call(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source: Path, target: Path, flags: int) -> None:
    """Mount as the system call does."""
    libc = ctypes.CDLL(None, use_errno=True)
    _call(libc.mount(str(source).encode(), str(target).encode(), None, ctypes.c_ulong(flags), None))


def set_read_only(path: Path, read_only: bool, recursive: bool = False) -> None:
    """Set or clear "read-only" of the mount at ``path``, and of those below it."""
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = struct.pack("QQQQ", _RDONLY if read_only else 0, 0 if read_only else _RDONLY, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    _call(libc.syscall(_MOUNT_SETATTR, -100, str(path).encode(), flags, attributes, len(attributes)))


def refused(path: Path) -> bool:
    """True if the file system refuses to have a file made in this folder because it is read-only."""
    try:
        (path / "written").touch()
    except OSError as error:
        return error.errno == errno.EROFS
    return False


def enter(volume: Path, python: str) -> None:
    """Become the server of a pod; in a mount namespace of its own. Never returns."""
    mount(Path("/"), Path("/"), _MS_REC | _MS_PRIVATE)
    mount(volume, volume, _MS_BIND)
    set_read_only(Path("/"), True, recursive=True)
    for path in (volume, Path("/proc")):  # containers have a /proc of their own; `unshare` writes its map there
        set_read_only(path, False)
    if not all(map(refused, (Path("/"), Path("/tmp"), Path("/dev/shm"), volume.parent))):
        sys.exit("the root is not read-only")
    user = ["unshare", "--user", f"--map-user={UID}", f"--map-group={UID}", "--wd", str(volume), "--"]
    os.execvp(user[0], [*user, "sh", "-c", _SAY_WHO, "sh", python, "-P", "-c", _ALPOD])


def start(pod: dict[str, Any], python: str) -> subprocess.Popen[bytes]:
    """Start the server of a pod."""
    inside = ["unshare", "--mount", "--", python, "-P", __file__, "--enter", pod["volume"], python]
    with Path(pod["log"]).open("ab") as log:
        return subprocess.Popen(inside, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=pod["environment"])


def answer(url: str) -> int:
    """Status of a URL once it is 200; of a probe that never is so, the last one (0: no answer)."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # as the kubelet does
    found, deadline_s = 0, time.monotonic() + WITHIN_S
    while found != 200 and time.monotonic() < deadline_s:
        try:
            with urllib.request.urlopen(url, timeout=5, context=context) as told:
                found = told.status
        except urllib.error.HTTPError as error:
            found = error.code
        except OSError:
            found = 0
    return found


def run(plan: dict[str, Any]) -> dict[str, Any]:
    """Start the servers, append and read, ask the probes, stop the servers; what came of each."""
    def alpo(*words: str) -> str:
        done = subprocess.run(
            [plan["python"], "-P", "-c", ALPO, *words, "--timeout", str(WITHIN_S)], env=plan["command"],
            capture_output=True, text=True, check=False,
        )
        return done.stdout if done.returncode == 0 else f"exit code {done.returncode}: {done.stderr}"

    servers = [start(pod, plan["python"]) for pod in plan["pods"]]
    try:
        told: dict[str, Any] = {"append": alpo("append", "hello", "--wait", "everyone"), "read": alpo("read")}
        told["status"] = [json.loads(line) for line in alpo("status", "--json").splitlines()]
        told["probes"] = {url: answer(url) for pod in plan["pods"] for url in pod["probes"]}
        for server in servers:
            server.send_signal(signal.SIGTERM)
        told["exit codes"] = [server.wait(WITHIN_S) for server in servers]
    finally:
        for server in servers:
            server.kill()
    return told


def main() -> None:
    if sys.argv[1] == "--enter":
        enter(Path(sys.argv[2]), sys.argv[3])
    path = Path(sys.argv[1])
    plan = json.loads(path.read_text("utf-8"))
    bring_up_loopback()
    hosts = path.with_name("hosts")
    hosts.write_text("".join(f"{address} {name}\n" for name, address in plan["hosts"].items()), "utf-8")
    mount(Path("/"), Path("/"), _MS_REC | _MS_PRIVATE)
    mount(hosts, Path("/etc/hosts"), _MS_BIND)
    print(json.dumps(run(plan)))


if __name__ == "__main__":
    main()
