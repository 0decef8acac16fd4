"""TLS 1.3 between servers and clients: the files that name a certificate, and the rights that it gives.

Laws:

* Both sides show a certificate of the same CA. The system's CAs are never trusted.
* A certificate's rights are its URI names ``alpo://NAME/ROLE``: ROLE is ``peer/ID``, ``append``, ``read`` or
  ``admin``. Several of them add up; those of other NAMEs count for nothing. Host names and subjects give no right, but
  by the table of roles of a server's configuration.
* ``append``, ``read`` and ``admin`` are roles in all logs; ``append/billing`` is one in the log of that name, and
  ``append/audit-*`` one in all whose names begin so.
* Whoever dials sends nothing before the other side's certificate has shown it to be a server of NAME.

`alpo.secure` has the connections; this module imports nothing of TLS, so that a command's help does without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import TlsError

NAME_DEFAULT = "alpo"
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$"
#: The first bytes of a TLS connection. As the length of a first frame they would be more than any hello's.
FIRST_BYTES = 3
#: Characters of a subject's values that are shown behind a backslash, so that no value looks like several.
_SPECIAL, _ESCAPED = re.compile(r'([\\,+="])'), r"\\\1"
_ROLE = re.compile(
    r"^alpo://([^/]+)/(?:peer/([1-9][0-9]{0,9})"
    r"|((?:append|read|admin)(?:/(?:[a-z0-9][a-z0-9._-]{0,62}|(?:[a-z0-9][a-z0-9._-]{0,61})?\*))?))$"
)


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificates that a client or server shows and trusts: PEM files of the CA (one or several), of its own
    certificate and of its key, which must not be readable for others.

    ``name``: that of the cluster in certificates. ``verify_hostname``: the host that is dialled must be in the server's
    certificate too.
    """

    ca: str | os.PathLike[str]
    cert: str | os.PathLike[str]
    key: str | os.PathLike[str]
    name: str = NAME_DEFAULT
    verify_hostname: bool = False

    @property
    def files(self) -> tuple[str, str, str]:
        return os.fspath(self.ca), os.fspath(self.cert), os.fspath(self.key)

    def state(self) -> tuple[tuple[int, int, int], ...]:
        """Modification times, inodes and sizes of the files: a change of a file changes them. Raises `TlsError` if one
        cannot be read."""
        try:
            found = [Path(path).stat() for path in self.files]
        except OSError as error:
            raise TlsError(f"{error.filename}: {error.strerror}") from error
        return tuple((one.st_mtime_ns, one.st_ino, one.st_size) for one in found)


def tls_given(
    environ: Mapping[str, str], ca: object = None, cert: object = None, key: object = None, name: object = None
) -> Tls | None:
    """The files that a client's user named, else those of the environment (ALPO_CA, ALPO_CERT, ALPO_KEY,
    ALPO_TLS_NAME); None: no TLS. Raises `TlsError` if only some of the files are named."""
    found = {
        variable: str(given or environ.get(variable, ""))
        for variable, given in (("ALPO_CA", ca), ("ALPO_CERT", cert), ("ALPO_KEY", key))
    }
    missing = [variable for variable, path in found.items() if not path]
    if len(missing) == len(found):
        return None
    if missing:
        flags = " and ".join(f"{variable} (--{variable[5:].lower()})" for variable in missing)
        verb = "is" if len(missing) == 1 else "are"
        raise TlsError(f"TLS takes a CA, a certificate and its key: {flags} {verb} missing")
    name = str(name or environ.get("ALPO_TLS_NAME") or NAME_DEFAULT)
    return Tls(found["ALPO_CA"], found["ALPO_CERT"], found["ALPO_KEY"], name)


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights that a certificate gives. ``subject`` is for people; ``roles``: of clients, ``append`` in all logs,
    ``append/billing`` in one; ``peers``: ids of servers."""

    subject: str
    roles: frozenset[str] = frozenset()
    peers: frozenset[int] = frozenset()

    def __str__(self) -> str:
        held = [*sorted(self.roles), *(f"peer/{id}" for id in sorted(self.peers))]
        return f"{self.subject} ({', '.join(held) or 'no role'})"

    def roles_in(self, log: str) -> set[str]:
        """The roles in the log of this name, without it."""
        return {role for role, _, logs in (held.partition("/") for held in self.roles) if not logs or (
            log.startswith(logs[:-1]) if logs.endswith("*") else log == logs
        )}


def rights_of(certificate: Mapping[str, Any], name: str, roles: Mapping[str, str] | None = None) -> Rights:
    """The rights of a certificate, as `ssl.SSLSocket.getpeercert` gives it, in the cluster ``name``. ``roles``: by
    subject ("CN=billing,O=Example") or by host name in the certificate."""
    parts = [pair for rdn in certificate.get("subject", ()) for pair in rdn]
    short = {"commonName": "CN", "organizationName": "O", "organizationalUnitName": "OU"}
    told = (f"{short.get(key, key)}={_SPECIAL.sub(_ESCAPED, value)}" for key, value in parts)
    subject = ",".join(told) or ("a certificate without a subject" if certificate else "no certificate")
    names = certificate.get("subjectAltName", ())
    known = [subject, *(value for kind, value in names if kind == "DNS" and "=" not in value)]
    given = [f"alpo://{name}/{roles[one]}" for one in known if one in roles] if roles else []
    held: set[str] = set()
    peers: set[int] = set()
    for uri in [*(value for kind, value in names if kind == "URI"), *given]:
        match = _ROLE.fullmatch(uri)
        if match is not None and match[1] == name:
            peers.update([int(match[2])] if match[2] else [])
            held.update([match[3]] if match[3] else [])
    return Rights(subject, frozenset(held), frozenset(peers))


def is_client_role(text: str) -> bool:
    """True for ``append``, ``read`` and ``admin``, in all logs or, as in ``append/billing`` and ``read/audit-*``, in
    some."""
    return is_role(text) and not text.startswith("peer/")


def is_role(text: str) -> bool:
    """True for what `is_client_role` knows, and for ``peer/ID``."""
    return _ROLE.fullmatch(f"alpo://{NAME_DEFAULT}/{text}") is not None


def looks_like_tls(first: bytes) -> bool:
    """True if a connection whose first `FIRST_BYTES` bytes are these begins a TLS handshake."""
    return first[:2] == b"\x16\x03"
