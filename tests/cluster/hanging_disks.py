"""Disks that hang or are slow under real servers: a preloaded library holds up what they do to ``alpo.db*``.

A *halt* is a file; as long as it is there, the disk of its server does as it says: "hang" (writes and fsyncs neither
return nor fail), "dead" (nor do reads), or a number (an fsync takes so many milliseconds longer).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness import Server

HANG, DEAD = "hang", "dead"
_POLL_MS = 5
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { READ, WRITE, SYNC };

static void wait_for_disk(int fd, int what)
{
    const char *halt = getenv("ALPO_TEST_HALT");
    char link[64], path[4096], says[16] = "";
    if (halt == NULL)
        return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return;
    path[size] = 0;
    if (strstr(path, "/alpo.db") == NULL)
        return;
    for (;;) {
        int file = open(halt, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            return;
        size = read(file, says, sizeof says - 1);
        close(file);
        says[size > 0 ? size : 0] = 0;
        int ms = atoi(says);
        if (ms > 0) {
            if (what == SYNC)
                usleep(ms * 1000);
            return;
        }
        if (what == READ && strcmp(says, "dead") != 0)
            return;
        usleep(POLL_MS * 1000);
    }
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t pwrite(int fd, const void *data, size_t count, off_t at)
{
    REAL(pwrite);
    wait_for_disk(fd, WRITE);
    return real(fd, data, count, at);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at)
{
    REAL(pwrite64);
    wait_for_disk(fd, WRITE);
    return real(fd, data, count, at);
}

ssize_t pread(int fd, void *data, size_t count, off_t at)
{
    REAL(pread);
    wait_for_disk(fd, READ);
    return real(fd, data, count, at);
}

ssize_t pread64(int fd, void *data, size_t count, off64_t at)
{
    REAL(pread64);
    wait_for_disk(fd, READ);
    return real(fd, data, count, at);
}

int fsync(int fd)
{
    REAL(fsync);
    wait_for_disk(fd, SYNC);
    return real(fd);
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    wait_for_disk(fd, SYNC);
    return real(fd);
}
"""


def compiled(directory: Path) -> Path | str:
    """The library, made in ``directory``; a sentence if there is no C compiler that makes it."""
    source, library = directory / "hanging_disks.c", directory / "hanging_disks.so"
    source.write_text(_SOURCE, "utf-8")
    command = ["cc", "-shared", "-fPIC", "-O1", f"-DPOLL_MS={_POLL_MS}", "-o", str(library), str(source), "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "no disk can be made to hang: no C compiler (cc)"
    return library if not done.returncode else f"no disk can be made to hang: {done.stderr.strip()}"


def under(library: Path, server: Server) -> None:
    """Have ``server``, when it is started next, and whoever takes its place, use a disk that can be halted."""
    halt = server.home / f"server-{server.id}.halt"
    server.environ |= {"LD_PRELOAD": str(library), "ALPO_TEST_HALT": str(halt)}


def can_halt(server: Server) -> bool:
    return "ALPO_TEST_HALT" in server.environ


def halt(server: Server, how: str) -> None:
    """Let its disk be so from now on."""
    path = Path(server.environ["ALPO_TEST_HALT"])
    fresh = path.with_suffix(".next")
    fresh.write_text(how, "utf-8")
    fresh.rename(path)


def heal(server: Server) -> None:
    """Let its disk move again."""
    Path(server.environ["ALPO_TEST_HALT"]).unlink(missing_ok=True)
