"""Digest of the code: a seed gives the same run again only on the same code."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import alpo.core
import alpo.storage

_FOLDERS = (alpo.core, alpo.storage)


@cache
def code_digest() -> str:
    """16 hexadecimal digits, a digest of the sources of the core, the stores and the simulator. Raises OSError."""
    digest = hashlib.blake2b(digest_size=8)
    folders = [Path(str(package.__file__)).parent for package in _FOLDERS]
    for folder in (*folders, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            digest.update(f"{folder.name}/{path.relative_to(folder)}\0".encode())
            digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()
