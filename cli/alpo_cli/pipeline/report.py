"""Work of `alpo-pipeline report`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from alpo import __version__

from ..exits import Failed, UsageProblem, reason
from ..options import Target
from ..output import print_json, rfc3339, say


@dataclass(frozen=True, slots=True)
class Wanted:
    """The command's options."""

    to: Path
    log: tuple[str, ...]


def run(target: Target, wanted: Wanted) -> None:
    """Write the page, whole. Raises UsageProblem for wrong input, Failed if it cannot be written."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageProblem("this draws with Matplotlib: pip install 'alpo[report]'") from error
    from .report_log import of_logs
    from .report_page import page

    sections = of_logs(wanted.log)
    text = page("ALPO report", f"Made by alpo-pipeline report {__version__}, {rfc3339(datetime.now(UTC))}.", sections)
    partial = wanted.to.with_name(f".{wanted.to.name}.{os.getpid()}.partial")
    try:
        partial.write_text(text, "utf-8")
        partial.replace(wanted.to)
    except OSError as error:
        raise Failed(f"{wanted.to} cannot be written: {reason(error)}") from error
    finally:
        partial.unlink(missing_ok=True)
    titles = [section.title for section in sections]
    if target.json:
        print_json({"report": str(wanted.to), "bytes": len(text.encode()), "sections": titles})
    else:
        say(f"{wanted.to}: {', '.join(titles)}")
