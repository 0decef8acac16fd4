"""Files that run alpod in containers: the image's recipe, compose and Kubernetes. The tests run what the files say,
in namespaces, as far as this machine allows."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pods
import pytest
import yaml

from alpo.config import Config
from alpo.config_sources import load_config, variables

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "config" / "container"
CONTAINERFILE = (FOLDER / "Containerfile").read_text("utf-8").replace("\\\n", " ")
COMPOSE_FILE = FOLDER / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text("utf-8"))
KUBERNETES_FILE = ROOT / "config" / "kubernetes" / "alpo.yaml"
OBJECTS: dict[str, dict[str, Any]] = {
    each["kind"]: each for each in yaml.safe_load_all(KUBERNETES_FILE.read_text("utf-8"))
}
SPEC: dict[str, Any] = OBJECTS["StatefulSet"]["spec"]
POD: dict[str, Any] = SPEC["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]
CERTS = "/etc/alpo/certs"
NAMESPACE = "night"


def instructions(name: str) -> list[str]:
    """Arguments of an instruction of the recipe, in order."""
    return re.findall(rf"^{name}\s+(.*)$", CONTAINERFILE, re.MULTILINE)


def image_environment() -> dict[str, str]:
    return dict(part.split("=", 1) for line in instructions("ENV") for part in shlex.split(line))


# -- the image -------------------------------------------------------------------------------------------

def test_the_image_is_what_it_should_be() -> None:
    first, last = CONTAINERFILE.split("AS build")
    assert last.count("\nFROM ") == 1 and "FROM" in first
    assert json.loads(instructions("ENTRYPOINT")[0]) == ["/opt/alpo/bin/alpod"]
    assert instructions("USER") == [f"{pods.UID}:{pods.UID}"] and instructions("STOPSIGNAL") == ["SIGTERM"]
    assert instructions("VOLUME") == ["/var/lib/alpo"] and instructions("HEALTHCHECK") == []
    assert image_environment()["ALPOD_DATA"].startswith("/var/lib/alpo/")
    assert set(image_environment()) - {"PATH", "PYTHONDONTWRITEBYTECODE"} <= set(variables())


def test_the_image_is_made_of_what_is_there() -> None:
    copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    hatch = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]
    wheel = hatch["targets"]["wheel"]
    packages = {package.split("/")[0] for package in wheel["packages"]}
    assert set(copied) >= packages | set(wheel["force-include"]) | {"pyproject.toml", "README.md", "LICENSE"}


def pinned(text: str) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def test_the_image_installs_what_the_tests_ran_with() -> None:
    text = (FOLDER / "requirements.txt").read_text("utf-8")
    image, tested = pinned(text), pinned((ROOT / "constraints.txt").read_text("utf-8"))
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    names = {re.match(r"[a-z0-9-]+", each.lower().replace("_", "-"))[0] for each in needed}  # type: ignore[index]
    assert names <= set(image)
    assert {name: (image[name], tested[name]) for name in set(image) & set(tested) if image[name] != tested[name]} == {}
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=[a-z])", text)[1:])
    assert "://" not in text


# -- compose and Kubernetes: what they say ---------------------------------------------------------------

def expanded(env: list[dict[str, Any]], fields: Mapping[str, str]) -> dict[str, str]:
    """Environment of a container as the kubelet makes it: $(NAME) is the value of an earlier variable."""
    found: dict[str, str] = {}
    for each in env:
        if "valueFrom" in each:
            found[each["name"]] = fields[each["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], each["value"])
    return found


def in_kubernetes() -> dict[str, dict[str, str]]:
    """Name in the network -> environment of each pod."""
    found = {}
    for number in range(SPEC["ordinals"]["start"], SPEC["ordinals"]["start"] + SPEC["replicas"]):
        name = f"{OBJECTS['StatefulSet']['metadata']['name']}-{number}"
        fields = {
            "metadata.name": name, "metadata.namespace": NAMESPACE,
            "metadata.labels['apps.kubernetes.io/pod-index']": str(number),
        }
        found[f"{name}.{SPEC['serviceName']}.{NAMESPACE}.svc"] = expanded(CONTAINER["env"], fields)
    return found


def in_compose() -> dict[str, dict[str, str]]:
    services = {name: each for name, each in COMPOSE["services"].items() if "ALPOD_ID" in each["environment"]}
    return {each["hostname"]: each["environment"] for each in services.values()}


PLACES = {"kubernetes": (KUBERNETES_FILE, in_kubernetes), "compose": (COMPOSE_FILE, in_compose)}


def configuration(environment: dict[str, str]) -> Config:
    return load_config(None, {}, image_environment() | environment).config


@pytest.mark.parametrize("place", PLACES)
def test_the_servers_are_three_that_agree(place: str) -> None:
    servers = PLACES[place][1]()
    configs = [configuration(environment) for environment in servers.values()]
    assert [config.id for config in configs] == [1, 2, 3]
    assert len({config.member for config in configs}) == 1
    assert [(line.id, line.address) for line in configs[0].member] == [
        (id, f"{host}:7100") for id, host in enumerate(servers, 1)
    ]
    for host, config, environment in zip(servers, configs, servers.values(), strict=True):
        assert config.advertised == f"{host}:7100" and config.auto_init
        assert config.tls is not None and config.tls.mode == "require"
        assert str(config.tls.key) == f"{CERTS}/server-{config.id}.key"
        assert set(environment) - {"POD_NAME", "POD_NAMESPACE", "ALPOD_HTTP"} <= set(variables())


def test_the_line_in_the_manual_starts_one_server() -> None:
    line = (ROOT / "docs" / "testing.md").read_text("utf-8").partition("$ docker run ")[2].partition("\n    $ ")[0]
    words = shlex.split(line)
    environment = dict(word.split("=", 1) for before, word in itertools.pairwise(words) if before == "--env")
    config = configuration(environment)
    assert config.id == 1 and [line.address for line in config.member] == [config.advertised] == ["127.0.0.1:7100"]
    assert words[-1] in FOLDER.joinpath("Containerfile").read_text("utf-8")
    assert f"alpo-1:{instructions('VOLUME')[0]}" in words


def test_compose_starts_them_with_little_power() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"] and service["tmpfs"], name
        assert int(service["stop_grace_period"].rstrip("s")) >= 10
        mounts = [volume.split(":") for volume in service["volumes"]]
        for variable, path in service["environment"].items():
            if path.startswith(CERTS):
                assert [f"./certs/{Path(path).name}", path, "ro"] in mounts, variable
        keys = [source for source, *_ in mounts if source.endswith(".key")]
        assert len(keys) == 1, "it sees another one's key"
        if name != "alpo":
            assert mounts[0][0] in COMPOSE["volumes"] and mounts[0][1] == instructions("VOLUME")[0]
    data = [service["volumes"][0] for name, service in COMPOSE["services"].items() if name != "alpo"]
    assert len(set(data)) == 3


def test_kubernetes_lets_the_servers_find_each_other_before_they_are_ready() -> None:
    service = OBJECTS["Service"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert SPEC["podManagementPolicy"] == "Parallel" and SPEC["serviceName"] == service["metadata"]["name"]
    labels = SPEC["template"]["metadata"]["labels"]
    assert labels == SPEC["selector"]["matchLabels"] == service["spec"]["selector"]
    budget = OBJECTS["PodDisruptionBudget"]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {"alpo": 7100, "http": 7180}
    assert ports == {port["name"]: port["port"] for port in service["spec"]["ports"]}
    environment = next(iter(in_kubernetes().values()))
    assert [environment[name].rpartition(":")[2] for name in ("ALPOD_LISTEN", "ALPOD_HTTP")] == ["7100", "7180"]


def test_kubernetes_asks_the_right_questions() -> None:
    probes = {name: CONTAINER[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["httpGet"]["path"] for name, probe in probes.items()} == {
        "startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz",
    }
    for probe in probes.values():
        assert (probe["httpGet"]["port"], probe["httpGet"]["scheme"]) == ("http", "HTTPS")
        assert probe["timeoutSeconds"] <= probe["periodSeconds"]
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 300
    assert POD["terminationGracePeriodSeconds"] >= 10


def test_kubernetes_gives_them_little_power() -> None:
    assert POD["securityContext"]["runAsNonRoot"] is True and POD["automountServiceAccountToken"] is False
    ids = {POD["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")}
    assert ids == {pods.UID} and POD["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }
    mounts = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    claims = [claim["metadata"]["name"] for claim in SPEC["volumeClaimTemplates"]]
    assert set(mounts) == {*volumes, *claims} and mounts["data"]["mountPath"] == instructions("VOLUME")[0]
    assert volumes["tls"]["secret"]["defaultMode"] == 0o440 and mounts["tls"]["mountPath"] == CERTS
    assert "emptyDir" in volumes["tmp"], "what must outlive a pod is in a claim"
    (apart,) = POD["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"]["matchLabels"] == SPEC["selector"]["matchLabels"]


# -- and what comes of it --------------------------------------------------------------------------------

_NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "--kill-child", "--"]


@functools.cache
def no_namespaces() -> str:
    """Reason why this machine gives no namespaces; "" if it gives some."""
    try:
        done = subprocess.run([*_NAMESPACES, "unshare", "--user", "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or "unshare fails"


def commands_of(path: Path) -> Iterator[list[str]]:
    """Commands in the comment at the head of a file."""
    head = "".join(line[1:] for line in path.read_text("utf-8").splitlines(True) if line.startswith("#"))
    for line in head.replace("\\\n", " ").splitlines():
        if line.startswith("   "):
            yield shlex.split(line.strip().removeprefix("sudo "))


def make_certificates(path: Path, folder: Path) -> None:
    (words,) = [words for words in commands_of(path) if words[:3] == ["alpo", "certs", "make"]]
    told = [word.replace("NAMESPACE", NAMESPACE) for word in words[1:]]
    subprocess.run([sys.executable, "-c", pods.ALPO, *told], cwd=folder, check=True, capture_output=True)


def plan_of(place: str, folder: Path) -> dict[str, Any]:
    """Plan for `pods.py` to run. All servers share one network here, so each listens on an address of its own."""
    path, servers = PLACES[place]
    make_certificates(path, folder)
    paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", ""), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    plan: dict[str, Any] = {"python": sys.executable, "hosts": {}, "pods": []}
    for host, environment in servers().items():
        id = environment["ALPOD_ID"]
        plan["hosts"][host] = address = f"127.0.0.1{id}"
        volume = folder / f"volume-{id}"
        volume.mkdir()
        told = {
            variable: re.sub(r"^/var/lib/alpo(?=/|$)", str(volume), value)
            .replace("0.0.0.0", address).replace(CERTS, str(folder / "certs"))
            for variable, value in (image_environment() | environment | paths).items()
        }
        probes = [f"https://{address}:7180{question}" for question in ("/healthz", "/readyz")]
        log = str(folder / f"server-{id}.log")
        plan["pods"].append({"environment": told, "volume": str(volume), "log": log, "probes": probes})
    client = "ops" if place == "kubernetes" else "client"
    plan["command"] = paths | {
        "ALPO_SERVERS": ",".join(plan["hosts"]), "ALPO_CA": str(folder / "certs" / "ca.pem"),
        "ALPO_CERT": str(folder / "certs" / f"{client}.pem"), "ALPO_KEY": str(folder / "certs" / f"{client}.key"),
        "ALPO_TLS_NAME": plan["pods"][0]["environment"]["ALPOD_TLS_NAME"],
    }
    return plan


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.skipif(no_namespaces() != "", reason=f"this machine gives no namespaces: {no_namespaces()}")
def test_servers_run_as_a_stranger_on_a_read_only_root(place: str, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(plan_of(place, tmp_path)), "utf-8")
    done = subprocess.run(
        [*_NAMESPACES, sys.executable, "-P", pods.__file__, str(tmp_path / "plan.json")], capture_output=True,
        text=True, check=False, timeout=400,
    )
    logs = "".join(path.read_text("utf-8") for path in sorted(tmp_path.glob("*.log")))
    assert done.returncode == 0, done.stderr + logs
    told = json.loads(done.stdout)
    assert (told["append"], told["read"]) == ("1\n", "hello\n"), logs
    (status,) = told["status"]
    assert [(row["id"], row["status"]) for row in status["members"]] == [(1, "VOTING"), (2, "VOTING"), (3, "VOTING")]
    assert {row["address"].rpartition(":")[0] for row in status["members"]} == set(PLACES[place][1]())
    assert re.findall(r"^Uid:\t(\d+)\t.*\nCapEff:\t0+$", logs, re.MULTILINE) == [str(pods.UID)] * 3
    assert list(told["probes"].values()) == [200] * 6
    assert told["exit codes"] == [0, 0, 0], logs
    assert all((tmp_path / f"volume-{id}" / "data" / "alpo.db").exists() for id in (1, 2, 3))
