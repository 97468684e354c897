"""The files under ``deploy/``: each checked by the linter of its format, if there is one, and against the
code it refers to.

The chart has tests of its own.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from volstream.base.config import Settings
from volstream.base.definitions import Connection, ConnectionType
from volstream.base.model.names import Name
from volstream.files.providers.alibaba import events as oss_events
from volstream.files.providers.base import RequiredAccess, provider_by

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"

#: The engine ends after the work in hand did.
ENGINE_SECONDS = 30

SHUTDOWN_SECONDS = Settings.model_fields["shutdown_seconds"].default
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def documents(path: Path) -> Iterator[Any]:
    yield from yaml.safe_load_all(path.read_text())


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)s?", text)
    assert match is not None
    return float(match[1])


@pytest.mark.long
def test_the_cloudformation_template_passes_its_linter() -> None:
    import cfnlint.api  # takes a second, which every process of a test run would pay

    found = cfnlint.api.lint_all((DEPLOY / "aws" / "volstream.yaml").read_text())
    assert [one for one in found if one.rule.id[0] in "EW"] == []  # the rest informs


@pytest.mark.parametrize("provider", ["s3", "oss"])
def test_the_roles_in_the_templates_grant_what_the_policies_of_the_connection_say(provider: str) -> None:
    (template,) = documents(DEPLOY / "alicloud" / "volstream.yml") if provider == "oss" else (cloudformation(),)
    role = template["Resources"]["Role"]["Properties"]
    connection = Connection(
        type=ConnectionType(provider), id="1", name=Name.parse("c"), external_id="x", created_on=datetime.now(UTC)
    )
    asked = provider_by(provider)
    assert asked is not None
    policies = asked.policies(connection, [RequiredAccess("b", "in/", "q")])
    assert _actions(role["Policies"][0]["PolicyDocument"]) == _actions(policies["permission_policy"])
    (trust,) = policies["trust_policy"]["Statement"]
    (trusted,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trusted["Action"] == trust["Action"]
    assert [*trusted["Condition"]["StringEquals"]] == [*trust["Condition"]["StringEquals"]]


@pytest.mark.parametrize(
    ("folder", "scheme", "member", "more"),
    [
        ("gcp", "gs", "google_service_account.volstream.member", {"roles/iam.serviceAccountTokenCreator"}),
        ("azure", "az", "azurerm_user_assigned_identity.volstream.principal_id", set[str]()),
    ],
)
def test_the_roles_in_terraform_are_those_in_the_policies_of_the_connection(
    folder: str, scheme: str, member: str, more: set[str]
) -> None:
    text = (DEPLOY / folder / "volstream.tf").read_text()
    blocks = re.findall(r'^resource "\w+" "\w+" {\n(.*?)^}', text, re.M | re.S)
    given = {role for block in blocks if member in block for role in re.findall(r'"(roles/[\w.]+|Storage [\w ]+)"', block)}
    connection = Connection(
        type=ConnectionType(scheme), id="1", name=Name.parse("c"), external_id="x", created_on=datetime.now(UTC)
    )
    asked = provider_by(scheme)
    assert asked is not None
    needs = [RequiredAccess("bucket", "in/", "queue", writes=True)]
    (granted,) = asked.policies(connection, needs)["permission_policy"].values()
    assert given == {one["role"] for one in granted} | more


@pytest.mark.skipif(shutil.which("terraform") is None, reason="this machine has no terraform")
@pytest.mark.parametrize("folder", ["gcp", "azure"])
def test_terraform_can_read_the_files_and_finds_them_tidy(folder: str) -> None:
    environment = {**os.environ, "TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"}
    command = ["terraform", "fmt", "-check", "-diff", str(DEPLOY / folder)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def cloudformation() -> Any:
    """The template, its functions left as their arguments."""

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, tag, node: _plain(loader, node))
    return yaml.load((DEPLOY / "aws" / "volstream.yaml").read_text(), Loader)


def _plain(loader: Any, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return loader.construct_scalar(node)
    return loader.construct_sequence(node, deep=True)


def _actions(policy: Any) -> set[str]:
    actions = [statement["Action"] for statement in policy["Statement"]]
    return {action for one in actions for action in ([one] if isinstance(one, str) else one)}


def test_the_image_has_the_versions_of_pyproject_and_does_not_run_as_root() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    pinned = set(re.findall(r'"([a-z-]+(?:\[[a-z]+\])?==[^"]+)"', text))
    assert pinned == {one for one in PROJECT["dependencies"] if "==" in one}
    assert text.rindex("USER 10001") < text.index("RUN volstream setup --s3\n")
    assert '["python", "-m", "volstream.server.probe", "healthz"]' in text
    (extras,) = re.findall(r"whl\)\[([a-z0-9,]+)\]", text)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])


def test_the_compose_file_waits_for_the_daemon_and_contains_no_password() -> None:
    (compose,) = documents(DEPLOY / "docker" / "compose.yml")
    services = compose["services"]
    assert seconds(services["daemon"]["stop_grace_period"]) >= SHUTDOWN_SECONDS + ENGINE_SECONDS
    for service in services.values():
        given = service.get("environment", {})
        assert all(name.removeprefix("VOLSTREAM_").lower() in Settings.model_fields for name in given if name[:9] == "VOLSTREAM")
        assert {volume.split(":")[0] for volume in service["volumes"]} <= {*compose["volumes"], "../prometheus"}
    prometheus = services["prometheus"]
    assert (prometheus["network_mode"], prometheus["profiles"]) == ("service:daemon", ["metrics"])
    assert services["catalog"]["environment"]["POSTGRES_PASSWORD"].startswith("${POSTGRES_PASSWORD:?")
    build = services["init"]["build"]
    assert (DEPLOY / "docker" / build["context"]).resolve() == ROOT
    assert (ROOT / build["dockerfile"]).is_file()


@pytest.mark.parametrize("name", ["compose.yml", "compose.spark.yml"])
def test_no_service_takes_all_memory_or_fills_the_disk_with_its_log(name: str) -> None:
    (compose,) = documents(DEPLOY / "docker" / name)
    for service, one in compose["services"].items():
        if "image" in one or "build" in one:
            assert one["mem_limit"], service
            assert {"max-size", "max-file"} <= one["logging"]["options"].keys(), service


def test_the_compose_file_with_spark_reaches_its_own_server_and_publishes_no_port() -> None:
    (base,), (compose,) = (documents(DEPLOY / "docker" / name) for name in ("compose.yml", "compose.spark.yml"))
    services = compose["services"]
    assert not any("ports" in service for service in services.values())
    command = services["spark-connect"]["command"]
    address = services["daemon"]["environment"]["VOLSTREAM_SPARK_REMOTE"]
    assert address == services["init"]["environment"]["VOLSTREAM_SPARK_REMOTE"] == "sc://spark-connect:15002"
    assert "--conf=spark.connect.grpc.binding.port=15002" in command
    assert "--conf=spark.driver.host=spark-connect" in command
    volumes = {**base["volumes"], **compose["volumes"]}
    for name in ("spark-master", "spark-worker", "spark-connect"):
        assert {volume.split(":")[0] for volume in services[name]["volumes"]} <= set(volumes)
        assert services[name]["image"] == base["services"]["daemon"]["image"]
    wanted = re.findall(r"^- `(spark\.[\w.]+)=(\S+)`$", (ROOT / "docs" / "operations" / "cluster.md").read_text(), re.M)
    assert len(wanted) == 4
    assert {f"--conf={key}={value}" for key, value in wanted} <= set(command)


def test_the_systemd_unit_waits_for_the_daemon_and_keeps_what_it_writes_private() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # systemd's names have capitals
    unit.read(DEPLOY / "systemd" / "volstream@.service")
    service = unit["Service"]
    assert seconds(service["TimeoutStopSec"]) >= SHUTDOWN_SECONDS + ENGINE_SECONDS
    assert service["KillMode"] == "mixed"
    assert service["Restart"] == "always"
    assert service["UMask"] == "0077", "what it writes is private"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    # By another command: the one in the unit is not installed where this runs.
    text = (DEPLOY / "systemd" / "volstream@.service").read_text().replace("/opt/volstream/bin/volstream", "/bin/true")
    (tmp_path / "volstream@DEFAULT.service").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "volstream@DEFAULT.service")]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert "volstream" not in checked.stderr


def test_the_ros_template_refers_to_what_it_defines_and_subscribes_to_the_relevant_events() -> None:
    (template,) = documents(DEPLOY / "alicloud" / "volstream.yml")
    assert template["ROSTemplateFormatVersion"] == "2015-09-01"
    known = {*template["Parameters"], *template["Resources"]}
    for name in _references(template):
        assert name in known or name.startswith("ALIYUN::")
    command = template["Outputs"]["EventRuleCommand"]["Value"]["Fn::Sub"]
    events = re.findall(r'"(Object\w+:\w+)"', command)
    assert len(events) == len(set(events)) == 11
    assert not set(events) & oss_events._IGNORED
    queue = template["Resources"]["Queue"]["Properties"]
    assert queue["DlqPolicy"]["DeadLetterTargetQueue"] == template["Resources"]["DeadLetters"]["Properties"]["QueueName"]


def _references(node: Any) -> Iterator[str]:
    """Names in Ref, Fn::Sub and Fn::GetAtt."""
    if isinstance(node, list):
        for child in node:
            yield from _references(child)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key == "Ref":
                yield value
            elif key == "Fn::Sub":
                yield from re.findall(r"\$\{([\w:]+)\}", value)
            elif key == "Fn::GetAtt":
                yield value[0]
            else:
                yield from _references(value)
