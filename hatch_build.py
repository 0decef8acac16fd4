"""Hook of the build: with ALPO_COMPILED=1 a wheel has core and wire format compiled by mypyc, beside their source.

Without it nothing is compiled, and neither mypy nor a C compiler is needed. The types are those of the source; what
mypyc cannot take is an error of the build.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: Folders whose modules are compiled.
FOLDERS = ("alpo/core", "alpo/core/machine", "alpo/wire")
#: The configuration in pyproject.toml wants plugins and stubs that a build has no use for.
MYPY = ("--config-file=", "--follow-imports=silent", "--ignore-missing-imports")


class CompiledBuild(BuildHookInterface):  # type: ignore[misc]
    """Adds the compiled modules to a wheel, if the environment asks for them."""

    def dependencies(self) -> list[str]:
        return ["mypy>=2.4", "setuptools"] if self._wanted("standard") else []

    def _wanted(self, version: str) -> bool:
        return version == "standard" and os.environ.get("ALPO_COMPILED", "") not in ("", "0")

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name what the wheel is to hold beside the source."""
        if not self._wanted(version):
            return
        from mypyc.build import mypycify
        from setuptools import Distribution

        self._made = Path(tempfile.mkdtemp())
        root = Path(self.root)
        sources = [path for folder in FOLDERS for path in sorted((root / folder).glob("*.py")) if path.stat().st_size]
        names = [str(path.relative_to(root)) for path in sources if path.name != "__init__.py"]
        options = [*MYPY, f"--cache-dir={self._made / 'mypy'}"]
        modules = mypycify([*options, *names], target_dir=str(self._made / "c"), group_name="alpo", debug_level="0")
        command = Distribution({"name": "alpo", "ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(self._made / "lib"), str(self._made / "o")
        command.ensure_finalized()
        command.run()
        for path in (self._made / "lib").rglob("*.so"):
            build_data["force_include"][str(path)] = str(path.relative_to(self._made / "lib"))
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was only made for the wheel."""
        if self._wanted(version):
            shutil.rmtree(self._made)
