"""The files in deploy/: their commands start a server, their paths and metrics exist."""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from ringdove.cli import EXIT_OK, run
from ringdove.server_config import ServerConfig
from server.running import PATIENCE_S, ServerThread

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
#: Functions and words of Prometheus's language look like metrics; ours have a prefix.
METRIC = re.compile(r"\bringdove_\w+")


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    """The names that a real server tells Prometheus."""
    with (
        ServerThread("nowhere", memory=True, manager=True) as server,
        urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics") as answer,
    ):
        return set(re.findall(r"^(?:# TYPE )?(ringdove_\w+)", answer.read().decode(), re.MULTILINE))


def dockerfile(instruction: str) -> list[str]:
    text = (DEPLOY / "container" / "Dockerfile").read_text()
    return re.findall(rf"^{instruction} (.*)$", text, flags=re.MULTILINE)


# -- monitoring -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["prometheus/alerts.yml", "grafana/ringdove.json"])
def test_every_metric_exists(name, metrics):
    named = set(METRIC.findall((DEPLOY / name).read_text()))
    assert len(named) > 5
    assert named <= metrics


def test_the_panels_of_the_dashboard_do_not_overlap():
    board = json.loads((DEPLOY / "grafana" / "ringdove.json").read_text())
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_commands_named_in_alerts_exist():
    text = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    named = set(re.findall(r"ringdove (dead show|dead redrive|plan|cluster status)\b", text))
    assert len(named) == 4
    for command in named:
        assert run([*command.split(), "--help"]) == EXIT_OK


def test_alerts_fire_when_they_should():
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run(
            ["promtool", *command],
            cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


# -- commands -------------------------------------------------------------------------------------


def of_systemd(data: Path) -> tuple[list[str], dict[str, str]]:
    unit = (DEPLOY / "systemd" / "ringdove.service").read_text()
    [command] = re.findall(r"^ExecStart=\S+/ringdove (.*)$", unit, flags=re.MULTILINE)
    assert "/var/lib/ringdove/data" in command
    assert "StateDirectory=ringdove\n" in unit
    return command.replace("/var/lib/ringdove/data", str(data)).split(), {}


def of_container(data: Path) -> tuple[list[str], dict[str, str]]:
    compose = yaml.safe_load((DEPLOY / "container" / "compose.yaml").read_text())
    [told] = dockerfile("ENV")
    environment = dict(word.split("=") for word in told.split())
    assert environment["RINGDOVE_DATA"] == dockerfile("VOLUME")[0]
    environment |= compose["services"]["ringdove"]["environment"]
    return json.loads(dockerfile("CMD")[0]), {**environment, "RINGDOVE_DATA": str(data)}


def of_kubernetes(data: Path) -> tuple[list[str], dict[str, str]]:
    documents = yaml.safe_load_all((DEPLOY / "kubernetes" / "server.yaml").read_text())
    [pod] = [d["spec"]["template"]["spec"] for d in documents if d["kind"] == "StatefulSet"]
    [container] = pod["containers"]
    environment = {e["name"]: e.get("value", "hunter2") for e in container["env"]}
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    (data.parent / "tls").mkdir()
    certificate.private_key_pem.write_to_path(data.parent / "tls" / "tls.key")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(data.parent / "tls" / "tls.crt", append=True)
    authority.cert_pem.write_to_path(data.parent / "ca.pem")
    for name, value in environment.items():
        environment[name] = value.replace("/tls/", f"{data.parent}/tls/")
    return container["args"], {**environment, "RINGDOVE_DATA": str(data)}


@pytest.mark.parametrize("told", [of_systemd, of_container, of_kubernetes])
def test_its_command_starts_a_server_and_sigterm_ends_it(told, tmp_path):
    arguments, environment = told(tmp_path / "data")
    environment |= {"RINGDOVE_HOST": "127.0.0.1", "RINGDOVE_PORT": "0", "RINGDOVE_HTTP": "0"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ringdove", *arguments, "--json"],
        env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        port, tls = json.loads(line)["http"], None
        if "RINGDOVE_TLS_CERT" in environment:
            tls = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        url = f"http{'s' if tls else ''}://127.0.0.1:{port}/readyz"
        assert urllib.request.urlopen(url, context=tls).status == 200
        assert (tmp_path / "data" / "format").exists()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, log
        assert json.loads(log.splitlines()[-1])["event"] == "closed"
    finally:
        process.kill()
        process.wait()


def test_the_unit_is_one_that_systemd_understands(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = (DEPLOY / "systemd" / "ringdove.service").read_text()
    [program] = re.findall(r"^ExecStart=(\S+)", unit, flags=re.MULTILINE)
    (tmp_path / "ringdove.service").write_text(unit.replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "ringdove.service")],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert "ringdove.service" not in done.stderr, done.stderr


# -- containers -----------------------------------------------------------------------------------


def test_a_wheel_can_be_built_from_what_the_container_is_given(tmp_path):
    for line in dockerfile("COPY"):
        *sources, _ = line.split()
        for source in sources:
            allowed = (DEPLOY / "container" / "Dockerfile.dockerignore").read_text().split()
            assert f"!{source}" in allowed
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, tmp_path / source)
    done = subprocess.run(
        [sys.executable, "-c", "from hatchling import build; print(build.build_wheel('.'))"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.stdout.startswith("ringdove-"), done.stderr


def test_the_service_of_compose_is_the_container():
    path = DEPLOY / "container" / "compose.yaml"
    service = yaml.safe_load(path.read_text())["services"]["ringdove"]
    context = path.parent / service["build"]["context"]
    assert (context / service["build"]["dockerfile"]).samefile(path.parent / "Dockerfile")
    published = [port.split(":") for port in service["ports"]]
    assert {(host, inside) for host, _, inside in published} == {
        ("127.0.0.1", port) for port in dockerfile("EXPOSE")[0].split()
    }
    defaults = ServerConfig()
    assert dockerfile("EXPOSE") == [f"{defaults.port} {defaults.http}"]
    assert f":{defaults.http}/readyz" in str(service["healthcheck"]["test"])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_parts_of_a_manifest_fit_together(path):
    documents = list(yaml.safe_load_all(path.read_text()))
    by_kind: dict[str, Any] = {document["kind"]: document["spec"] for document in documents}
    [workload] = [by_kind[kind] for kind in ("StatefulSet", "Deployment") if kind in by_kind]
    pod = workload["template"]
    [container] = pod["spec"]["containers"]

    labels = pod["metadata"]["labels"]
    assert workload["selector"]["matchLabels"] == labels
    assert by_kind["Service"]["selector"] == labels
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {p["targetPort"] for p in by_kind["Service"]["ports"]} == ports.keys()
    assert all(ports[p["targetPort"]] == p["port"] for p in by_kind["Service"]["ports"])
    for probe in (value for name, value in container.items() if name.endswith("Probe")):
        assert probe["httpGet"]["port"] in ports
        assert probe["httpGet"]["path"] in ("/healthz", "/readyz")

    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    volumes |= {c["metadata"]["name"] for c in workload.get("volumeClaimTemplates", ())}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    options = {f"RINGDOVE_{name.upper()}" for name in ServerConfig.__struct_fields__}
    assert {variable["name"] for variable in container["env"]} <= options
    [user] = re.findall(r"--uid (\d+)", dockerfile("RUN")[-1])
    assert pod["spec"]["securityContext"]["runAsUser"] == int(user)
    assert dockerfile("USER") == [user]
