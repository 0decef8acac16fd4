"""`alpo status`: every member's own report, with nulls for those that do not answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import alpo
from alpo.core.settings import size_text as size
from alpo.standing import Cluster, full_in, lag_of, logs_of, sentence

from ..exits import Unreached
from ..options import Target, with_target
from ..output import print_json, remark, table
from ..running import run

KEYS = (
    "id", "address", "state", "status", "term", "leader", "last_id", "guaranteed_id", "fully_replicated_id",
    "first_lsn", "last_lsn", "reachable",
)
_COLUMNS = [
    "id", "address", "state", "term", "leader", "last", "guaranteed", "fully replicated", "first LSN", "last LSN",
    "lag", "status", "disk", "full in", "version",
]

#: Keys that hold sentences for an operator.
_REMARKS = ("waiting", "problems", "space", "damage", "divergence", "cleaning_waits")

Fields = Mapping[str, Any]


async def members(target: Target, name: str | None = None) -> list[dict[str, Any]]:
    """Each member's status, ordered by id; only ``id``, ``address`` and ``reachable`` if it does not answer. ``name``:
    of the log; None: as the command was told. Raises the library's errors."""
    async with alpo.connect(",".join(target.servers), timeout_s=target.timeout_s, log=name) as log:
        found = [dict(member) for member in await log.status()]
    return sorted(found, key=lambda member: (member.get("id") or 1 << 31, member.get("address") or ""))


def as_json(found: list[dict[str, Any]]) -> dict[str, Any]:
    """JSON of all members: the fixed keys, always present, then the member's others."""
    def whole(member: Fields) -> dict[str, Any]:
        fixed = {key: member.get(key) for key in KEYS}
        fixed["reachable"] = bool(member.get("reachable"))
        return {**fixed, **{key: value for key, value in member.items() if key not in fixed}}

    return {"members": [whole(member) for member in found]}


def row(member: Fields, found: list[dict[str, Any]]) -> list[str]:
    """Cells of the member's row; a dash for unknown values."""
    def text(key: str) -> str:
        value = member.get(key)
        return "-" if value is None or value == "" else str(value)

    behind, disk = lag_of(member, found), member.get("disk_bytes")
    leader = "-" if not member.get("leader") else str(member["leader"])
    return [
        text("id"), text("address"), text("state") if member.get("reachable") else "unreachable", text("term"),
        leader, text("last_id"), text("guaranteed_id"), text("fully_replicated_id"), text("first_lsn"),
        text("last_lsn"), "-" if behind is None else str(behind), text("status"),
        "-" if disk is None else size(int(disk)), full_in(member), text("version"),
    ]


def show(target: Target, found: list[dict[str, Any]]) -> None:
    """Print the members. Raises Failed, after printing, if none could be reached."""
    if target.json:
        print_json(as_json(found))
    else:
        table("", _COLUMNS, [row(member, found) for member in found])
        for member in found:
            for said in [said for key in _REMARKS for said in member.get(key) or ()]:
                remark(f"server {member.get('id')}: {said}")
        for id, said in Cluster(found).twins():
            remark(f"server {id}: {said}")
        tell_missing(found)
        if others := logs_of(found)[1:]:
            counts = ", ".join(f"{n} {state}" for state, n in Counter(log.state for log in others).items())
            remark(f"logs besides the first: {counts}; see alpo log list")
        if any(member.get("reachable") for member in found) and Cluster(found).appends().work is False:
            remark(sentence(found))
    require_one(target, found)


def tell_missing(found: list[dict[str, Any]]) -> None:
    """Say on stderr why members could not be asked, if others could; if none could, `require_one` says it."""
    missing = [member for member in found if not member.get("reachable") and member.get("problem")]
    for member in missing if len(missing) < len(found) else ():
        remark(f"server {member.get('id')}: {member['problem']}")


def require_one(target: Target, found: list[dict[str, Any]]) -> None:
    """Raise Unreached, which says why, if no member could be reached."""
    if not any(member.get("reachable") for member in found):
        raise Unreached(target.servers, [str(member["problem"]) for member in found if member.get("problem")])


@with_target
def status(target: Target) -> None:
    """Show every member: who leads, how far each log goes, who is behind.

    Examples:
        alpo status
        alpo status --json | jq '.members[] | select(.state == "leader") | .address'
    """
    show(target, run(members, target))
