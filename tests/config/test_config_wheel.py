"""The wheel, built and used without the source: alpod prints the samples that came with it."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from alpo import _version

ROOT = Path(__file__).parents[2]
SAMPLES = ("alpod.service", "alpod.toml")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.glob("*-py3-none-any.whl")  # pure, as nothing else was asked for
    return made


@pytest.mark.parametrize(("file", "wanted"), [("replica.py", "pure"), (f"replica{EXTENSION_SUFFIXES[0]}", "compiled")])
def test_the_build_is_told_by_the_core_that_would_run(file: str, wanted: str, tmp_path: Path) -> None:
    copy = str(shutil.copy(_version.__file__, tmp_path))
    (tmp_path / "core").mkdir()
    for name in {"replica.py", file}:  # a compiled module has its source beside it
        (tmp_path / "core" / name).touch()
    assert runpy.run_path(copy)["version_of"]("alpod") == f"alpod {_version.__version__} ({wanted})"


@pytest.mark.soak
def test_the_wheel_prints_its_samples(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as held:
        assert {f"alpo/samples/{name}" for name in SAMPLES} <= set(held.namelist())
        held.extractall(tmp_path)
    libraries = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    environment = os.environ | {"PYTHONPATH": ":".join([str(tmp_path), *libraries])}
    for flag, sample in (("--print-config", "alpod.toml"), ("--print-unit", "alpod.service")):
        done = subprocess.run(  # -S: no .pth file, so no installed checkout
            [sys.executable, "-S", "-P", "-c", "from alpo.daemon import main; main()", flag], cwd=tmp_path,
            env=environment, capture_output=True, text=True, check=True,
        )
        assert done.stdout == (ROOT / "config" / sample).read_text("utf-8")
