"""Spark with executors of their own: on a cluster, to which the wheel is shipped; on a master and two workers; and over
Spark Connect, from a client that has nothing of ALPO.

    python tests/spark/shipped.py [--over cluster,master,connect]

Two executors, each a Java process of its own. The log is read as a batch and copied as a stream into itself, one
executor killed with `kill -9` in the middle: what is read and copied must be every payload once. With the master, jobs
of alpo-pipeline run too, by spark-submit. Needs the extra `soak`. Prints a line a case; the exit code is 1 if one
failed.
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
from contextlib import AsyncExitStack, asynccontextmanager, suppress
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
    """The wheel as it is published, under another name."""
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
        if part.name != "work":  # left by executors of the installed package, if there were any
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
async def process(
    command: list[str], log: trio.Path, given: dict[str, str], folder: Path, is_up: Callable[[], Awaitable[bool]]
) -> AsyncIterator[None]:
    """Run one of Spark's processes, with its output in ``log``, from when it is up until the end of the block."""
    async with await log.open("wb") as out:
        started = await trio.lowlevel.open_process(
            command, stdin=subprocess.DEVNULL, stdout=out.wrapped, stderr=out.wrapped, cwd=folder, env=given
        )

    async def up() -> bool:
        assert started.poll() is None, f"{log.name} has ended"
        return await is_up()

    try:
        await until(up, math.inf)
        yield
    except BaseException:
        print((await log.read_text("utf-8", "replace"))[-8000:], file=sys.stderr)
        raise
    finally:
        started.terminate()  # a worker ends its executors
        with trio.CancelScope(shield=True):
            with trio.move_on_after(20):
                await started.wait()
            started.kill()
            await started.wait()


@asynccontextmanager
async def master(folder: Path, given: dict[str, str]) -> AsyncIterator[str]:
    """A master and two workers of one core; the master's URL."""
    port, start = free_port(), [f"{given['SPARK_HOME']}/bin/spark-class"]
    url = f"spark://127.0.0.1:{port}"
    places = ["--host", "127.0.0.1", "--webui-port", "0"]
    async with AsyncExitStack() as stack:
        command = [*start, "org.apache.spark.deploy.master.Master", "--port", str(port), *places]
        await stack.enter_async_context(
            process(command, trio.Path(folder / "master.log"), given, folder, lambda: listens(port))
        )
        for name in ("worker-1", "worker-2"):
            log = trio.Path(folder / f"{name}.log")

            async def registered(log: trio.Path = log) -> bool:
                return "Successfully registered with master" in await log.read_text("utf-8", "replace")

            command = [
                *start, "org.apache.spark.deploy.worker.Worker", url, "--cores", "1", "--memory", "1g", *places,
                "--work-dir", str(folder / name),
            ]
            await stack.enter_async_context(process(command, log, given, folder, registered))
        yield url


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
    given = given | {"PYTHONPATH": f"{package}:{given['PYTHONPATH']}"}
    async with process(command, log, given, folder, lambda: listens(port)):
        yield f"sc://127.0.0.1:{port}"


async def listens(port: int) -> bool:
    with suppress(OSError):
        await (await trio.open_tcp_stream("127.0.0.1", port)).aclose()
        return True
    return False


async def drive(url: str, confs: dict[str, str], given: dict[str, str], folder: Path) -> dict[str, Any]:
    """Run the driver to its end, and check what it has done; return what it has found."""
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


async def over_a_master(folder: Path) -> dict[str, Any]:
    """The case "cluster" over a standalone master; then jobs, to which ``--py-files`` ships the wheel."""
    package, given = wheel(folder / "dist"), environment(folder)
    driver = given | {"PYTHONPATH": f"{package}:{given['PYTHONPATH']}"}
    async with master(folder, given) as url:
        found = await drive(url, settings(folder), driver, folder)
        assert found["before"] == [""], f"executors have ALPO without being given it: {found['before']}"
        await trio.Path(folder / "jobs").mkdir()
        async with cluster(folder / "jobs", proxied=False) as running:
            await running.level()
            async with connect(running.addresses) as log:
                await log.append_batch([b"%d" % n for n in range(COUNT)])
            await running.level()

            async def job(*words: str) -> dict[str, Any]:
                script = folder / "job.py"
                script.write_text("from alpo_cli.pipeline.main import main\n\nmain()\n")
                confs = (word for key, value in settings(folder).items() for word in ("--conf", f"{key}={value}"))
                done = await trio.run_process(
                    [f"{given['SPARK_HOME']}/bin/spark-submit", "--master", url, "--py-files", str(package), *confs,
                     str(script), *words, "--servers", running.addresses, "--json"],
                    capture_stdout=True, capture_stderr=True, check=False, env=given, cwd=folder,
                )
                assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()[-8000:]
                told: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
                return told

            made = await job("archive", "--to", str(folder / "archive"), "--range-rows", "50")
            assert (made["payloads"], made["ranges"], made["checked"]) == (COUNT, 5, True), made
            audited = await job("audit")
            assert audited["faults"] in (0, []), audited
    return found


async def over_connect(folder: Path) -> dict[str, Any]:
    """A client that has nothing of ALPO: the server and its executors have it, and find it by themselves."""
    package, given = wheel(folder / "dist"), environment(folder)
    async with connect_server(folder, package, given) as url:
        return await drive(url, {}, given, folder)


CASES: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {
    "cluster": over_a_cluster, "master": over_a_master, "connect": over_connect,
}


async def run(name: str) -> str:
    """Run a case; return its failure, or "" if it passes."""
    why = ""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:  # executors write until they end
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
