"""The images and the composition, as far as they can be checked without an engine: every name in
them exists, and their commands are those that the tests of this folder run."""

import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.etree import ElementTree

import click
import promql_parser as promql
import pytest
import yaml
from docker.utils import exclude_paths

import tms
from integration.cluster import Endpoint, runtime, site
from tests.faults.service import Service
from tests.tls_kit import Authority
from tms.cli.main import cli, run
from tms.serve.config import Settings

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = ROOT / "docker" / "compose.yaml"
INSTANCES = ["tms-1", "tms-2", "tms-3"]
NODE = ROOT / "docker" / "compose.node.yaml"
RUN = ROOT / "docker" / "hbase" / "run.sh"
ANSWERS = ROOT / "docker" / "hbase" / "answers.sh"
ALERTS = ROOT / "docker" / "prometheus" / "alerts.yaml"
compositions = pytest.mark.parametrize("path", [COMPOSE, NODE], ids=["cluster", "node"])
DOCKERFILES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docker/*/Dockerfile"))


def _document(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text())
    return document


def _services(path: Path = COMPOSE) -> dict[str, Any]:
    """The services without a profile."""
    services = _document(path)["services"]
    return {name: one for name, one in services.items() if "extends" not in one}


def _watching(path: Path) -> dict[str, Any]:
    """The services of the profile `watch`, with the definitions that they extend."""
    services: dict[str, Any] = {}
    for name, own in _document(path)["services"].items():
        if "extends" in own:
            file, service = own["extends"]["file"], own["extends"]["service"]
            base = _document(path.parent / file)["services"][service]
            volumes = [*base.get("volumes", []), *own.get("volumes", [])]
            services[name] = {**base, **own, "volumes": volumes}
    return services


def _instructions(dockerfile: str) -> list[list[str]]:
    """The instructions of a Dockerfile, continued lines joined, as words."""
    text = re.sub(r"^#.*\n", "", (ROOT / dockerfile).read_text(), flags=re.MULTILINE)
    return [line.split() for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def _site(name: str) -> dict[str, str]:
    tree = ElementTree.parse(ROOT / "docker" / "hbase" / name / "hbase-site.xml")
    return {str(one.findtext("name")): str(one.findtext("value")) for one in tree.iter("property")}


# The composition.


def test_the_composition_has_hbase_its_gateway_a_zookeeper_and_three_instances() -> None:
    assert list(_services()) == ["hbase", "thrift", "install", "zookeeper", *INSTANCES]


def test_what_a_service_is_built_from_exists_and_every_image_is_built() -> None:
    built = {}
    for service in _services().values():
        if "build" in service:
            assert service["pull_policy"] == "build"  # a registry has other images of these names
            context = (COMPOSE.parent / service["build"]["context"]).resolve()
            assert context == ROOT
            assert service["build"]["dockerfile"] in DOCKERFILES
            built[service["image"]] = service["build"]["dockerfile"]
    assert {service["image"] for service in _services().values()} == set(built)
    assert sorted(built.values()) == DOCKERFILES


def test_services_wait_for_services_that_say_when_they_are_ready() -> None:
    services = _services()
    for service in services.values():
        for name, waited in service.get("depends_on", {}).items():
            lasting = "healthcheck" in services[name]
            ready = "service_healthy" if lasting else "service_completed_successfully"
            if name == "hbase":  # its gateway answers the health check
                ready = "service_started"
            assert waited == {"condition": ready}
    without = [name for name, one in services.items() if "healthcheck" not in one]
    assert without == ["hbase", "install"]
    checks = [one["healthcheck"] for one in services.values() if "healthcheck" in one]
    assert all(check["test"][0] == "CMD" for check in checks)


def test_ports_are_open_to_this_machine_only_and_are_those_of_the_images() -> None:
    for service in _services().values():
        exposed = _exposed(service["image"])
        for published in service.get("ports", []):
            address, _, inside = published.split(":")
            assert address == "127.0.0.1"
            assert inside in exposed


def _exposed(image: str) -> list[str]:
    (dockerfile,) = {
        service["build"]["dockerfile"]
        for service in _services().values()
        if service["image"] == image
    }
    return [
        port for words in _instructions(dockerfile) if words[0] == "EXPOSE" for port in words[1:]
    ]


def test_volumes_are_declared_and_mounted_where_the_image_keeps_its_data() -> None:
    document = yaml.safe_load(COMPOSE.read_text())
    mounted = [
        one for service in document["services"].values() for one in service.get("volumes", [])
    ]
    own = [one for one in mounted if not one.startswith("./")]
    assert own == ["hbase:/data", "jars:/jars", "jars:/jars"]
    assert list(document["volumes"]) == ["hbase", "jars", "prometheus", "grafana"]
    words = shlex.split(document["services"]["install"]["command"][0])
    assert f"--jar=/jars/tms-coprocessor-{tms.__version__}.jar" in words
    assert _site("server")["hbase.rootdir"].startswith("file:///data/")


@pytest.mark.parametrize("name", INSTANCES)
def test_an_instance_stores_at_the_gateway_and_is_seen_by_the_others(name: str) -> None:
    services = _services()
    command = services[name]["command"]
    given = dict(zip(command[1::2], command[2::2], strict=False))
    store, cluster = urlsplit(given["--store"]), urlsplit(given["--cluster"])
    assert store.scheme == "hbase"
    assert services[store.hostname or ""]["command"] == ["thrift"]
    assert f"-p {store.port} " in RUN.read_text()
    assert cluster.scheme == "zookeeper"
    assert services[cluster.hostname or ""]["command"] == ["zookeeper"]
    assert f"ZooKeeperServerMain {cluster.port} " in RUN.read_text()
    assert str(cluster.port) in services[cluster.hostname or ""]["healthcheck"]["test"][-1]
    advertised = urlsplit(given["--advertise"])
    assert (given["--instance"], advertised.hostname) == (name, name)
    assert str(advertised.port) in _exposed(services[name]["image"])


def test_the_gateway_looks_for_the_master_where_the_server_says_it_is() -> None:
    host = _services()["hbase"]["hostname"]
    assert _site("gateway")["hbase.masters"] == f"{host}:16000"
    assert {_site("server")[f"hbase.{one}.hostname"] for one in ("master", "regionserver")} == {
        host
    }


def test_gateways_in_containers_give_up_as_early_as_those_of_the_tests() -> None:
    assert site.GATEWAY.items() <= _site("gateway").items()


def _node() -> dict[str, Any]:
    (node,) = _services(NODE).values()
    return dict(node)


@pytest.mark.parametrize("name", ["hbase", "thrift", "zookeeper", *INSTANCES, "node"])
def test_containers_write_nowhere_but_where_their_volumes_are(name: str) -> None:
    service = _node() if name == "node" else _services()[name]
    assert (service["read_only"], service["init"], service["tmpfs"]) == (True, True, ["/tmp"])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", [*INSTANCES, "node"])
def test_containers_of_the_service_have_the_time_to_drain(name: str) -> None:
    service = _node() if name == "node" else _services()[name]
    drain_s = Settings(data=Path("x")).server.drain_s
    assert int(service["stop_grace_period"].removesuffix("s")) > 2 * drain_s


def test_a_node_keeps_its_messages_in_a_volume_that_its_image_uses() -> None:
    node, document = _node(), yaml.safe_load(NODE.read_text())
    assert (COMPOSE.parent / node["build"]["context"]).resolve() == ROOT
    assert node["build"]["dockerfile"] in DOCKERFILES
    (mounted,) = node["volumes"]
    volume, place = mounted.split(":")
    assert volume in document["volumes"]
    (words,) = (one for one in _instructions(node["build"]["dockerfile"]) if one[0] == "CMD")
    assert place in yaml.safe_load(" ".join(words[1:]))
    assert node["ports"] == ["127.0.0.1:7070:7070"]
    assert "healthcheck" not in node  # the image has a health check


# The profile `watch`.


@compositions
def test_prometheus_and_grafana_come_with_the_profile_only_and_by_version(path: Path) -> None:
    watching = _watching(path)
    assert list(watching) == ["prometheus", "grafana"]
    for service in watching.values():
        assert service["profiles"] == ["watch"]
        assert re.fullmatch(r"[a-z]+/[a-z]+:v?\d+\.\d+\.\d+", service["image"])
        assert (service["read_only"], service["init"], service["tmpfs"]) == (True, True, ["/tmp"])
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert watching["grafana"]["depends_on"] == {"prometheus": {"condition": "service_healthy"}}
    assert watching["prometheus"]["healthcheck"]["test"][0] == "CMD"


@compositions
def test_no_two_services_want_the_same_port_and_all_are_of_this_machine_only(path: Path) -> None:
    services = {**_services(path), **_watching(path)}.values()
    published = [one.split(":") for service in services for one in service.get("ports", [])]
    assert {address for address, _, _ in published} == {"127.0.0.1"}
    ports = [port for _, port, _ in published]
    assert len(ports) >= 3 and len(set(ports)) == len(ports)


@compositions
def test_what_the_profile_mounts_is_there(path: Path) -> None:
    volumes = _document(path)["volumes"]
    for service in _watching(path).values():
        for mounted in service["volumes"]:
            source, place, *mode = mounted.split(":")
            assert place.startswith("/")
            if source.startswith("./"):
                assert (path.parent / source).is_file() and mode == ["ro"]
            else:
                assert source in volumes and not mode


def _mounted(service: dict[str, Any], inside: str) -> Path:
    """The file that is mounted at a path of a container."""
    (source,) = [one.split(":")[0] for one in service["volumes"] if one.split(":")[1] == inside]
    return COMPOSE.parent / source


def _settings_of(service: dict[str, Any]) -> dict[str, str]:
    return dict(word.removeprefix("--").split("=", 1) for word in service["command"])


@compositions
def test_prometheus_scrapes_every_instance_with_its_token_and_has_the_alerts(path: Path) -> None:
    document, prometheus = _document(path), _watching(path)["prometheus"]
    settings = _settings_of(prometheus)
    config = yaml.safe_load(_mounted(prometheus, settings["config.file"]).read_text())
    assert config.keys() == {"global", "rule_files", "scrape_configs"}
    assert all(promql.parse_duration(value) for value in config["global"].values())
    assert [_mounted(prometheus, rules) for rules in config["rule_files"]] == [ALERTS]
    assert any(one.endswith(":" + settings["storage.tsdb.path"]) for one in prometheus["volumes"])
    (scrape,) = config["scrape_configs"]
    assert scrape.keys() == {"job_name", "authorization", "static_configs"}
    assert f'up{{job="{scrape["job_name"]}"}}' in ALERTS.read_text()
    (secret,) = prometheus["secrets"]
    assert scrape["authorization"] == {"credentials_file": f"/run/secrets/{secret}"}
    token = document["secrets"][secret]["file"]
    assert token.endswith(".token") and "/" not in token
    assert "*.token" in (ROOT / ".gitignore").read_text().splitlines()
    assert "**/*.token" in (ROOT / ".dockerignore").read_text().splitlines()
    instances = [name for name, one in _services(path).items() if _serves(one)]
    assert scrape["static_configs"] == [{"targets": [f"{name}:7070" for name in instances]}]


def _serves(service: dict[str, Any]) -> bool:
    return service["image"] == "tms" and "entrypoint" not in service


@compositions
def test_grafana_reads_from_prometheus_and_has_the_dashboard(path: Path) -> None:
    watching = _watching(path)
    grafana, folder = watching["grafana"], "/etc/grafana/provisioning"
    (source,) = yaml.safe_load(_mounted(grafana, f"{folder}/datasources/tms.yaml").read_text())[
        "datasources"
    ]
    url = urlsplit(source["url"])
    assert url.hostname in watching and source["type"] == "prometheus" and source["isDefault"]
    assert watching[url.hostname or ""]["ports"][0].endswith(f":{url.port}")
    (provider,) = yaml.safe_load(_mounted(grafana, f"{folder}/dashboards/tms.yaml").read_text())[
        "providers"
    ]
    assert provider["type"] == "file"
    place = f"{provider['options']['path']}/tms.json"
    assert _mounted(grafana, place) == COMPOSE.parent / "grafana" / "tms.json"
    environment = grafana["environment"]
    assert environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] == place
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"  # it has no password


def test_a_service_is_healthy_when_it_is_ready(tmp_path: Path) -> None:
    answers = ROOT / "docker" / "tms" / "answers.py"

    def healthy(port: int, **env: str) -> bool:
        environment = {"TMS__SERVER__PORT": str(port), **env}
        command = [sys.executable, str(answers)]
        return subprocess.run(command, env=environment, stderr=-3, timeout=60).returncode == 0

    with Service(tmp_path / "data") as service:
        assert healthy(service.address[1])
        assert not healthy(service.address[1], TMS__TLS__CERT="x")  # the port speaks no TLS
    assert not healthy(site.free_ports(1)[0])
    cert, key = Authority(tmp_path / "ca").sign().pair
    with Service(tmp_path / "tls", "--tls-cert", cert, "--tls-key", key) as service:
        port = int(service.url.rpartition(":")[2])
        assert healthy(port, TMS__TLS__CERT=cert)


# The images.


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_what_an_image_copies_exists_and_is_sent_to_the_engine(dockerfile: str) -> None:
    patterns = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    sent = exclude_paths(str(ROOT), patterns, dockerfile=dockerfile)
    for words in _instructions(dockerfile):
        if words[0] == "COPY" and not words[1].startswith("--from"):
            for source in [word for word in words[1:-1] if not word.startswith("--")]:
                assert (ROOT / source).exists(), f"{dockerfile} copies {source}"
                assert any(one == source or one.startswith(f"{source}/") for one in sent), source


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_are_built_by_engines_without_buildkit_too(dockerfile: str) -> None:
    for words in _instructions(dockerfile):
        options = {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
        assert words[0] not in ("COPY", "ADD", "FROM") or options <= {"--from", "--chown"}
        assert words[0] != "RUN" or not words[1].startswith("--")


def test_a_server_puts_the_jar_of_its_image_into_the_volume_every_time(tmp_path: Path) -> None:
    (tmp_path / "opt" / "tms").mkdir(parents=True)
    (tmp_path / "opt" / "hbase").mkdir()
    (tmp_path / "jars").mkdir()
    (tmp_path / "java").write_text("#!/bin/sh\n")
    (tmp_path / "java").chmod(0o755)
    for content in (b"the first", b"a newer one"):
        (tmp_path / "opt" / "tms" / "tms-coprocessor-0.1.0.jar").write_bytes(content)
        environment = {
            "PATH": f"{tmp_path}:/usr/bin:/bin",
            "HBASE_RUN_HOME": str(tmp_path / "opt" / "hbase"),
            "TMS_JARS": str(tmp_path / "jars"),
        }
        subprocess.run([RUN, "server"], env=environment, check=True)
        assert (tmp_path / "jars" / "tms-coprocessor-0.1.0.jar").read_bytes() == content


def test_a_gateway_is_healthy_when_hbase_answers_through_it(hbase: Endpoint) -> None:
    def healthy(port: int) -> bool:
        return subprocess.run([ANSWERS, str(port)], timeout=60, stderr=-3).returncode == 0

    assert healthy(hbase.port)
    assert not healthy(site.free_ports(1)[0])
    with socket.create_server(("127.0.0.1", 0)) as early:  # open, without an answer
        port = early.getsockname()[1]
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run([ANSWERS, str(port)], timeout=0.5)
    (check,) = [one["healthcheck"] for one in (_services()["thrift"],)]
    assert check["test"] == ["CMD", "/opt/hbase/answers.sh"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_base_images_are_plain_names_with_a_version(dockerfile: str) -> None:
    for words in _instructions(dockerfile):
        if words[0] == "FROM":
            assert re.fullmatch(r"[a-z]+:[\w.-]+", words[1])


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_images_do_not_run_as_root(dockerfile: str) -> None:
    users = [words[1] for words in _instructions(dockerfile) if words[0] == "USER"]
    assert users
    assert users[-1] == "1000:1000"  # a number: with it Kubernetes knows that it is not root


def _commands_of_install(script: str) -> list[list[str]]:
    """The commands `tms …` of the script, with the words that `set --` puts into `"$@"`."""
    first, second = script.strip().splitlines()
    given = shlex.split(first)[2:]
    found = []
    for command in second.split(" || "):
        words = shlex.split(command)
        assert (words[0], words[-1]) == ("tms", "$$@")
        found.append([*words[1:-1], *given])
    return found


def _serving() -> list[list[str]]:
    """The commands that run the service: from its image, and from the instances."""
    (words,) = (one for one in _instructions("docker/tms/Dockerfile") if one[0] == "CMD")
    services = _services()
    return [
        yaml.safe_load(" ".join(words[1:])),
        *(services[name]["command"] for name in INSTANCES),
    ]


def test_whoever_reaches_a_service_in_a_container_has_to_show_a_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served: list[Settings] = []
    monkeypatch.setattr("tms.serve.main.serve", lambda settings, _: served.append(settings))
    assert [run(command) for command in _serving()] == [0] * (1 + len(INSTANCES))
    assert all(settings.server.is_guarded for settings in served)


@pytest.mark.parametrize("folder", ["docker", "docs", "examples"])
def test_nothing_recommends_a_service_without_access_control(folder: str) -> None:
    telling = []
    for path in [ROOT / "README.md", *(ROOT / folder).rglob("*")]:
        text = path.read_text(errors="replace") if path.is_file() else ""
        telling += [path for line in text.splitlines() if re.search(r"serve\b.*--insecure", line)]
    assert not telling


def test_the_image_has_what_its_lock_was_made_for() -> None:
    """pip has no index there, so an extra that lacks a package in the lock fails the build."""
    dockerfile = (ROOT / "docker/tms/Dockerfile").read_text()
    (extras,) = re.findall(r"--no-index --find-links /wheels 'tms-log\[([a-z,]+)\]'", dockerfile)
    (line,) = re.findall(r"^SERVICE := (.*?)(?: #.*)?$", (ROOT / "Makefile").read_text(), re.M)
    assert line.split() == [word for one in extras.split(",") for word in ("--extra", one)]


def test_commands_of_the_service_are_commands_that_exist() -> None:
    install = _services()["install"]["command"][0]
    for command in (*_serving(), *_commands_of_install(install)):
        found, words = cli.get_command(click.Context(cli), command[0]), command[1:]
        if isinstance(found, click.Group):
            found, words = found.get_command(click.Context(found), words[0]), words[1:]
        assert found is not None
        found.make_context(command[0], list(words))  # raises for an unknown option


@pytest.mark.parametrize(
    ("program", "main", "conf"),
    [
        ("server", "org.apache.hadoop.hbase.master.HMaster", "server"),
        ("thrift", "org.apache.hadoop.hbase.thrift2.ThriftServer", "gateway"),
        ("thrift1", "org.apache.hadoop.hbase.thrift.ThriftServer", "gateway"),
        ("admin", "Admin", "gateway"),
        ("zookeeper", "org.apache.zookeeper.server.ZooKeeperServerMain", "server"),
    ],
)
def test_the_programs_of_the_image_run_with_the_options_of_the_tests(
    program: str, main: str, conf: str, tmp_path: Path
) -> None:
    (tmp_path / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "java").chmod(0o755)
    ran = subprocess.run(
        [RUN, program], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True
    )
    words = ran.stdout.splitlines()
    assert main in words
    assert f"/opt/hbase/{conf}:/opt/hbase/classes:/opt/hbase/lib/*" in words
    # A long-running server is compiled thoroughly; tests want a quick start.
    assert set(runtime.OPTIONS) - {"-XX:TieredStopAtLevel=1"} <= set(words)


def test_a_program_that_the_image_does_not_have_is_refused() -> None:
    ran = subprocess.run([RUN, "shell"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (
        64,
        "error: no program shell; give server, thrift, thrift1, zookeeper or admin\n",
    )
