"""The ``[tls]`` table of alpod's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from alpo.config import Config, ConfigError
from alpo.config_sources import as_toml, load_config

TOP = 'id = 1\ndata = "d"\nlisten = "127.0.0.1:7100"\n'
MEMBERS = '[[member]]\nid = 1\naddress = "127.0.0.1:7100"\n[[member]]\nid = 2\naddress = "127.0.0.1:7101"\n'
TLS = '[tls]\nca = "ca.pem"\ncert = "/etc/alpo/own.pem"\nkey = "sub/own.key"\n'


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "a.toml"
        path.write_text(text)
        return path

    return write


def load(path: Path, environ: dict[str, str] | None = None) -> Config:
    return load_config(path, {}, environ).config


def complaint(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return str(caught.value).removeprefix(f"{path}: ")


def test_files_of_certificates_are_meant_beside_the_configuration(write: Any) -> None:
    path = write(TOP.replace("127.0.0.1", "0.0.0.0") + MEMBERS + TLS)
    tls = load(path).tls
    assert tls is not None and tls.mode == "require"
    beside = path.parent
    assert (tls.ca, tls.cert, tls.key) == (beside / "ca.pem", Path("/etc/alpo/own.pem"), beside / "sub/own.key")
    environ = {"ALPOD_TLS_CA": "elsewhere.pem", "ALPOD_TLS_MODE": "accept", "ALPOD_INSECURE": "true"}
    tls = load(path, environ).tls
    assert tls is not None and (tls.ca, tls.mode) == (Path("elsewhere.pem").absolute(), "accept")


@pytest.mark.parametrize(("change", "message"), [
    ('mode = "on"', 'tls.mode = "on": must be "off", "accept", "dial" or "require"'),
    ('name = "a b"', "tls.name = \"a b\": must be the cluster's name in certificates: letters, digits, - and ."),
    (
        'roles = {"CN=x" = "peer/1"}',
        'tls.roles."CN=x" = "peer/1": must be "append", "read" or "admin", or for some logs as "append/billing":'
        " servers need a URI name",
    ),
    ("certs = 1", "tls.certs = 1 is not a known key: did you mean cert?"),
])
def test_wrong_tables_of_tls_are_named(write: Any, change: str, message: str) -> None:
    assert complaint(write(TOP + MEMBERS + TLS + change + "\n")) == message


def test_only_tls_that_is_required_makes_an_address_safe(write: Any) -> None:
    text = TOP.replace("127.0.0.1", "0.0.0.0") + MEMBERS + TLS
    assert load(write(text)).listen == "0.0.0.0:7100"
    assert "must be a loopback address" in complaint(write(text + 'mode = "dial"\n'))
    for role in ("append", "read/audit-*"):
        assert f'roles = {{"CN=x" = "{role}"}}' in as_toml(
            load_config(write(text + f'roles = {{"CN=x" = "{role}"}}\n'), {})
        )


@pytest.mark.parametrize(("text", "message"), [
    ('http = "0.0.0.0:7180"\n', "http = \"0.0.0.0:7180\": must be a loopback address"),
    ('http = "7180"\n', 'http = "7180": must be HOST:PORT'),
    ('http_auth = "cert"\n', 'http_auth = "cert": must be "none" without TLS: nobody can show a certificate'),
    ('http_auth = "basic"\n', 'http_auth = "basic": must be "cert" or "none"'),
])
def test_a_page_for_strangers_is_refused(write: Any, text: str, message: str) -> None:
    assert complaint(write(TOP + text + MEMBERS)).startswith(message)


def test_visitors_need_a_certificate_where_there_are_any(write: Any) -> None:
    plain = load(write(TOP + 'http = "127.0.0.1:7180"\n' + MEMBERS))
    assert (plain.http, plain.http_needs) == ("127.0.0.1:7180", "none")
    public = TOP + 'http = "0.0.0.0:7180"\n'
    assert load(write(public + MEMBERS + TLS)).http_needs == "cert"
    assert load(write(public + 'http_auth = "none"\n' + MEMBERS + TLS)).http_needs == "none"
    assert load(write(TOP + MEMBERS + TLS + 'mode = "off"\n')).http_needs == "none"
    assert "must be a loopback address" in complaint(write(public + MEMBERS + TLS + 'mode = "accept"\n'))
    assert load(write(public + "insecure = true\n" + MEMBERS)).http == "0.0.0.0:7180"
