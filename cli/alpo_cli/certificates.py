"""Certificates for TLS, made by a CA in a directory: `make` begins it and adds to it.

Laws:

* No file is ever overwritten, and no key is ever readable for others.
* A certificate's rights are its URI names (`alpo.tls`); a server's is for both ends of a connection, a client's for its
  own end alone.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from alpo.addresses import undialled
from alpo.tls import NAME_PATTERN, is_client_role, is_role

from .exits import Failed, UsageProblem, reason

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_CA_DAYS = 3_652
#: Clocks may differ by so much.
_BEFORE = datetime.timedelta(hours=1)
_FILE_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")


class Leaf(NamedTuple):
    """A certificate to make. ``stem``: of its files' names; ``roles``: as in URI names; ``hosts``: of a server."""

    stem: str
    roles: tuple[str, ...]
    hosts: tuple[str, ...]


def server_leaf(text: str) -> Leaf:
    """Parse ``ID=HOST,HOST``. Raises UsageProblem."""
    id, equals, hosts = text.partition("=")
    if not (equals and is_role(f"peer/{id}") and all(hosts.split(","))):
        raise UsageProblem(f"--server {text}: ID=HOST, or ID=HOST,HOST, such as 1=alpo-1.example.org,10.0.0.1")
    for host in hosts.split(","):
        if why := undialled(host):
            raise UsageProblem(f"--server {text}: {host} {why}")
    return Leaf(f"server-{id}", (f"peer/{id}",), tuple(hosts.split(",")))


def client_leaf(text: str) -> Leaf:
    """Parse ``ROLE:NAME`` or ``ROLE,ROLE:NAME``. Raises UsageProblem."""
    given, _, name = text.partition(":")
    roles = tuple(given.split(","))
    if not (_FILE_NAME.fullmatch(name) and all(map(is_client_role, roles))):
        raise UsageProblem(f"--client {text}: ROLE:NAME, such as append:billing; roles are append, read, admin, and"
                           " append/LOG or append/LO* in some logs")
    return Leaf(name, roles, ())


def make(directory: Path, name: str, leaves: Sequence[Leaf], days: int) -> list[Path]:
    """Make a CA in ``directory``, unless it is there, and a certificate with a key for each of ``leaves``; returns the
    new files. Raises UsageProblem, Failed."""
    try:
        from cryptography import x509
    except ImportError as error:
        raise UsageProblem("making certificates needs cryptography: pip install 'alpo[certs]'") from error
    if not re.fullmatch(NAME_PATTERN, name):
        raise UsageProblem(f"--name {name}: letters, digits, - and . only")
    for leaf in leaves:
        for path in (directory / f"{leaf.stem}.pem", directory / f"{leaf.stem}.key"):
            if path.exists():
                raise UsageProblem(f"{path} is there already, and is not overwritten")
    if len({leaf.stem for leaf in leaves}) < len(leaves) or any(leaf.stem == "ca" for leaf in leaves):
        raise UsageProblem("every certificate needs a name of its own, other than ca")
    for host in (host for leaf in leaves for host in leaf.hosts):
        try:
            _host(host)
        except ValueError as error:
            raise UsageProblem(f"{host}: {error}") from error
    made: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / "ca.pem").exists():
            made += _make_ca(directory, name)
        ca = x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes())
        signer = _load_key(directory / "ca.key")
        for leaf in leaves:
            made += _make_leaf(directory, name, leaf, days, ca, signer)
    except (OSError, ValueError) as error:
        raise Failed(f"{directory}: {reason(error) if isinstance(error, OSError) else error}") from error
    return made


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path.name} is no key that this command made")
    return key


def _named(common_name: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - _BEFORE)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        encipher_only=False, decipher_only=False,
    )


def _make_ca(directory: Path, name: str) -> list[Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(f"ALPO {name[:50]} CA")
    certificate = (
        _begun(subject, subject, key, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _write(directory / "ca", certificate, key)


def _make_leaf(
    directory: Path, name: str, leaf: Leaf, days: int, ca: x509.Certificate, signer: ec.EllipticCurvePrivateKey
) -> list[Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"alpo://{name}/{role}") for role in leaf.roles]
    names += map(_host, leaf.hosts)
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if leaf.hosts else [])]
    certificate = (
        _begun(_named(leaf.stem), ca.subject, key, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return _write(directory / leaf.stem, certificate, key)


def _host(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write(stem: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> list[Path]:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    paths = [stem.with_name(f"{stem.name}.key"), stem.with_name(f"{stem.name}.pem")]
    texts = [
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), certificate.public_bytes(Encoding.PEM)
    ]
    for path, text, mode in zip(paths, texts, (0o600, 0o644), strict=True):
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(text)
    return paths
