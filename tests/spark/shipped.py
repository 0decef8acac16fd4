"""Spark with executors of their own: on a cluster, to which the wheel is shipped; and over Spark Connect, from a client
that has nothing of ALPO.

    python tests/spark/shipped.py [--over cluster,connect]

Two executors, each a Java process of its own. The log is read as a batch and copied as a stream into itself, one
executor killed with `kill -9` in the middle: what is read and copied must be every payload once. Needs the extra
`soak`. Prints a line a case; the exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark
import trio

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]

from harness import cluster  # noqa: E402
from ports import free_port  # noqa: E402
from probe import until  # noqa: E402

from alpo import connect  # noqa: E402
from alpo.spark.java import find_java  # noqa: E402

COUNT = 250
MASTER = "local-cluster[2,1,1024]"
WITHIN_S = 300.0
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def wheel(folder: Path) -> Path:
    """As it is published, but for its name."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], cwd=HERE.parents[1], check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl")).rename(folder / "alpo.zip")  # Spark takes no .whl for a package


def environment(folder: Path) -> dict[str, str]:
    """An interpreter that has the libraries and not ALPO, for driver and executors; Spark's executors work in a home of
    their own, not within the installed package."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')  # no .pth files: no installed checkout
    python.chmod(0o755)
    home = folder / "home"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":  # where executors work; there if somebody ran some from the installed package
            (home / part.name).symlink_to(part)
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    return os.environ | {
        "PYTHONPATH": ":".join(libraries), "PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python),
        "SPARK_HOME": str(home), "JAVA_HOME": str(find_java().home), "SPARK_LOCAL_IP": "127.0.0.1",
    }


def settings(folder: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m",
        "spark.driver.extraJavaOptions": JAVA, "spark.executor.extraJavaOptions": JAVA,
        "spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false",
        "spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }


@asynccontextmanager
async def connect_server(folder: Path, package: Path, given: dict[str, str]) -> AsyncIterator[str]:
    """A Spark Connect server with executors of its own, which have ALPO where the server has it; its URL."""
    port, log = free_port(), trio.Path(folder / "server.log")
    confs = settings(folder) | {
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": str(port),
    }
    command = [
        f"{given['SPARK_HOME']}/bin/spark-submit", "--master", MASTER,
        "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
        *(word for key, value in confs.items() for word in ("--conf", f"{key}={value}")), "spark-internal",
    ]
    async with await log.open("wb") as out:
        process = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, stdout=out.wrapped, stderr=out.wrapped, cwd=folder,
            env=given | {"PYTHONPATH": f"{package}:{given['PYTHONPATH']}"},
        )

    async def up() -> bool:
        assert process.poll() is None, "the Spark Connect server has ended"
        return await listens(port)

    try:
        await until(up, math.inf)
        yield f"sc://127.0.0.1:{port}"
    except BaseException:
        print((await log.read_text("utf-8", "replace"))[-8000:], file=sys.stderr)
        raise
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def listens(port: int) -> bool:
    with suppress(OSError):
        await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
        return True
    return False


async def drive(url: str, confs: dict[str, str], given: dict[str, str], folder: Path) -> dict[str, Any]:
    """The driver's whole life, and what it must have done; what it has found."""
    async with cluster(folder, proxied=False) as running:
        await running.level()
        async with connect(running.addresses) as log:
            await log.append_batch([b"%d" % n for n in range(COUNT)])
        package = str(folder / "dist" / "alpo.zip")
        order = {
            "url": url, "servers": running.addresses, "package": package, "folder": str(folder), "settings": confs,
        }
        done = await trio.run_process(
            [given["PYSPARK_PYTHON"], str(HERE / "shipped_driver.py"), json.dumps(order)], capture_stdout=True,
            stderr=subprocess.STDOUT, check=False, env=given, cwd=folder,
        )
        lines = [line for line in done.stdout.decode().splitlines() if not line.startswith("\tat ")]
        assert done.returncode == 0, "\n".join(lines[-80:])
        async with connect(running.addresses) as log:
            copies = [record async for record in log.read(start=COUNT + 1)]
    found: dict[str, Any] = json.loads(lines[-1])
    assert found["shipped"] and all("alpo.zip/alpo/__init__" in each for each in found["shipped"]), found["shipped"]
    assert found["read"] == [[n + 1, str(n)] for n in range(COUNT)], found["read"]
    assert found["died"] and found["commits"] == [3, 6], found["commits"]  # the last three: over the copies
    assert [record.payload for record in copies] == [b"copy:%d" % n for n in range(COUNT)], copies
    assert len({record.client for record in copies}) == 1 and copies[0].client.startswith("spark:"), copies[0]
    return found


async def over_a_cluster(folder: Path) -> dict[str, Any]:
    """The driver has ALPO, and ships the wheel."""
    package, given = wheel(folder / "dist"), environment(folder)
    libraries = given["PYTHONPATH"]
    confs = settings(folder) | {"spark.executorEnv.PYTHONPATH": libraries}
    found = await drive(MASTER, confs, given | {"PYTHONPATH": f"{package}:{libraries}"}, folder)
    assert found["before"] == [""], f"executors have ALPO without being given it: {found['before']}"
    return found


async def over_connect(folder: Path) -> dict[str, Any]:
    """A client that has nothing of ALPO: the server and its executors have it, and find it by themselves."""
    package, given = wheel(folder / "dist"), environment(folder)
    async with connect_server(folder, package, given) as url:
        return await drive(url, {}, given, folder)


CASES: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {"cluster": over_a_cluster, "connect": over_connect}


async def run(name: str) -> str:
    """What is not as it must be; nothing if all is well."""
    why = ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # executors write until they have ended
        try:
            with trio.fail_after(WITHIN_S):
                await CASES[name](Path(folder))
        except* (AssertionError, trio.TooSlowError) as errors:
            why = "".join(traceback.format_exception(errors))
    return why


async def main(names: list[str]) -> int:
    failed = 0
    for name in names:
        began_s = time.monotonic()
        why = await run(name)
        failed += bool(why)
        print(f"{'FAILED' if why else 'ok'} {name} {time.monotonic() - began_s:.0f} s {why}", flush=True)
    print(f"{len(names)} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--over", default=",".join(CASES), help="some of them")
    sys.exit(trio.run(main, [name for name in parser.parse_args().over.split(",") if name]))
