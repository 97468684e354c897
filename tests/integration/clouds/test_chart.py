"""deploy/helm: rendered by Helm itself, and its commands run as processes of this host."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import helm_python
import helm_python.chart
import kubernetes_validate
import pytest
import yaml
from prometheus_client import CollectorRegistry

from tests.certificates import certificate
from tests.kubernetes import Api, Host
from tests.ports import free_ports
from tests.waiting import eventually
from volstream.base import config
from volstream.base.config import Settings
from volstream.base.privacy import certificate_of
from volstream.server import probe as asking
from volstream.server.console.app import probes
from volstream.server.console.server import HttpServer
from volstream.spark.jvm import install

ROOT = Path(__file__).parents[3]
CHART = ROOT / "deploy" / "helm"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SHUTDOWN_SECONDS = Settings.model_fields["shutdown_seconds"].default

#: The engine ends after the work in hand did.
ENGINE_SECONDS = 30

COMPONENT = "app.kubernetes.io/component"

#: What Spark 4.2.0 asked the API server of Kubernetes 1.36.3 about pods, in its audit log: verb, and when. All was in the release's namespace.
ASKED = {
    "get": "its own pod, which it makes the executors' owner; an executor that it deletes",
    "list": "its own pod, until it is ready; executors, every half minute",
    "watch": "its own pod, until it is ready; executors",
    "create": "an executor",
    "delete": "an executor that failed",
    "deletecollection": "all executors, at the end",
}

#: Values, by what they are for.
VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "s3": {
        "image": f"registry.example.com/volstream@sha256:{'0' * 64}",
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/volstream"}},
        "warehouse": {"location": "s3://bucket/prefix"},
        "settings": {"warehouse_options": {"AWS_REGION": "eu-west-1"}, "max_parallel_jobs": 3, "http_port": 9000},
        "console": {"tlsSecret": "console"},
        "spark": {"secret": "keys", "conf": {"spark.eventLog.enabled": "false"}},
    },
    "elsewhere": {
        "warehouse": {"location": "/warehouse", "existingClaim": "mine"},
        "virtualClusters": {
            "BATCH": {"sparkRemote": "sc://spark.example.com:443/;use_ssl=true", "secret": "keys"},
            "BIG_GPU": {"settings": {"cores": 4, "driver_memory": "6GiB"}},
        },
        "spark": {"enabled": False},
    },
    "folders": {
        "secret": "ours",
        "warehouse": {"storageClass": "nfs", "size": "1Ti"},
        "volumes": [{"name": "scans", "nfs": {"server": "files.example.com", "path": "/scans"}}],
        "volumeMounts": [{"name": "scans", "mountPath": "/scans", "readOnly": True}],
        "virtualClusters": {"DEFAULT": None},
    },
}


@functools.cache
def rendered(name: str) -> list[Any]:
    """The chart's documents."""
    return documents(VALUES[name])


def documents(values: dict[str, Any], release: str = "tables") -> list[Any]:
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(values, name=release, namespace="data")
    found = [yaml.safe_load_all(text) for path, text in texts.items() if not path.endswith("NOTES.txt")]
    return [document for one in found for document in one if document]


def of_kind(name: str, kind: str) -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in rendered(name) if one["kind"] == kind}


def daemons(name: str) -> list[Any]:
    return [one for one in of_kind(name, "Deployment").values() if one["metadata"]["labels"][COMPONENT] == "daemon"]


def executor(name: str) -> Any:
    """The pod that Spark completes; None: the chart has no Spark."""
    maps = of_kind(name, "ConfigMap")
    return yaml.safe_load(maps["tables-spark-executor"]["data"]["executor.yaml"]) if len(maps) == 2 else None


def pods(name: str) -> list[Any]:
    made = [one["spec"]["template"] for one in of_kind(name, "Deployment").values()]
    return [*made, *filter(None, [executor(name)])]


def containers(pod: Any) -> list[Any]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def settings_of(arguments: list[str]) -> dict[str, str]:
    return dict(one.removeprefix("--conf=").split("=", 1) for one in arguments if one.startswith("--conf="))


def selects(selector: dict[str, str], pod: Any) -> bool:
    return bool(selector.items() <= pod["metadata"]["labels"].items())


@pytest.fixture(params=[*VALUES])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_helm_finds_nothing_to_say_against_the_chart(name: str) -> None:
    report = helm_python.chart.lint(CHART, VALUES[name], strict=True)
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize("version", ["1.29", "1.34"])
def test_the_documents_conform_to_the_schemas_of_kubernetes(name: str, version: str) -> None:
    for document in rendered(name):
        kubernetes_validate.validate(document, version, strict=True)
    assert not of_kind(name, "Secret")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"spark": {"enabled": False}}, "virtualClusters.BATCH: spark.enabled is false"),
        ({"settings": {"catalog_url": "postgresql://u:p@host/db"}}, "catalog_url"),
        ({"settings": {"warehouse_options": {"AWS_SECRET_ACCESS_KEY": "x"}}}, "AWS_SECRET_ACCESS_KEY"),
        ({"settings": {"http_port": 0}}, "http_port"),
        ({"virtualClusters": {"a b": {}}}, "a b"),
        ({"warehous": {}}, "warehous"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm_python.HelmError, match=said):
        documents(values)


@pytest.mark.parametrize("release", ["a.b", "a" * 50])
def test_a_release_after_which_no_service_can_be_named_is_refused(release: str) -> None:
    with pytest.raises(helm_python.HelmError, match="at most 49 characters, without dots"):
        documents({}, release)
    documents({"spark": {"enabled": False}, "virtualClusters": {"BATCH": None}}, release)


@pytest.mark.parametrize("release", ["a", "a" * 49])
def test_services_have_names_that_kubernetes_accepts(release: str) -> None:
    names = [one["metadata"]["name"] for one in documents({}, release) if one["kind"] == "Service"]
    assert len(names) == 2
    assert all(len(name) <= 63 for name in names)


def test_a_namespace_with_a_quota_accepts_the_pods_of_daemons_and_server() -> None:
    for pod in pods("default")[:-1]:  # Spark gives the executor's its own
        for container in containers(pod):
            assert set(container["resources"]["requests"]) == {"cpu", "memory"}
            assert set(container["resources"]["limits"]) == {"memory"}


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == PROJECT["version"]
    images = {container["image"] for pod in pods("default")[:-1] for container in containers(pod)}
    assert images == {f"volstream:{PROJECT['version']}"}


def test_a_daemon_has_time_to_shut_down_and_runs_alone(name: str) -> None:
    for daemon in daemons(name):
        pod = daemon["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] >= SHUTDOWN_SECONDS + ENGINE_SECONDS
        assert daemon["spec"]["strategy"]["type"] == "Recreate"
        assert daemon["spec"]["replicas"] == 1
        (container,) = pod["containers"]
        for probe, path in (("startupProbe", "healthz"), ("livenessProbe", "healthz"), ("readinessProbe", "readyz")):
            assert container[probe]["exec"]["command"] == ["python", "-m", "volstream.server.probe", path]


def test_no_pod_runs_as_root_or_has_more_than_it_needs(name: str) -> None:
    for pod in pods(name):
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert pod["spec"]["securityContext"]["runAsUser"] == 10001
        assert pod["spec"]["enableServiceLinks"] is False
        for container in containers(pod):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        token = of_kind(name, "ServiceAccount")[pod["spec"]["serviceAccountName"]].get("automountServiceAccountToken")
        assert token is (None if pod["metadata"]["labels"][COMPONENT] == "spark-connect" else False)


def test_each_virtual_cluster_has_one_daemon_with_valid_settings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {
        "default": {"BATCH": "sc://tables-spark-connect:15002", "DEFAULT": ""},
        "s3": {"BATCH": "sc://tables-spark-connect:15002", "DEFAULT": ""},
        "elsewhere": {"BATCH": "sc://spark.example.com:443/;use_ssl=true", "BIG_GPU": "", "DEFAULT": ""},
        "folders": {"BATCH": "sc://tables-spark-connect:15002"},
    }
    found = {}
    for daemon in daemons(name):
        (container,) = daemon["spec"]["template"]["spec"]["containers"]
        (mount,) = (one for one in container["volumeMounts"] if one["name"] == "settings")
        home = tmp_path / mount["subPath"]
        home.mkdir()
        (home / "volstream.toml").write_text(of_kind(name, "ConfigMap")["tables"]["data"][mount["subPath"]])
        for variable in container["env"]:
            monkeypatch.setenv(variable["name"], variable["value"])
        settings = config.load(home)
        assert settings.shutdown_seconds == SHUTDOWN_SECONDS
        assert settings.warehouse == VALUES[name].get("warehouse", {}).get("location", "/warehouse")
        assert settings.cores == (4 if "big-gpu" in mount["subPath"] else 0)
        found[container["args"][container["args"].index("--virtual-cluster") + 1]] = settings.spark_remote
    assert found == expected[name]
    if (service := of_kind(name, "Service").get("tables-spark-connect")) is not None:
        assert service["spec"]["ports"][0]["port"] == 15002


def test_probes_and_prometheus_reach_a_daemon_with_another_port_and_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (daemon, _) = daemons("s3")
    template = daemon["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 9000}]
    scraped = {key.removeprefix("prometheus.io/"): value for key, value in template["metadata"]["annotations"].items()}
    assert (scraped["scrape"], scraped["scheme"], scraped["port"]) == ("true", "https", "9000")
    (port,) = free_ports(1)
    files = certificate(tmp_path)
    text = next(iter(of_kind("s3", "ConfigMap")["tables"]["data"].values()))
    for old, new in (
        ("9000", str(port)),
        ("/etc/volstream/tls/tls.crt", str(files[0])),
        ("/etc/volstream/tls/tls.key", str(files[1])),
    ):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "volstream.toml").write_text(text.replace("0.0.0.0", "127.0.0.1"))
    settings = config.load(tmp_path)
    assert settings.http_port == port
    monkeypatch.setenv("VOLSTREAM_HOME", str(tmp_path))
    well = [True, False]
    console = probes(lambda: (well[0], {}), lambda: (well[1], {"why": "no volume"}), CollectorRegistry())
    server = HttpServer(console, port, tls=certificate_of(settings, "console", settings.console_address))
    server.start()
    try:
        asking.main("healthz")
        with pytest.raises(SystemExit, match="no volume"):
            asking.main("readyz")
    finally:
        server.stop()
    with pytest.raises(SystemExit, match=f"https://127.0.0.1:{port}"):
        asking.main("healthz")


def test_the_chart_refers_only_to_what_exists(name: str) -> None:
    secrets = {VALUES[name].get("secret", "volstream"), "keys"}
    claims = {*of_kind(name, "PersistentVolumeClaim"), VALUES[name].get("warehouse", {}).get("existingClaim")}
    for pod in pods(name):
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        for container in containers(pod):
            for mount in container["volumeMounts"]:
                volume = volumes[mount["name"]]
                if "configMap" in volume:
                    data = of_kind(name, "ConfigMap")[volume["configMap"]["name"]]["data"]
                    assert mount.get("subPath", "executor.yaml") in data
                if "persistentVolumeClaim" in volume:
                    assert volume["persistentVolumeClaim"]["claimName"] in claims
            assert {one["secretRef"]["name"] for one in container.get("envFrom", [])} <= secrets
    assert bool(of_kind(name, "PersistentVolumeClaim")) == (name in ("default", "folders"))
    for service in of_kind(name, "Service").values():
        (pod,) = (pod for pod in pods(name) if selects(service["spec"]["selector"], pod))
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


def test_daemons_server_and_executors_see_the_same_folders(name: str) -> None:
    shared = [
        {
            mount["mountPath"]: next(volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"])
            for mount in containers(pod)[-1]["volumeMounts"]
            if mount["name"] in ("warehouse", "scans")
        }
        for pod in pods(name)
    ]
    assert all(one == shared[0] for one in shared)
    assert [*shared[0]] == {"s3": [], "folders": ["/warehouse", "/scans"]}.get(name, ["/warehouse"])


def test_only_daemons_reach_the_connect_server_and_only_executors_the_driver() -> None:
    policies = of_kind("default", "NetworkPolicy").values()
    assert all(policy["spec"]["policyTypes"] == ["Ingress"] for policy in policies)
    reached = set()
    for pod in pods("default"):
        (own,) = [one for one in policies if selects(one["spec"]["podSelector"]["matchLabels"], pod)] or [None]
        if own is None:
            continue
        for rule in own["spec"]["ingress"]:
            for source in rule["from"]:
                froms = {
                    one["metadata"]["labels"][COMPONENT]
                    for one in pods("default")
                    if selects(source["podSelector"]["matchLabels"], one)
                }
                assert source["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "tables"
                for port in rule.get("ports", [{"port": "all"}]):
                    reached |= {(one, pod["metadata"]["labels"][COMPONENT], port["port"]) for one in froms}
    assert reached == {
        ("daemon", "spark-connect", "connect"),
        ("spark-executor", "spark-connect", "driver"),
        ("spark-executor", "spark-connect", "blocks"),
        ("spark-executor", "spark-executor", "all"),
        ("spark-connect", "spark-executor", "all"),
    }


def test_the_server_may_do_what_spark_asked_of_a_real_api_server_and_nothing_more() -> None:
    (rule,) = of_kind("default", "Role")["tables-spark"]["rules"]
    assert rule == {"apiGroups": [""], "resources": ["pods"], "verbs": rule["verbs"]}
    assert sorted(rule["verbs"]) == sorted(ASKED)
    assert [*of_kind("default", "RoleBinding")] == ["tables-spark"]


def test_the_image_has_what_executors_run() -> None:
    (container,) = executor("default")["spec"]["containers"]
    assert (
        f"COPY deploy/docker/executor.py {container['command'][-1]}\n" in (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    )


def test_the_connect_server_has_the_settings_of_the_one_in_the_compose_file() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.spark.yml").read_text())
    there = compose["services"]["spark-connect"]
    (here,) = of_kind("default", "Deployment")["tables-spark-connect"]["spec"]["template"]["spec"]["containers"]
    assert here["command"] == there["entrypoint"]
    assert [here["args"][at] for at in (1, -1)] == [there["command"][at] for at in (1, -1)]
    ours, theirs = settings_of(here["args"]), settings_of(there["command"])
    assert set(theirs) <= set(ours)
    different = {key for key, value in theirs.items() if ours[key] != value}
    assert different == {"spark.driver.host"}
    ports = {port["name"]: str(port["containerPort"]) for port in here["ports"]}
    assert ports["connect"] == ours["spark.connect.grpc.binding.port"]
    assert ports["driver"] == ours["spark.driver.port"]
    assert ports["blocks"] == ours["spark.driver.blockManager.port"]
    assert of_kind("default", "Service")[ours["spark.driver.host"]]["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"AWS_REGION": "eu-west-1"},
        {"AWS_ENDPOINT_URL": "http://store:9000", "AWS_ALLOW_HTTP": "true"},
        {"AWS_ENDPOINT_URL": "https://store", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"},
    ],
)
def test_the_connect_server_reads_a_warehouse_in_s3_as_an_engine_of_volstream_does(
    options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(variable, raising=False)
    warehouse = "s3://bucket/prefix"
    made = documents({"warehouse": {"location": warehouse}, "settings": {"warehouse_options": options}})
    (server,) = (one for one in made if one["kind"] == "Deployment" and "spark" in one["metadata"]["name"])
    (container,) = server["spec"]["template"]["spec"]["containers"]
    found = {key: value for key, value in settings_of(container["args"]).items() if key.startswith("spark.hadoop.")}
    assert found == install.store_properties(config.load(tmp_path, warehouse=warehouse, warehouse_options=options))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_commands_run_with_executors_that_spark_makes(tmp_path: Path) -> None:
    driver, blocks, port, http = free_ports(4)
    for folder in ("home", "etc", "cache/jars", "warehouse"):
        (tmp_path / folder).mkdir(parents=True)
    for jar in install.cached_jars(config.cache_directory()):
        shutil.copy(jar, tmp_path / "cache" / "jars")
    host = Host(
        tmp_path,
        {
            "/opt/volstream/executor.py": str(ROOT / "deploy" / "docker" / "executor.py"),
            "/opt/volstream/cache": str(tmp_path / "cache"),
            "/usr/local/lib/python3.11/site-packages/volstream": str(ROOT / "volstream"),
            "/var/lib/volstream": str(tmp_path / "home"),
            "/etc/volstream": str(tmp_path / "etc"),
            "/warehouse": str(tmp_path / "warehouse"),
        },
    )
    small = {"instances": 1, "cores": 1, "memory": "512m", "memoryOverhead": "256m"}
    values = {"spark": {"driver": {"memory": "1g"}, "executor": small}}
    made = {(one["kind"], one["metadata"]["name"]): one for one in documents(values)}
    pod = made["ConfigMap", "tables-spark-executor"]["data"]["executor.yaml"]
    (tmp_path / "etc" / "executor.yaml").write_text(pod)
    text = made["ConfigMap", "tables"]["data"]["batch.toml"]
    (tmp_path / "home" / "volstream.toml").write_text(text.replace("tables-spark-connect:15002", f"127.0.0.1:{port}"))
    server, daemon = (made["Deployment", name]["spec"]["template"] for name in ("tables-spark-connect", "tables-batch"))
    api = Api(host, "data")
    own = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "connect"}}
    api.add("pods", {**own, "status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    try:
        (container,) = server["spec"]["containers"]
        changed = {
            "k8s://https://kubernetes.default.svc": f"k8s://{api.address}",
            "=tables-spark-driver": "=127.0.0.1",
            "=0.0.0.0": "=127.0.0.1",
            "=7078": f"={driver}",
            "=7079": f"={blocks}",
            "=15002": f"={port}",
        }
        arguments = container["args"]
        for old, new in changed.items():
            arguments = [part.replace(old, new) for part in arguments]
        host.run("connect", container, arguments)
        settings = {"VOLSTREAM_HTTP_PORT": str(http)}
        (init,), (container,) = daemon["spec"]["initContainers"], daemon["spec"]["containers"]
        host.run("init", init, init["args"], **settings)
        assert host.processes["init"].wait(60) == 0, host.log("init")
        eventually(lambda: "Spark Connect server started" in host.log("connect"), 120)
        host.run("daemon", container, container["args"], **settings)
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asks = [part.replace("python", sys.executable) for part in container[probe]["exec"]["command"]]
            environment = {**os.environ, **settings, "VOLSTREAM_HOME": str(tmp_path / "home")}
            eventually(lambda: subprocess.run(asks, check=False, capture_output=True, env=environment).returncode == 0, 60)  # noqa: B023
        host.run("doctor", container, ["doctor", "--cluster", "--format", "json"], **settings)
        assert host.processes["doctor"].wait(120) == 0, host.log("doctor")
        checks = {one["what"]: one for one in json.loads(host.log("doctor"))}
        assert {checks[one]["state"] for one in ("server", "workers", "daemon")} == {"ok"}
        host.processes["daemon"].terminate()
        assert host.processes["daemon"].wait(60) == 0, host.log("daemon")
        del api.created["pods", "connect"]
        (pod,) = api.created.values()
        kubernetes_validate.validate({key: pod[key] for key in ("apiVersion", "kind", "metadata", "spec")}, "1.34")
        assert pod["spec"]["serviceAccountName"] == "tables"
        host.processes["connect"].terminate()
        host.processes["connect"].wait(60)
        assert not api.created
        (rule,) = made["Role", "tables-spark"]["rules"]
        assert api.asked <= {(verb, resource) for verb in rule["verbs"] for resource in rule["resources"]}
    finally:
        host.stop()
        api.stop()
