"""systemd: users, and backups on a schedule that are checked before older ones go."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path

import pytest
from alpo_command import ENDS_WITHIN_S, Alpo
from ports import free_port

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "config" / "systemd"
SCRIPT = FOLDER / "alpo-backup.sh"
LONG_AGO_S = 100 * 86400


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"this machine has no {tool}")


def unit(name: str) -> RawConfigParser:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / name, "utf-8")
    return parser


@needs("systemd-analyze")
def test_systemd_finds_nothing_wrong_with_the_units_and_little_exposed(tmp_path: Path) -> None:
    for name in ("alpo-backup.service", "alpo-backup.timer"):
        text = (FOLDER / name).read_text("utf-8")
        (tmp_path / name).write_text(text.replace("/usr/local/lib/alpo/alpo-backup.sh", "/bin/true"), "utf-8")
    service, timer = str(tmp_path / "alpo-backup.service"), str(tmp_path / "alpo-backup.timer")
    checked = subprocess.run(["systemd-analyze", "verify", service, timer], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    asked = ["systemd-analyze", "security", "--offline=true", "--no-pager", service]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    found = re.search(r"Overall exposure level for alpo-backup.service: ([\d.]+)", told)
    assert found is not None and float(found[1]) <= 1.5
    when = unit("alpo-backup.timer")["Timer"]["OnCalendar"]
    assert subprocess.run(["systemd-analyze", "calendar", when], capture_output=True, check=False).returncode == 0


@needs("systemd-sysusers")
def test_systemd_makes_the_users_of_the_units(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    file = str(FOLDER / "alpo-sysusers.conf")
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", file], capture_output=True, check=True)
    made = {line.split(":")[0]: line.split(":") for line in (tmp_path / "etc" / "passwd").read_text().splitlines()}
    service = unit("alpo-backup.service")["Service"]
    alpod = (ROOT / "config" / "alpod.service").read_text("utf-8")
    assert set(made) == {service["User"], re.findall(r"^User=(.*)$", alpod, re.MULTILINE)[0]}
    assert made[service["User"]][5] == f"/var/lib/{service['StateDirectory']}"
    assert {each[6] for each in made.values()} == {"/usr/sbin/nologin"}


def test_the_service_calls_the_script_as_it_wants_to_be_called() -> None:
    service = unit("alpo-backup.service")["Service"]
    command, directory, days = service["ExecStart"].split()
    assert Path(command).name == SCRIPT.name and os.access(SCRIPT, os.X_OK)
    assert directory == f"/var/lib/{service['StateDirectory']}" and days == "${DAYS}"
    text = (FOLDER / "alpo-backup.service").read_text("utf-8")
    assert "\nEnvironment=DAYS=14\n" in text and f"install -D -m 0755 alpo-backup.sh {command}" in text


@pytest.fixture(scope="module")
def alpo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alpo]:
    directory = tmp_path_factory.mktemp("cluster")
    start = ("cluster", "start", "--dir", directory, "--size", "1", "--base-port", str(free_port()), "--detach")
    try:
        one = Alpo(Alpo().out(*start).strip())
        one.run("append", "hello")
        yield one
    finally:
        Alpo().run("cluster", "stop", "--dir", directory, code=None)


class Backups:
    """A directory of backups, one of them old, and the script run on it."""

    def __init__(self, folder: Path, servers: str) -> None:
        self.directory = folder / "back ups"
        self.directory.mkdir()
        self._bin = folder / "bin"
        self._bin.mkdir()
        self._servers = servers
        self.alpo('exec "$PYTHON" -m alpo_cli.main "$@"')
        for name in ("alpo-20200101T000000Z.alpo", "alpo-20200102T000000Z.alpo.unsound", "another.alpo"):
            self.aged(name, LONG_AGO_S)
        self.aged("alpo-20260101T000000Z.alpo", 86400)
        self.before = self.names()

    def alpo(self, script: str) -> None:
        """Put this in the place of the command."""
        (self._bin / "alpo").write_text(f"#!/bin/sh\n{script}\n", "utf-8")
        (self._bin / "alpo").chmod(0o755)

    def aged(self, name: str, age_s: int) -> None:
        path = self.directory / name
        path.touch()
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)

    def names(self) -> set[str]:
        return {path.name for path in self.directory.iterdir()}

    def run(self, days: str = "14") -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "PATH": f"{self._bin}:{os.environ['PATH']}", "PYTHON": sys.executable, "ALPO_SERVERS": self._servers,
        }
        return subprocess.run([SCRIPT, self.directory, days], env=environment, capture_output=True, text=True,
                              timeout=ENDS_WITHIN_S, check=False)


def test_a_backup_is_made_and_checked_and_old_ones_go(alpo: Alpo, tmp_path: Path) -> None:
    backups = Backups(tmp_path, alpo.servers)
    done = backups.run()
    assert done.returncode == 0, done.stderr
    (new,) = backups.names() - backups.before
    assert backups.names() == {new, "alpo-20260101T000000Z.alpo", "another.alpo"}
    assert (backups.directory / new).stat().st_mode & 0o077 == 0
    alpo.run("log", "verify", backups.directory / new)


def test_nothing_goes_while_no_backup_can_be_made(alpo: Alpo, tmp_path: Path) -> None:
    backups = Backups(tmp_path, alpo.servers)
    backups.alpo("exit 1")
    assert backups.run().returncode == 1 and backups.names() == backups.before
    backups.alpo('case $1 in backup) echo not a backup > "$2";; *) exec "$PYTHON" -m alpo_cli.main "$@";; esac')
    assert backups.run().returncode == 1
    (new,) = backups.names() - backups.before
    assert new.endswith(".alpo.unsound") and backups.names() > backups.before
    assert backups.run(days="-1").returncode == 2 and backups.names() > backups.before


def test_the_newest_backup_never_goes(alpo: Alpo, tmp_path: Path) -> None:
    backups = Backups(tmp_path, alpo.servers)
    backups.alpo('"$PYTHON" -m alpo_cli.main "$@" && case $1 in backup) touch -d "40 days ago" "$2";; esac')
    assert backups.run(days="0").returncode == 0
    assert len(backups.names() - backups.before) == 1
