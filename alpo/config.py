"""alpod's configuration: every key with its type, bounds and default. `config_sources.load_config` reads it.

Laws:

* A `Config` is whole and consistent.
* An unknown key is an error, never ignored.
* Names end with units: ``_s`` seconds, ``_bytes`` bytes. Every number has bounds.
* ``member`` and ``settings`` only seed a first start (R29); afterwards the log's version counts.

`alpod --print-config` (config/alpod.toml) explains every key, its default and its danger.
"""

from __future__ import annotations

import ipaddress
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from alpo.addresses import ACCEPTED, join_address, parse_address, undialled
from alpo.core.members import Configured
from alpo.core.settings import BOUNDS, Settings
from alpo.tls import NAME_DEFAULT, NAME_PATTERN, is_client_role

ID_MAX = 2**31 - 1
MEMBERS_MAX = 31
_MIB = 1 << 20


class ConfigError(ValueError):
    """The configuration is wrong. The message is one line for the operator; alpod prints it and exits with 2."""


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    """True for a loopback address or localhost. Other names are not looked up: their meaning may change while alpod
    runs."""
    ip = _ip(host)
    return host.lower() == "localhost" if ip is None else ip.is_loopback


def _whole(default: int | None, low: int, high: int) -> Any:
    return Field(default, ge=low, le=high, strict=True, description=f"a whole number from {low} to {high}")


def _seconds(default: float | None, low: float, high: float) -> Any:
    return Field(
        default, ge=low, le=high, strict=True, allow_inf_nan=False, description=f"seconds, from {low:g} to {high:g}"
    )


def _switch(default: bool) -> Any:
    return Field(default, strict=True, description="true or false")


def _wrong(loc: tuple[int | str, ...], value: object, accepted: str) -> PydanticCustomError:
    """Error for what a type and a range cannot express; ``loc`` is relative to what is checked, in pydantic's terms
    (from 0)."""
    return PydanticCustomError("wrong", "{accepted}", {"loc": loc, "value": value, "accepted": accepted})


def _need_dialled(text: str) -> None:
    """Raise an error unless ``text`` is an address that others can dial."""
    if why := undialled(parse_address(text)[0]):
        raise _wrong((), text, why)


def _need_path(value: object) -> object:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("not a path")
    return value


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MemberLine(_Table):
    """A ``[[member]]`` table (R27, R29). ``priority`` breaks ties between equal logs in elections: the higher one
    wins."""

    id: int = Field(ge=1, le=ID_MAX, strict=True, description=f"a whole number from 1 to {ID_MAX}")
    address: str = Field(strict=True, description=ACCEPTED)
    priority: int = _whole(0, -1000, 1000)

    @field_validator("address")
    @classmethod
    def _dialable(cls, text: str) -> str:
        _need_dialled(text)
        return text


class Timers(_Table):
    """The ``[timers]`` table: equal on all members, peers compare and warn (rules.md#timers), but for
    ``disk_timeout_s``. ``stagger_s``, ``disk_timeout_s``: see `Config`."""

    heartbeat_s: float = _seconds(0.1, 0.001, 60)
    election_timeout_s: float = _seconds(0.5, 0.005, 300)
    stagger_s: float | None = _seconds(None, 0.001, 60)
    disk_timeout_s: float | None = _seconds(None, 0.005, 3600)

    @model_validator(mode="after")
    def _five_heartbeats(self) -> Self:
        # Compare whole microseconds: 5 × 0.07 is above 0.35 in floating point.
        if round(self.election_timeout_s * 1e6) < 5 * round(self.heartbeat_s * 1e6):
            accepted = f"must be at least 5 × heartbeat_s = {5 * self.heartbeat_s:g}"
            raise _wrong(("election_timeout_s",), self.election_timeout_s, accepted)
        return self


class ReplicatedSettings(_Table):
    """The ``[settings]`` table: what every server must compute alike, so equal on all at the first start
    (rules.md#settings, R29)."""

    session_ttl_s: float = _seconds(7 * 24 * 3600, *(ms / 1000 for ms in BOUNDS["session_ttl_ms"]))
    window: int = _whole(1024, *BOUNDS["window"])
    window_total: int = _whole(200_000, *BOUNDS["window_total"])
    sessions_max: int = _whole(100_000, *BOUNDS["sessions_max"])
    names_max: int = _whole(10_000, *BOUNDS["names_max"])
    payload_bytes_max: int = _whole(1 * _MIB, *BOUNDS["payload_bytes_max"])
    batch_bytes_max: int = _whole(8 * _MIB, *BOUNDS["batch_bytes_max"])
    quota_appends_per_s: int = _whole(0, *BOUNDS["quota_appends_per_s"])
    quota_bytes_per_s: int = _whole(0, *BOUNDS["quota_bytes_per_s"])

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch_bytes_max < self.payload_bytes_max:
            accepted = f"must be at least payload_bytes_max = {self.payload_bytes_max}"
            raise _wrong(("batch_bytes_max",), self.batch_bytes_max, accepted)
        if self.window_total < self.window:
            raise _wrong(("window_total",), self.window_total, f"must be at least window = {self.window}")
        return self


class LimitsTable(_Table):
    """The ``[limits]`` table: this server's own bounds, which may differ between servers. ``…_bytes_per_s`` 0: no
    bound."""

    client_connections_max: int = _whole(1000, 1, 100_000)
    hello_timeout_s: float = _seconds(5.0, 0.05, 300)
    inflight_bytes_max: int = _whole(12 * _MIB, 1 * _MIB, 4096 * _MIB)
    connection_inflight_max: int = _whole(4096, 1, 1_000_000)
    tail_bytes_max: int = _whole(16 * _MIB, 64 * 1024, 4096 * _MIB)
    peer_inflight_bytes_max: int = _whole(8 * _MIB, 64 * 1024, 1024 * _MIB)
    catch_up_bytes_per_s: int = _whole(24 * _MIB, 0, 1 << 40)
    bulk_read_bytes_per_s: int = _whole(192 * _MIB, 0, 1 << 40)


class RetentionTable(_Table):
    """The ``[retention]`` table: what this server keeps of the log (R19); None: no limit. May differ between
    servers."""

    max_age_s: float | None = _seconds(None, 1, 100 * 366 * 24 * 3600)
    max_bytes: int | None = _whole(None, 64 * _MIB, 1 << 60)
    max_entries: int | None = _whole(None, 1, 2**62)
    cursor_lag_bytes: int | None = _whole(16 << 30, 1, 1 << 60)
    cursor_lag_s: float | None = _seconds(7 * 24 * 3600, 1, 100 * 366 * 24 * 3600)


class StorageTable(_Table):
    """The ``[storage]`` table: checks of this server's disk. 0: no mark, no scrub."""

    low_water_bytes: int = _whole(256 * _MIB, 0, 1 << 60)
    scrub_bytes_per_s: int = _whole(1 * _MIB, 0, 1 << 40)
    scrub_pass_s: float = _seconds(24 * 3600, 1, 366 * 24 * 3600)


class LogsTable(_Table):
    """The ``[logs]`` table: the logs besides the first (rules.md#logs)."""

    balance: bool = _switch(True)
    keep_deleted_s: float = _seconds(24 * 3600, 0, 100 * 366 * 24 * 3600)


#: Keys of ``[tls]`` that name a file, relative to the configuration's.
TLS_FILES = ("ca", "cert", "key")


class TlsTable(_Table):
    """The ``[tls]`` table: this server's certificate, whose it trusts, and the step of a switch to TLS."""

    mode: Literal["off", "accept", "dial", "require"] = Field(
        "require", description='"off", "accept", "dial" or "require"'
    )
    ca: Path = Field(description="a PEM file: the CA's certificate, or several")
    cert: Path = Field(description="a PEM file: this server's certificate")
    key: Path = Field(description="a PEM file: the key of that certificate, which nobody else may read")
    name: str = Field(
        NAME_DEFAULT, strict=True, pattern=NAME_PATTERN,
        description="the cluster's name in certificates: letters, digits, - and .",
    )
    verify_hostname: bool = _switch(False)
    roles: dict[str, str] = Field(
        default={}, description='roles by subject or host name of a certificate: "append", "read" or "admin", in some'
                                ' logs "append/LOG"'
    )

    @field_validator(*TLS_FILES, mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return _need_path(value)

    @field_validator(*TLS_FILES)
    @classmethod
    def _whole(cls, path: Path) -> Path:
        return path.absolute()

    @field_validator("roles")
    @classmethod
    def _known(cls, roles: dict[str, str]) -> dict[str, str]:
        for who, role in roles.items():
            if not is_client_role(role):
                raise _wrong((who,), role, 'must be "append", "read" or "admin", or for some logs as'
                                           ' "append/billing": servers need a URI name')
        return roles


class Config(_Table):
    """A checked configuration of one alpod. Its properties raise nothing once `load_config` has returned it."""

    id: int = Field(ge=1, le=ID_MAX, strict=True, description=f"a whole number from 1 to {ID_MAX}")
    data: Path = Field(description="the path of a directory")
    listen: str = Field(strict=True, description=ACCEPTED)
    advertise: str | None = Field(None, strict=True, description=ACCEPTED)
    member: tuple[MemberLine, ...] = Field(
        (), max_length=MEMBERS_MAX, description=f"1 to {MEMBERS_MAX} members, this server among them"
    )
    join: str | None = Field(None, strict=True, description="HOST:PORT of members to join, separated by commas")
    cluster: str | None = Field(
        None, strict=True, pattern=r"^[0-9a-fA-F]{32}$", description="a cluster id of 32 hexadecimal digits"
    )
    auto_init: bool = _switch(True)
    refused_means_dead: bool = _switch(True)
    insecure: bool = _switch(False)
    http: str | None = Field(None, strict=True, description=ACCEPTED)
    http_auth: Literal["cert", "none"] | None = Field(None, description='"cert" or "none"')
    log_format: Literal["auto", "console", "json"] = Field("auto", description='"auto", "console" or "json"')
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description='"debug", "info", "warning" or "error"'
    )
    timers: Timers = Field(default=Timers(), description="a table: [timers]")
    settings: ReplicatedSettings = Field(default=ReplicatedSettings(), description="a table: [settings]")
    limits: LimitsTable = Field(default=LimitsTable(), description="a table: [limits]")
    retention: RetentionTable = Field(default=RetentionTable(), description="a table: [retention]")
    storage: StorageTable = Field(default=StorageTable(), description="a table: [storage]")
    logs: LogsTable = Field(default=LogsTable(), description="a table: [logs]")
    tls: TlsTable | None = Field(None, description="a table: [tls]")

    @field_validator("data", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        return _need_path(value)

    @field_validator("listen", "http")
    @classmethod
    def _address(cls, text: str | None) -> str | None:
        if text is not None:
            parse_address(text)
        return text

    @field_validator("advertise")
    @classmethod
    def _dialled(cls, text: str | None) -> str | None:
        if text is not None:
            _need_dialled(text)
        return text

    @field_validator("join")
    @classmethod
    def _addresses(cls, text: str | None) -> str | None:
        for address in text.split(",") if text is not None else ():
            _need_dialled(address.strip())
        return text

    @model_validator(mode="after")
    def _members_or_join(self) -> Self:
        if self.member and self.join is not None:
            raise _wrong(("join",), self.join, "cannot go with member: a server founds a cluster or joins one")
        if not self.member and self.join is None:
            accepted = f"must be 1 to {MEMBERS_MAX} members, this server among them; a newcomer gives join instead"
            raise _wrong(("member",), [] if "member" in self.model_fields_set else None, accepted)
        return self

    @model_validator(mode="after")
    def _newcomer_can_be_dialled(self) -> Self:
        if self.join is not None and self.advertise is None and (why := undialled(self.listen_address[0])):
            accepted = f"{why}; or give such an address besides, as advertise (--advertise)"
            raise _wrong(("listen",), self.listen, accepted)
        return self

    @model_validator(mode="after")
    def _members_differ(self) -> Self:
        ids: dict[int, int] = {}
        addresses: dict[tuple[str, int], int] = {}
        for index, line in enumerate(self.member):
            host, port = parse_address(line.address)
            same_id = ids.setdefault(line.id, index)
            same_address = addresses.setdefault((host.lower(), port), index)
            if same_id != index:
                accepted = f"must be an id of its own; number {same_id + 1} has this one"
                raise _wrong(("member", index, "id"), line.id, accepted)
            if same_address != index:
                accepted = f"must be an address of its own; number {same_address + 1} has this one"
                raise _wrong(("member", index, "address"), line.address, accepted)
        if self.member and self.id not in ids:
            listed = ", ".join(map(str, sorted(ids)))
            raise _wrong(("id",), self.id, f"must be the id of a member; the members are {listed}")
        return self

    @model_validator(mode="after")
    def _safe_to_listen(self) -> Self:
        secure = self.tls is not None and self.tls.mode == "require"
        for name, host, risk in (
            ("listen", self.listen_address[0], "read and append"),
            ("http", parse_address(self.http or self.listen)[0], "see the state of the cluster, and all payloads"),
        ):
            if not secure and not self.insecure and not _is_loopback(host):
                accepted = (
                    "must be a loopback address (127.0.0.1, [::1], localhost), because without TLS (mode \"require\" "
                    f"in [tls]) anyone who reaches it can {risk}; insecure = true (--insecure) allows it all the same"
                )
                raise _wrong((name,), getattr(self, name), accepted)
        if self.http_auth == "cert" and (self.tls is None or self.tls.mode == "off"):
            raise _wrong(("http_auth",), "cert", 'must be "none" without TLS: nobody can show a certificate')
        return self

    @model_validator(mode="after")
    def _batches_fit(self) -> Self:
        batch, limits = self.settings.batch_bytes_max, self.limits
        if limits.inflight_bytes_max < batch:
            accepted = f"must be at least settings.batch_bytes_max = {batch}"
            raise _wrong(("limits", "inflight_bytes_max"), limits.inflight_bytes_max, accepted)
        return self

    @cached_property
    def listen_address(self) -> tuple[str, int]:
        """(host, port) to listen on; may differ from the address that other servers dial."""
        return parse_address(self.listen)

    @cached_property
    def own_line(self) -> MemberLine:
        """This server's entry in the member list; for a newcomer one made of its address."""
        own = (line for line in self.member if line.id == self.id)
        return next(own, None) or MemberLine(id=self.id, address=self.advertise or self.listen)

    @property
    def advertised(self) -> str:
        """The address at which other servers are told to reach this one (R27): ``advertise``, else the one it listens
        on.

        If its entry in the member list differs from that only in the host (a name, or for an address that nobody else
        can dial, as 0.0.0.0), that entry is used.
        """
        if self.advertise is not None:
            return self.advertise
        host, port = self.listen_address
        own_host, own_port = parse_address(self.own_line.address)
        if own_port == port:
            return self.own_line.address
        if undialled(host):
            return join_address(own_host, port)
        return self.listen

    @property
    def remark(self) -> str:
        """A sentence for the operator if some servers are named by loopback addresses and others are not; else ""."""
        joined = self.join.split(",") if self.join is not None else []
        named = [*(line.address for line in self.member), self.advertised, *map(str.strip, joined)]
        near = [address for address in named if _is_loopback(parse_address(address)[0])]
        if not near or len(near) == len(named):
            return ""
        return f"{near[0]} is every host's own address, and other servers are on other hosts: they cannot dial it"

    @property
    def cluster_id(self) -> bytes:
        """The cluster id, 16 bytes; b"" if any cluster will do."""
        return bytes.fromhex(self.cluster or "")

    @property
    def http_needs(self) -> str:
        """Need of visitors over HTTP, but for probes: "cert" (the default with TLS) or "none"."""
        return self.http_auth or ("cert" if self.tls is not None and self.tls.mode != "off" else "none")

    @property
    def stagger_s(self) -> float:
        """Seconds between the election timers of servers that follow each other in order; T/20 unless configured
        (rules.md#timers)."""
        return self.timers.election_timeout_s / 20 if self.timers.stagger_s is None else self.timers.stagger_s

    @property
    def disk_timeout_s(self) -> float:
        """Seconds for which a write may be under way before the disk counts as hanging; T unless configured (R34)."""
        given = self.timers.disk_timeout_s
        return self.timers.election_timeout_s if given is None else given

    @property
    def configured(self) -> tuple[Configured, ...]:
        """The member list for a first start, ordered by id (R29); a newcomer's holds itself alone."""
        lines = self.member or (self.own_line,)
        return tuple(sorted(Configured(line.id, line.address, line.priority) for line in lines))

    @property
    def settings_core(self) -> Settings:
        """The settings for a first start, in the core's form (R29)."""
        plain = self.settings.model_dump()
        ttl_s = plain.pop("session_ttl_s")
        return Settings(session_ttl_ms=round(ttl_s * 1000), **plain)


#: Model of each table by name; "" is the top of the file.
TABLES: dict[str, type[_Table]] = {
    "": Config, "member": MemberLine, "timers": Timers, "settings": ReplicatedSettings, "limits": LimitsTable,
    "retention": RetentionTable, "storage": StorageTable, "logs": LogsTable, "tls": TlsTable,
}
