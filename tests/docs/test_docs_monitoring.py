"""docs/monitoring.md names every path that a server answers over HTTP."""

from __future__ import annotations

from pathlib import Path

from alpo.node.http.metrics import PATHS

PAGE = Path(__file__).parents[2] / "docs" / "monitoring.md"


def test_every_path_is_documented() -> None:
    text = PAGE.read_text("utf-8")
    assert not [path for path in PATHS if f"| `{path}` |" not in text and not path.startswith("/page.")]
