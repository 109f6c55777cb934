"""The chart: Helm's rendering fits Kubernetes' schemas, and refers only to existing things."""

import shutil
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

import tms
from tests.deploy.render import CHART, NAMES, RENDERED, digest, render
from tms.serve.config import Settings
from tms.serve.config_sources import load

VERSIONS = ["1.27", kubernetes_validate.latest_version()]  # the oldest that Chart.yaml takes
KINDS = {
    "node": ["NetworkPolicy", "Service", "Service", "StatefulSet"],
    "cluster": ["NetworkPolicy", "PodDisruptionBudget", "Service", "Service", "StatefulSet"],
}


def _documents(name: str) -> list[dict[str, Any]]:
    text = (RENDERED / f"{name}.yaml").read_text()
    return [document for document in yaml.safe_load_all(text) if document]


def _of_kind(name: str, kind: str) -> dict[str, Any]:
    return next(one for one in _documents(name) if one["kind"] == kind)


def _pod(name: str) -> dict[str, Any]:
    template: dict[str, Any] = _of_kind(name, "StatefulSet")["spec"]["template"]
    return template


def _container(name: str) -> dict[str, Any]:
    (container,) = _pod(name)["spec"]["containers"]
    return dict(container)


def _environment(name: str) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in _container(name)["env"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_rendering_is_that_of_the_chart_as_it_is(name: str) -> None:
    text = (RENDERED / f"{name}.yaml").read_text()
    assert text.startswith(f"# made by `make chart` from {digest(name)}\n"), "run: make chart"
    if (helm := shutil.which("helm")) is not None:
        assert [*yaml.safe_load_all(render(helm, name))] == [*yaml.safe_load_all(text)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_everything_fits_the_schemas_of_kubernetes(name: str, version: str) -> None:
    documents = _documents(name)
    assert sorted(one["kind"] for one in documents) == KINDS[name]
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


def test_an_unknown_field_does_not_fit() -> None:
    document = _of_kind("node", "StatefulSet")
    document["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_variables_are_settings_that_the_service_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable, value in _environment(name).items():
        if variable.startswith("TMS__"):
            if variable.endswith("_FILE"):
                (tmp_path / variable).write_text("https://console.example")
                value = str(tmp_path / variable)
            pod = f"tms-{name}-0"
            monkeypatch.setenv(variable, value.replace("$(POD_NAME)", pod))
    settings: Settings = load(None, {})
    assert settings.server.is_guarded
    assert settings.server.port == _container(name)["ports"][0]["containerPort"]
    if name == "cluster":
        assert settings.server.advertise.startswith("https://tms-cluster-0.tms-nodes.messages.svc.")
        assert settings.server.cors == "https://console.example"
        assert settings.kafka.port == _container(name)["ports"][1]["containerPort"]
        assert (
            settings.kafka.advertised == "tms-cluster-0.tms-nodes.messages.svc.cluster.local:9092"
        )
        assert settings.server.drain_s < _pod(name)["spec"]["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_mounted_is_a_volume_and_paths_of_settings_are_mounted(name: str) -> None:
    container, spec = _container(name), _of_kind(name, "StatefulSet")["spec"]
    volumes = {one["name"] for one in spec["template"]["spec"]["volumes"]}
    volumes |= {one["metadata"]["name"] for one in spec.get("volumeClaimTemplates", [])}
    assert {one["name"] for one in container["volumeMounts"]} == volumes
    mounted = [one["mountPath"] for one in container["volumeMounts"]]
    paths = [value for value in _environment(name).values() if value.startswith("/")]
    assert all(any(path.startswith(mount) for mount in mounted) for path in paths)
    assert len(paths) == {"node": 1, "cluster": 4}[name]


@pytest.mark.parametrize("name", NAMES)
def test_services_policies_and_budgets_select_the_pods(name: str) -> None:
    labels = _pod(name)["metadata"]["labels"].items()
    (headless,) = [
        one for one in _documents(name) if one.get("spec", {}).get("clusterIP") == "None"
    ]
    stateful = _of_kind(name, "StatefulSet")
    assert headless["metadata"]["name"] == stateful["spec"]["serviceName"]
    for document in _documents(name):
        spec = document["spec"]
        selector = spec.get("selector") or spec["podSelector"]
        assert (selector.get("matchLabels") or selector).items() <= labels


@pytest.mark.parametrize("name", NAMES)
def test_pods_may_do_little(name: str) -> None:
    pod, container = _pod(name)["spec"], _container(name)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize(("name", "scheme"), [("node", "HTTP"), ("cluster", "HTTPS")])
def test_probes_ask_for_what_each_means(name: str, scheme: str) -> None:
    container = _container(name)
    asked = {
        probe: container[f"{probe}Probe"]["httpGet"]
        for probe in ("startup", "liveness", "readiness")
    }
    assert {probe: one["path"] for probe, one in asked.items()} == {
        "startup": "/startupz",
        "liveness": "/livez",
        "readiness": "/readyz",
    }
    assert {one.get("scheme", "HTTP") for one in asked.values()} == {scheme}
    assert {one["port"] for one in asked.values()} == {container["ports"][0]["name"]}


def test_a_node_has_one_pod_and_a_cluster_as_many_as_are_asked_for() -> None:
    assert _of_kind("node", "StatefulSet")["spec"]["replicas"] == 1
    assert _of_kind("cluster", "StatefulSet")["spec"]["replicas"] == 3


def test_values_fit_their_schema_which_knows_no_others() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema)
    assert set(values) == set(schema["properties"]) - {"global"}
    with pytest.raises(jsonschema.ValidationError, match="replica"):
        jsonschema.validate({**values, "replica": 2}, schema)


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (tms.__version__, tms.__version__)
