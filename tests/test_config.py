"""alpod's configuration: a right one is taken whole, a wrong one is answered by one line that helps."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from alpo.config import Config, ConfigError, TlsTable
from alpo.config_sources import as_toml, differences, load_config, unknown_variables, variables
from alpo.core.members import Configured
from alpo.core.settings import Settings

EXAMPLE = Path(__file__).parent.parent / "config" / "alpod.toml"
ADDRESS = "must be HOST:PORT with a port from 1 to 65535 (an IPv6 host in brackets: [::1]:7100)"
MEMBERS_WANTED = "must be 1 to 31 members, this server among them; a newcomer gives join instead"
MEMBERS = '[[member]]\nid = 1\naddress = "127.0.0.1:7100"\n[[member]]\nid = 2\naddress = "127.0.0.1:7101"\n'
TOP = 'id = 1\ndata = "d"\nlisten = "127.0.0.1:7100"\n'
FLAGS: dict[str, Any] = {
    "id": 2, "data": Path("d"), "listen": "127.0.0.1:7101", "member": ["1=127.0.0.1:7100", "2=127.0.0.1:7101"],
}


def load(path: Path | None, overrides: dict[str, Any], environ: dict[str, str] | None = None) -> Config:
    return load_config(path, overrides, environ).config


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a.toml into the working directory, so that messages name a short path."""
    monkeypatch.chdir(tmp_path)

    def write(text: str | bytes) -> Path:
        path = Path("a.toml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def complaint(path: Path | None, overrides: dict[str, Any], environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides, environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


WRONG_FILES = {
    "nothing in it": ("", "id is missing: must be a whole number from 1 to 2147483647"),
    "no data": ('id = 1\nlisten = "[::1]:1"\n' + MEMBERS, "data is missing: must be the path of a directory"),
    "no listen": ('id = 1\ndata = "d"\n' + MEMBERS, f"listen is missing: {ADDRESS}"),
    "no members": (TOP, f"member is missing: {MEMBERS_WANTED}"),
    "empty members": ("member = []\n" + TOP, f"member = []: {MEMBERS_WANTED}"),
    "members and join": (
        'join = "127.0.0.1:7100"\n' + TOP + MEMBERS,
        'join = "127.0.0.1:7100": cannot go with member: a server founds a cluster or joins one',
    ),
    "join is no address": (
        'join = "127.0.0.1:7100,here"\n' + TOP,
        'join = "127.0.0.1:7100,here": must be HOST:PORT of members to join, separated by commas',
    ),
    "id of 0": (TOP.replace("1", "0", 1) + MEMBERS, "id = 0: must be a whole number from 1 to 2147483647"),
    "id is text": (TOP.replace("1", '"1"', 1) + MEMBERS, 'id = "1": must be a whole number from 1 to 2147483647'),
    "id is not a member": (
        TOP.replace("1", "7", 1) + MEMBERS, "id = 7: must be the id of a member; the members are 1, 2",
    ),
    "data is empty": (TOP.replace('"d"', '""') + MEMBERS, 'data = "": must be the path of a directory'),
    "data is a number": (TOP.replace('"d"', "5") + MEMBERS, "data = 5: must be the path of a directory"),
    "no port": (TOP.replace(":7100", "") + MEMBERS, f'listen = "127.0.0.1": {ADDRESS}'),
    "port too high": (TOP.replace("7100", "65536") + MEMBERS, f'listen = "127.0.0.1:65536": {ADDRESS}'),
    "port 0": (TOP.replace("7100", "0") + MEMBERS, f'listen = "127.0.0.1:0": {ADDRESS}'),
    "bare IPv6": (TOP.replace("127.0.0.1", "::1") + MEMBERS, f'listen = "::1:7100": {ADDRESS}'),
    "not loopback": (
        TOP.replace("127.0.0.1", "0.0.0.0") + MEMBERS,
        'listen = "0.0.0.0:7100": must be a loopback address (127.0.0.1, [::1], localhost), because without TLS (mode '
        '"require" in [tls]) anyone who reaches it can read and append; insecure = true (--insecure) allows it all the '
        "same",
    ),
    "same id twice": (
        TOP + MEMBERS.replace("id = 2", "id = 1"),
        "member number 2 id = 1: must be an id of its own; number 1 has this one",
    ),
    "same address twice": (
        TOP + MEMBERS.replace("7101", "7100"),
        'member number 2 address = "127.0.0.1:7100": must be an address of its own; number 1 has this one',
    ),
    "address of a member": (TOP + MEMBERS.replace("7101", "x"), f'member number 2 address = "127.0.0.1:x": {ADDRESS}'),
    "nobody's address": (
        TOP + MEMBERS.replace("127.0.0.1:7101", "0.0.0.0:7101"),
        'member number 2 address = "0.0.0.0:7101": must be an address that others can dial, a name or one address of'
        ' its host: 0.0.0.0 stands for all of them',
    ),
    "member without an address": (TOP + "[[member]]\nid = 1\n", f"member number 1 address is missing: {ADDRESS}"),
    "member is no table": ("member = [1]\n" + TOP, "member number 1 = 1: must be a table: [[member]]"),
    "unknown key of a member": (
        TOP + MEMBERS + 'adress = "h:1"\n', 'member number 2 adress = "h:1" is not a known key: did you mean address?',
    ),
    "cluster id": (
        f'cluster = "beef"\n{TOP}{MEMBERS}', 'cluster = "beef": must be a cluster id of 32 hexadecimal digits',
    ),
    "switch": (f"auto_init = 1\n{TOP}{MEMBERS}", "auto_init = 1: must be true or false"),
    "log format": (f'log_format = "xml"\n{TOP}{MEMBERS}', 'log_format = "xml": must be "auto", "console" or "json"'),
    "unknown key": (
        TOP.replace("listen", "lisen") + MEMBERS, 'lisen = "127.0.0.1:7100" is not a known key: did you mean listen?',
    ),
    "log level": (
        f'log_level = "loud"\n{TOP}{MEMBERS}', 'log_level = "loud": must be "debug", "info", "warning" or "error"',
    ),
    "key of a table at the top": (
        f"heartbeat_s = 1\n{TOP}{MEMBERS}", "heartbeat_s = 1 is not a known key: did you mean heartbeat_s in [timers]?",
    ),
    "key of the top in a table": (
        f"{TOP}{MEMBERS}[timers]\ninsecure = true\n",
        "timers.insecure = true is not a known key: did you mean insecure at the top of the file?",
    ),
    "key like no other": (
        f"{TOP}{MEMBERS}[timers]\n\"a\\nb\" = 1\n",
        'timers."a\\nb" = 1 is not a known key: must be one of heartbeat_s, election_timeout_s, stagger_s,'
        " disk_timeout_s",
    ),
    "table is none": (f"timers = 5\n{TOP}{MEMBERS}", "timers = 5: must be a table: [timers]"),
    "timers too close": (
        f"{TOP}{MEMBERS}[timers]\nheartbeat_s = 0.2\nelection_timeout_s = 0.9\n",
        "timers.election_timeout_s = 0.9: must be at least 5 × heartbeat_s = 1",
    ),
    "timer below zero": (
        f"{TOP}{MEMBERS}[timers]\nheartbeat_s = -1\n", "timers.heartbeat_s = -1: must be seconds, from 0.001 to 60",
    ),
    "timer is no number": (
        f"{TOP}{MEMBERS}[timers]\nelection_timeout_s = nan\n",
        "timers.election_timeout_s = NaN: must be seconds, from 0.005 to 300",
    ),
    "batch below payload": (
        f"{TOP}{MEMBERS}[settings]\nbatch_bytes_max = 1000\n",
        "settings.batch_bytes_max = 1000: must be at least payload_bytes_max = 1048576",
    ),
    "window above the total": (
        f"{TOP}{MEMBERS}[settings]\nwindow_total = 1000\n",
        "settings.window_total = 1000: must be at least window = 1024",
    ),
    "in flight below batch": (
        f"{TOP}{MEMBERS}[limits]\ninflight_bytes_max = 8000000\n",
        "limits.inflight_bytes_max = 8000000: must be at least settings.batch_bytes_max = 8388608",
    ),
    "limit is not whole": (
        f"{TOP}{MEMBERS}[limits]\nclient_connections_max = 1.5\n",
        "limits.client_connections_max = 1.5: must be a whole number from 1 to 100000",
    ),
    "kept for no time": (
        f"{TOP}{MEMBERS}[retention]\nmax_age_s = 0\n",
        "retention.max_age_s = 0: must be seconds, from 1 to 3.16224e+09",
    ),
    "less than the tables take": (
        f"{TOP}{MEMBERS}[retention]\nmax_bytes = 1048576\n",
        "retention.max_bytes = 1048576: must be a whole number from 67108864 to 1152921504606846976",
    ),
    "retention mistyped": (
        f"{TOP}{MEMBERS}[retention]\nmax_entires = 5\n",
        "retention.max_entires = 5 is not a known key: did you mean max_entries?",
    ),
    "not TOML": ("id = 1\nid : 2\n", "is not TOML: Expected '=' after a key in a key/value pair (at line 2, column 4)"),
    "not text": (b"id = 1\n\xff", "is not TOML: byte 7 is not UTF-8"),
    "a long value": (
        f'listen = "{"x" * 200}"\nid = 1\ndata = "d"\n{MEMBERS}', f'listen = "{"x" * 78}…: {ADDRESS}',
    ),
}


@pytest.mark.parametrize("kind", WRONG_FILES)
def test_a_wrong_file_is_named_with_key_value_and_what_is_accepted(write: Any, kind: str) -> None:
    text, message = WRONG_FILES[kind]
    said = complaint(write(text), {})
    assert said.removeprefix("a.toml: ") == message
    assert said.startswith("a.toml: ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"id": None}, "--id is missing: must be a whole number from 1 to 2147483647"),
        ({"member": []}, f"--member is missing: {MEMBERS_WANTED}"),
        ({"member": ["127.0.0.1:7100"]}, '--member "127.0.0.1:7100": must be ID=HOST:PORT'),
        ({"member": ["x=127.0.0.1:7100"]}, '--member "x=127.0.0.1:7100": must be ID=HOST:PORT'),
        ({"member": ["2=here"]}, f'--member number 1 address = "here": {ADDRESS}'),
        ({"member": ["0=h:1"]}, "--member number 1 id = 0: must be a whole number from 1 to 2147483647"),
        (
            {"member": ["2=h:1", "2=h:2"]},
            "--member number 2 id = 2: must be an id of its own; number 1 has this one",
        ),
        ({"listen": "7101"}, f'--listen = "7101": {ADDRESS}'),
        ({"log_format": "xml"}, '--log-format = "xml": must be "auto", "console" or "json"'),
    ],
)
def test_wrong_flags(flags: dict[str, Any], message: str) -> None:
    assert complaint(None, FLAGS | flags) == f"command line: {message}"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert complaint(tmp_path / "no.toml", {}) == f"{tmp_path}/no.toml: cannot be read: No such file or directory"
    assert complaint(tmp_path, {}) == f"{tmp_path}: cannot be read: Is a directory"


def test_a_wrong_flag_over_a_good_file_is_the_command_lines_fault(write: Any) -> None:
    path = write(TOP + MEMBERS)
    assert complaint(path, {"id": 9}) == "command line: --id = 9: must be the id of a member; the members are 1, 2"


def test_flags_win_over_the_file(write: Any) -> None:
    path = write(f"insecure = false\n{TOP}{MEMBERS}[timers]\nheartbeat_s = 0.05\n")
    overrides = {"id": 5, "listen": "0.0.0.0:9", "insecure": True, "member": ["5=far:9"], "data": None, "cluster": None}
    config = load(path, overrides)
    assert (config.id, config.listen_address, config.data) == (5, ("0.0.0.0", 9), Path("d"))
    assert config.configured == (Configured(5, "far:9"),)
    assert config.timers.heartbeat_s == 0.05


@pytest.mark.parametrize(
    ("listen", "own", "advertise", "told"),
    [
        ("127.0.0.1:7101", "127.0.0.1:7101", None, "127.0.0.1:7101"),
        ("127.0.0.1:7999", "127.0.0.1:7101", None, "127.0.0.1:7999"),
        ("10.0.0.1:7101", "host1:7101", None, "host1:7101"),
        ("0.0.0.0:7101", "host1:7101", None, "host1:7101"),
        ("0.0.0.0:7999", "host1:7101", None, "host1:7999"),
        ("[::]:7999", "[fe80::1]:7101", None, "[fe80::1]:7999"),
        ("10.0.0.1:7101", "host1:7101", "nat:1", "nat:1"),
    ],
)
def test_what_the_others_are_told(listen: str, own: str, advertise: str | None, told: str) -> None:
    flags = FLAGS | {"listen": listen, "member": ["1=h:1", f"2={own}"], "insecure": True, "advertise": advertise}
    assert load(None, flags).advertised == told


@pytest.mark.parametrize("address", [
    "0.0.0.0:7100", "0:7100", "[::]:7100", "[::ffff:0.0.0.0]:7100", "[fe80::1%eth0]:7100", "224.0.0.1:7100",
])
@pytest.mark.parametrize(("flags", "key"), [
    ({"advertise": "{}"}, "advertise"),
    ({"member": ["1=h:1", "2={}"]}, "member number 2 address"),
    ({"member": ["1={}", "2=h:1"]}, "member number 1 address"),
    ({"member": None, "join": "{}"}, "join"),
    ({"member": None, "join": "h:1, {}"}, "join"),
    ({"member": None, "join": "h:1", "listen": "{}"}, "listen"),
    ({"member": None, "join": "h:1", "listen": "0.0.0.0:1", "advertise": "{}"}, "advertise"),
])
def test_an_address_that_others_dial_is_refused_unless_they_can(flags: dict[str, Any], key: str, address: str) -> None:
    def filled(value: Any) -> Any:
        return value.format(address) if isinstance(value, str) else value and [one.format(address) for one in value]

    given = {name: filled(value) for name, value in flags.items()}
    said = complaint(None, FLAGS | {"insecure": True} | given)
    assert said.startswith(f'command line: --{key} = "{address}": must be an address that others can dial, ')
    assert said.endswith("or give such an address besides, as advertise (--advertise)") == (key == "listen")


def test_a_newcomer_may_listen_on_all_addresses_if_it_says_where_it_is() -> None:
    flags = FLAGS | {"member": None, "join": "h:1", "listen": "0.0.0.0:7100", "insecure": True}
    config = load(None, flags | {"advertise": "h2:7100"})
    assert (config.advertised, config.own_line.address) == ("h2:7100", "h2:7100")


@pytest.mark.parametrize(("flags", "near"), [
    ({}, ""),
    ({"member": ["1=h:1", "2=10.0.0.2:7101"]}, ""),
    ({"member": ["1=h:1", "2=127.0.0.1:7100"], "advertise": "10.0.0.2:7100"}, "127.0.0.1:7100"),
    ({"member": ["1=localhost:1", "2=10.0.0.2:7101"]}, "localhost:1"),
    ({"member": ["1=10.0.0.1:1", "2=10.0.0.2:7100"], "advertise": "[::1]:7100"}, "[::1]:7100"),
    ({"member": None, "join": "10.0.0.1:7100"}, "127.0.0.1:7101"),
    ({"member": None, "join": "10.0.0.1:7100", "listen": "0.0.0.0:1", "advertise": "h:1"}, ""),
    ({"member": None, "join": "127.0.0.1:7100"}, ""),
])
def test_loopback_addresses_among_others_are_remarked(flags: dict[str, Any], near: str) -> None:
    remark = load(None, FLAGS | {"insecure": True} | flags).remark
    wanted = f"{near} is every host's own address, and other servers are on other hosts: they cannot dial it"
    assert remark == (wanted if near else "")


def test_flags_alone_suffice() -> None:
    config = load(None, FLAGS)
    assert config.configured == (Configured(1, "127.0.0.1:7100"), Configured(2, "127.0.0.1:7101"))
    assert config.own_line.address == "127.0.0.1:7101"
    assert config.settings_core == Settings()
    assert config.cluster_id == b""
    assert (config.stagger_s, config.disk_timeout_s) == (0.025, 0.5)


def test_members_come_out_in_the_order_of_their_ids(write: Any) -> None:
    lines = '[[member]]\nid = 9\naddress = "[::1]:7"\npriority = -3\n[[member]]\nid = 1\naddress = "a.b:1"\n'
    config = load(write(TOP + lines), {})
    assert config.configured == (Configured(1, "a.b:1"), Configured(9, "[::1]:7", -3))


def test_what_the_core_gets(write: Any) -> None:
    path = write(f'cluster = "{"aB" * 16}"\n{TOP}{MEMBERS}[settings]\nsession_ttl_s = 1.5\nwindow = 7\n')
    config = load(path, {})
    assert config.settings_core == Settings(session_ttl_ms=1500, window=7)
    assert config.cluster_id == b"\xab" * 16


def test_five_heartbeats_are_counted_exactly(write: Any) -> None:
    """5 × 0.07 is 0.35000000000000003 in floating point, and yet 0.35 is enough."""
    config = load(write(f"{TOP}{MEMBERS}[timers]\nheartbeat_s = 0.07\nelection_timeout_s = 0.35\n"), {})
    assert config.timers.election_timeout_s == 0.35


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.9.9.9", "[::1]"])
def test_loopback_needs_no_consent(host: str) -> None:
    assert load(None, FLAGS | {"listen": f"{host}:7101"}).listen == f"{host}:7101"


@pytest.mark.parametrize("host", ["10.0.0.1", "[::]", "example.org", "localhost.example.org"])
def test_anything_else_does(host: str) -> None:
    assert "insecure = true (--insecure)" in complaint(None, FLAGS | {"listen": f"{host}:7101"})
    assert load(None, FLAGS | {"listen": f"{host}:7101", "insecure": True}).insecure


def spelt_out() -> str:
    """The example's text with every key in force, also of the table that is left out by default."""
    return re.sub(r"(?m)^#(?=[a-z_]+ = |\[tls\])", "", EXAMPLE.read_text())


def test_the_example_shows_every_key_with_its_default() -> None:
    """Each line "#name = value" of the example shows a default: without the # it must change nothing."""
    plain = load(EXAMPLE, {})
    shown = tomllib.loads(spelt_out())

    def compare(table: Any, keys: dict[str, Any], given: set[str]) -> None:
        assert set(keys) == set(type(table).model_fields)
        for key in set(keys) - given:
            assert getattr(table, key) == keys[key], key

    compare(plain.timers, shown.pop("timers"), {"stagger_s", "disk_timeout_s"})
    compare(plain.settings, shown.pop("settings"), set())
    compare(plain.limits, shown.pop("limits"), set())
    compare(plain.retention, shown.pop("retention"), {"max_age_s", "max_bytes", "max_entries"})
    compare(plain.storage, shown.pop("storage"), set())
    compare(plain.member[0], shown["member"][0], set())
    tls = shown.pop("tls")
    assert plain.tls is None and set(tls) == set(TlsTable.model_fields)
    for key in set(tls) - {"ca", "cert", "key", "roles"}:
        assert tls[key] == TlsTable.model_fields[key].default, key
    tables = {"timers", "settings", "limits", "retention", "storage", "tls"}
    assert set(shown) == set(Config.model_fields) - tables - {"join"}
    assert "join = " in EXAMPLE.read_text()
    for key in ("auto_init", "refused_means_dead", "insecure", "log_format", "log_level"):
        assert getattr(plain, key) == shown[key] == Config.model_fields[key].default


def test_the_example_is_valid_with_every_default_spelt_out(write: Any) -> None:
    loaded = load(write(spelt_out()), {})
    assert (loaded.stagger_s, loaded.disk_timeout_s) == (load(EXAMPLE, {}).stagger_s, 0.5)
    assert loaded.settings_core == Settings()
    assert loaded.retention.max_age_s == 30 * 24 * 3600


def test_every_key_has_a_variable_that_wins_over_the_file_and_gives_way_to_a_flag(write: Any) -> None:
    path = write(f"{TOP}{MEMBERS}[limits]\nhello_timeout_s = 3\n")
    environ = {
        "ALPOD_ID": "2", "ALPOD_LISTEN": "[::1]:7101", "ALPOD_AUTO_INIT": "false", "ALPOD_INSECURE": "true",
        "ALPOD_DATA": "", "ALPOD_LOG_LEVEL": "debug", "ALPOD_LIMITS_HELLO_TIMEOUT_S": "2",
        "ALPOD_RETENTION_MAX_ENTRIES": "7", "ALPOD_RETENTION_MAX_AGE_S": "1.5", "ALPOD_TIMERS_STAGGER_S": "1e-1",
        "ALPOD_SETTINGS_WINDOW": "9", "ALPOD_STORAGE_LOW_WATER_BYTES": "0", "HOME": "/root",
    }
    config = load(path, {}, environ)
    assert (config.id, config.listen, config.auto_init, config.insecure) == (2, "[::1]:7101", False, True)
    assert config.data == Path("d"), "an empty variable is none"
    assert (config.limits.hello_timeout_s, config.retention.max_entries, config.retention.max_age_s) == (2, 7, 1.5)
    assert (config.stagger_s, config.settings.window, config.storage.low_water_bytes) == (0.1, 9, 0)
    assert load(path, {"id": 1, "log_level": "error"}, environ).id == 1
    alone = {"ALPOD_ID": "1", "ALPOD_DATA": "d", "ALPOD_LISTEN": "127.0.0.1:7100", "ALPOD_MEMBER": "1=h:1, 2=h:2"}
    assert load(None, {}, alone).configured == (Configured(1, "h:1"), Configured(2, "h:2"))


def test_a_variable_for_each_key() -> None:
    keys = {"id", "data", "listen", "advertise", "member", "join", "cluster", "auto_init", "insecure", "log_format"}
    assert {f"ALPOD_{key.upper()}" for key in keys} <= set(variables())
    shown = tomllib.loads(spelt_out())
    tables = {f"ALPOD_{t.upper()}_{k.upper()}" for t, keys in shown.items() if isinstance(keys, dict) for k in keys}
    assert len(tables) > 20 and tables - {"ALPOD_TLS_ROLES"} <= set(variables())


@pytest.mark.parametrize(("variable", "text", "accepted"), [
    ("ALPOD_ID", "x", "must be a whole number from 1 to 2147483647"),
    ("ALPOD_ID", "0", "must be a whole number from 1 to 2147483647"),
    ("ALPOD_AUTO_INIT", "yes", "must be true or false"),
    ("ALPOD_LIMITS_HELLO_TIMEOUT_S", "nan", "must be seconds, from 0.05 to 300"),
    ("ALPOD_LIMITS_HELLO_TIMEOUT_S", "1e999", "must be seconds, from 0.05 to 300"),
    ("ALPOD_RETENTION_MAX_ENTRIES", "1.5", f"must be a whole number from 1 to {2**62}"),
    ("ALPOD_LOG_LEVEL", "INFO", 'must be "debug", "info", "warning" or "error"'),
    ("ALPOD_MEMBER", "1", "must be ID=HOST:PORT"),
])
def test_a_wrong_variable_is_named(write: Any, variable: str, text: str, accepted: str) -> None:
    said = complaint(write(TOP + MEMBERS), {}, {variable: text})
    assert said.startswith(f"environment: {variable} ") and said.endswith(f": {accepted}"), said


def test_a_variable_cannot_hide_a_table_that_is_none(write: Any) -> None:
    said = complaint(write(f"limits = 5\n{TOP}{MEMBERS}"), {}, {"ALPOD_LIMITS_HELLO_TIMEOUT_S": "2"})
    assert said.endswith("must be a table: [limits]")


def test_variables_that_are_none_of_alpods() -> None:
    environ = {"ALPOD_IDD": "1", "ALPOD_ID": "1", "ALPOD_PORT_7100_TCP": "tcp://", "PATH": ""}
    assert unknown_variables(environ) == ["ALPOD_IDD", "ALPOD_PORT_7100_TCP"]


def test_what_is_in_force_written_out_means_the_same(write: Any) -> None:
    path = write(f'cluster = "{"ab" * 16}"\n{TOP}{MEMBERS}[retention]\nmax_entries = 5\n')
    flags = {"data": Path('a "quoted" \\ path\x7f\n'), "log_level": "error"}
    loaded = load_config(path, flags, {"ALPOD_TIMERS_HEARTBEAT_S": "0.05"})
    text = as_toml(loaded)
    assert load(write(text), {}) == loaded.config
    for line in (
        "id = 1  # a.toml", "max_entries = 5  # a.toml", 'log_level = "error"  # command line: --log-level',
        "heartbeat_s = 0.05  # environment: ALPOD_TIMERS_HEARTBEAT_S", "window = 1024  # default",
        "# max_bytes is not set",
    ):
        assert line in text.splitlines(), line
    newcomer = load_config(None, {"id": 4, "data": "d", "listen": "127.0.0.1:1", "join": "h:1"})
    assert load(write(as_toml(newcomer)), {}) == newcomer.config


def test_what_differs_between_two_configurations(write: Any) -> None:
    old = load(write(TOP + MEMBERS), {})
    tables = "[retention]\nmax_entries = 5\n[timers]\nheartbeat_s = 0.05\n"
    new = load(write(TOP + MEMBERS + tables), {"log_level": "error"})
    assert differences(old, old) == []
    assert differences(old, new) == ["log_level", "timers.heartbeat_s", "retention.max_entries"]
