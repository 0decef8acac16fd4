"""Connections over TLS 1.3, as sockets, and the contexts that they are made with.

Laws:

* A context is never changed: other files make a new one (`Contexts`).
* An OpenSSL connection is used by one thread at a time: a `SecureSocket` has one lock for reading, writing, handshake
  and close.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import re
import socket
import ssl
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .errors import TlsError
from .tls import NAME_PATTERN, Rights, Tls, rights_of

_RECORD_BYTES = 16_384
#: OpenSSL's part of connections of a parent process, kept for ever in its child.
_FORGOTTEN: list[object] = []


class TlsBroken(ConnectionError):
    """The end of a TLS connection, or of the attempt to open one; ``strerror`` says why in words."""

    def __init__(self, why: str) -> None:
        super().__init__(0, why)

    def __str__(self) -> str:
        return str(self.strerror)


class TlsLeft(TlsBroken):
    """The end of a handshake or connection that the other side broke off: it went away, and said nothing of why."""


class SecureSocket(ssl.SSLSocket):
    """A non-blocking TLS connection that behaves as a plain socket does: `send` and `recv` raise BlockingIOError if
    nothing goes now, and OSError (`TlsBroken`) once it has ended. May be used by several threads."""

    def _use(self) -> threading.Lock:
        lock: threading.Lock = self.__dict__.setdefault("_lock", threading.Lock())
        return lock

    def handshake(self) -> None:
        """Go on with the handshake. Raises `ssl.SSLWantReadError`, `ssl.SSLWantWriteError`, `TlsBroken`, and `TlsLeft`
        if the other side has gone."""
        with self._use():
            try:
                self.do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except (OSError, ValueError) as error:
                raise _ended(error) from error

    def send(self, data: Any, flags: int = 0) -> int:
        """Send as much as goes now; returns how many bytes."""
        sent, size = 0, len(data)
        with self._use():
            try:
                sent = super().send(data)
                while sent < size:
                    sent += super().send(memoryview(data)[sent:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if not sent:
                    raise BlockingIOError from error
            except (OSError, ValueError) as error:
                raise _ended(self._last_words() or error) from error
        return sent

    def _last_words(self) -> ssl.SSLError | None:
        """The reason why the other side refused this one: in TLS 1.3 its verdict arrives only after the handshake."""
        try:
            super().recv(1)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except ssl.SSLError as error:
            return error
        except (OSError, ValueError):
            pass
        return None

    def recv(self, bytes_max: int = _RECORD_BYTES, flags: int = 0) -> bytes:
        """Receive what there is, up to about ``bytes_max``; b"" at the end."""
        parts: list[bytes] = []
        size = 0
        with self._use():
            try:
                # A whole record at a time: what OpenSSL keeps of one, nobody who waits for the socket would hear of.
                while size < bytes_max and (data := super().recv(_RECORD_BYTES)):
                    parts.append(data)
                    size += len(data)
                    if len(data) < _RECORD_BYTES:  # the end of what was sent at once; more would wake the caller again
                        break
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                if not parts:
                    raise BlockingIOError from error
            except (OSError, ValueError) as error:
                if not parts:
                    raise _ended(error) from error
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def shutdown(self, how: int) -> None:
        """Shut down the socket below: TLS goes on to be read."""
        socket.socket.shutdown(self, how)

    def close(self) -> None:
        with self._use():
            super().close()

    def forget(self) -> None:
        """Close the descriptor in a forked child, where the lock's holder and what OpenSSL was about do not exist. A
        call that is under way goes on with a closed socket: OpenSSL would use the number, of another file by then."""
        made = self.__dict__
        _FORGOTTEN.append(made["_sslobj"])  # nor may OpenSSL free it
        made["_sslobj"] = None
        os.close(self.detach())


def _ended(error: OSError | ValueError) -> TlsBroken:
    """The error of a handshake or connection that ended with ``error``: `TlsLeft` if only the connection is gone."""
    gone = ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    left = isinstance(error, gone) or (isinstance(error, OSError) and not isinstance(error, ssl.SSLError))
    return (TlsLeft if left else TlsBroken)(why(error))


def why(error: BaseException) -> str:
    """The reason why a handshake or a connection ended, in words."""
    reason = str(getattr(error, "reason", "") or "")
    told = _WORDS.get(reason.removeprefix("SSLV3_").removeprefix("TLSV1_").removeprefix("TLSV13_"))
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the other side's certificate is not trusted here: {error.verify_message.rstrip('.')}"
    if told:
        return told
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the other side closed the connection during TLS"
    if reason:
        return f"TLS: {reason.lower().replace('_', ' ')}"
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or "the connection has ended"


_WORDS = {
    "ALERT_UNKNOWN_CA": "the other side does not trust this side's certificate: another CA made it",
    "ALERT_CERTIFICATE_UNKNOWN": "the other side does not trust this side's certificate",
    "ALERT_BAD_CERTIFICATE": "the other side does not take this side's certificate",
    "ALERT_CERTIFICATE_EXPIRED": "this side's certificate has expired, says the other side",
    "ALERT_UNSUPPORTED_CERTIFICATE": "this side's certificate is not one for this use, says the other side",
    "ALERT_CERTIFICATE_REQUIRED": "the other side wants a certificate",
    "ALERT_PROTOCOL_VERSION": "the other side speaks another version of TLS: ALPO speaks TLS 1.3",
    "UNSUPPORTED_PROTOCOL": "the other side speaks an older version of TLS: ALPO speaks TLS 1.3",
    "WRONG_VERSION_NUMBER": "the other side speaks plain, without TLS",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the other side showed no certificate",
    "HTTP_REQUEST": "the other side speaks HTTP",
}


@dataclass(frozen=True, slots=True)
class Contexts:
    """OpenSSL's settings for one state of the files: for connections taken and for those dialled. Made by `load`."""

    tls: Tls
    server: ssl.SSLContext = field(repr=False)
    client: ssl.SSLContext = field(repr=False)
    #: The state of the files (`Tls.state`) when they were read.
    state: tuple[tuple[int, int, int], ...]
    #: The text of the CA's file.
    trusted: bytes = field(repr=False)
    #: OpenSSL's settings for HTTP: a certificate is asked for, and not required.
    visitors: ssl.SSLContext = field(repr=False)
    #: End of the certificate, and of the first CA's, in seconds since the epoch.
    cert_ends_s: float
    ca_ends_s: float

    @staticmethod
    def load(tls: Tls) -> Contexts:
        """Read the files. Raises `TlsError`."""
        if not re.fullmatch(NAME_PATTERN, tls.name):
            raise TlsError(f"{tls.name!r} cannot be the name of a cluster: letters, digits, - and . only")
        state = tls.state()
        ca, cert, key = tls.files
        _require_private(key)
        try:
            trusted = Path(ca).read_bytes()
        except OSError as error:
            raise TlsError(f"{ca}: {error.strerror}") from error
        made: list[ssl.SSLContext] = []
        for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
            context = ssl.SSLContext(protocol)
            context.sslsocket_class = SecureSocket
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = protocol == ssl.PROTOCOL_TLS_CLIENT and tls.verify_hostname
            context.verify_mode = ssl.CERT_REQUIRED
            if protocol == ssl.PROTOCOL_TLS_SERVER:
                context.num_tickets = 0  # no connection is resumed, and no peer would read tickets
            _load(context, ca, trusted, cert, key)
            made.append(context)
        server, client, visitors = made
        visitors.verify_mode = ssl.CERT_OPTIONAL
        visitors.set_alpn_protocols(["http/1.1"])
        try:
            cert_ends_s, ca_ends_s = first_end_s(Path(cert).read_bytes()), first_end_s(trusted)
        except (OSError, ValueError, IndexError) as error:
            raise TlsError(f"{cert} or {ca}: no certificate in PEM form") from error
        return Contexts(tls, server, client, state, trusted, visitors, cert_ends_s, ca_ends_s)

    def for_visitors(self) -> Contexts:
        """Contexts for connections that may come without a certificate."""
        return replace(self, server=self.visitors)

    def wrap(self, sock: socket.socket, server_side: bool, host: str = "") -> SecureSocket:
        """A TLS connection over a connected, non-blocking socket, which is used up; the handshake is still to be made.
        ``host``: that was dialled. Raises `TlsBroken`; then the socket is still to be closed."""
        context = self.server if server_side else self.client
        try:
            sock.getpeername()  # while it still owns its descriptor, which is lost if wrapping ends with this error
            made = context.wrap_socket(
                sock, server_side=server_side, do_handshake_on_connect=False,
                server_hostname=host if context.check_hostname else None,
            )
        except (OSError, ValueError) as error:
            raise _ended(error) from error
        assert isinstance(made, SecureSocket)
        return made

    def rights(self, connection: Any, roles: Mapping[str, str] | None = None) -> Rights:
        """Rights of the other side's certificate, after the handshake. ``roles``: see `alpo.tls.rights_of`. Raises
        `TlsBroken` if it cannot be read."""
        try:
            return rights_of(connection.getpeercert() or {}, self.tls.name, roles)
        except (OSError, ValueError) as error:  # names that are not UTF-8
            raise TlsBroken("the other side's certificate cannot be read") from error


class Trust:
    """A client's certificates, from files that are read anew when they change. Raises `TlsError` if they are wrong at
    first."""

    def __init__(self, tls: Tls) -> None:
        self._contexts = Contexts.load(tls)

    def contexts(self) -> Contexts:
        """Contexts for the next connection. Files that are wrong, or half written, leave in force what was."""
        with contextlib.suppress(TlsError, OSError):
            if self._contexts.tls.state() != self._contexts.state:
                self._contexts = Contexts.load(self._contexts.tls)
        return self._contexts


def _require_private(key: str) -> None:
    """Raise `TlsError` if others may read the key. A group may, if it is this user's and somebody else owns the file:
    so do systems that run containers mount secrets."""
    try:
        found = Path(key).stat()
    except OSError as error:
        raise TlsError(f"{key}: {error.strerror}") from error
    allowed = stat.S_IRWXU
    if found.st_uid != os.geteuid() and found.st_gid in {os.getegid(), *os.getgroups()}:
        allowed |= stat.S_IRGRP
    if stat.S_IMODE(found.st_mode) & ~allowed & 0o077:
        raise TlsError(f"{key}: others may read this key; chmod 600 it")


def _load(context: ssl.SSLContext, ca: str, trusted: bytes, cert: str, key: str) -> None:
    try:
        context.load_verify_locations(cadata=trusted.decode("ascii", "replace"))
    except (OSError, ValueError) as error:
        raise TlsError(f"{ca}: {_file_trouble(error, 'certificate of a CA')}") from error
    try:
        context.load_cert_chain(cert, key, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(f"{key}: this is the key of another certificate than {cert}") from error
        raise TlsError(f"{cert} or {key}: {_file_trouble(error, 'certificate with its key, unencrypted')}") from error
    except (OSError, ValueError) as error:
        raise TlsError(f"{cert} or {key}: {_file_trouble(error, 'certificate with its key')}") from error


def first_end_s(pem: bytes) -> float:
    """End of the first certificate in a PEM file to end, in seconds since the epoch. Raises ValueError, IndexError."""
    found = re.findall(rb"-----BEGIN (?:TRUSTED )?CERTIFICATE-----.*?-----END", pem, re.DOTALL)
    return min(_end_s(binascii.a2b_base64(one.split(b"-----")[2])) for one in found)


def _end_s(der: bytes) -> float:
    """End of a certificate's validity (RFC 5280): Certificate, TBSCertificate, then the field after the issuer's
    name."""
    _, at, _ = _element(der, 0)
    _, at, _ = _element(der, at)
    tag = der[at]
    for _ in range(4 if tag == 0xA0 else 3):  # version (which may be left out), serial number, algorithm, issuer
        at = _element(der, at)[2]
    _, at, _ = _element(der, at)
    _, _, at = _element(der, at)  # the beginning of validity
    tag, at, end = _element(der, at)
    text = der[at:end].decode("ascii")
    year_first = text if tag == 0x18 else ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(year_first, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag of the DER element at ``at``, begin of its contents, and its end."""
    length, begin = der[at + 1], at + 2
    if length >= 0x80:
        begin += length - 0x80
        length = int.from_bytes(der[at + 2 : begin], "big")
    return der[at], begin, begin + length


def _file_trouble(error: Exception, wanted: str) -> str:
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror:
        return error.strerror
    return f"no {wanted} in PEM form"
