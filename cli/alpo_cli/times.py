"""`--since`, `--until`: a moment (RFC 3339) or how long ago (``90s``, ``10m``, ``2h``, ``3d``)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from .exits import UsageProblem

_AGO = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")


def parse_since(text: str, now: datetime, option: str = "--since") -> datetime:
    """The moment that the option's ``text`` means, UTC. Raises UsageProblem for anything else than RFC 3339 with an
    offset, or a duration."""
    if ago := _AGO.fullmatch(text):
        try:
            return now.astimezone(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        except OverflowError as error:
            raise UsageProblem(f"{option} {text}: too long ago") from error
    if _RFC3339.fullmatch(text):
        try:
            return datetime.fromisoformat(text.upper()).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise UsageProblem(f"{option} {text}: {error}") from error
    if _RFC3339.fullmatch(f"{text}Z"):
        raise UsageProblem(
            f"{option} {text}: the offset is missing: {text}Z is UTC, {text}+01:00 an hour before it"
        )
    raise UsageProblem(f"{option} {text}: accepted: RFC 3339 (2026-01-31T08:00:00Z) or how long ago (90s, 10m, 2h, 3d)")
