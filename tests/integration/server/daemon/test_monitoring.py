"""The alerts and the dashboard under ``deploy/`` are about metrics and labels that a daemon has, and commands that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import yaml
from prometheus_client.metrics_core import CounterMetricFamily

from volstream.api.session import Session
from volstream.base.config import Settings
from volstream.base.threads import Stop
from volstream.cli.main import GROUPS, volstream
from volstream.server.daemon.alerts import AlertService
from volstream.server.daemon.arrivals import SourceWorkers
from volstream.server.daemon.ingest import IngestServer
from volstream.server.daemon.metrics import DaemonMetrics

DEPLOY = Path(__file__).parents[4] / "deploy"


def alerts() -> list[Any]:
    document = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def panels() -> list[Any]:
    return list(json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())["panels"])


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in alerts())
    yield from (target["expr"] for panel in panels() for target in panel["targets"])


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, set[str]]:
    """The labels of each metric of a daemon, by its name in Prometheus."""
    settings = Settings(home=tmp_path_factory.mktemp("home"), ingest_address="127.0.0.1:0")
    with Session(settings) as session:
        home = session.home
        scheduler: Any = SimpleNamespace(unrecorded={}, runs={})
        engine: Any = SimpleNamespace(is_up=True, failures=0)
        others = [SourceWorkers(home, Stop()), IngestServer(session), AlertService(home, dict, lambda kind, name: "")]
        found = DaemonMetrics(home.catalog, home.reader, list, scheduler, engine, others).collect()
        return {
            f"{one.name}_total" if isinstance(one, CounterMetricFamily) else one.name: set(one._labelnames)  # type: ignore[attr-defined]  # of families
            for one in found
        }


def test_every_expression_names_metrics_that_there_are(metrics: Mapping[str, set[str]]) -> None:
    named = {name for text in expressions() for name in re.findall(r"volstream_\w+", text)}
    assert named - metrics.keys() == set()
    page = (DEPLOY.parent / "docs" / "reference" / "metrics.md").read_text()
    assert {name for name in named if f"`{name}`" not in page} == set()


def test_labels_of_alerts_and_panels_are_those_of_their_metrics(metrics: Mapping[str, set[str]]) -> None:
    texts = [(rule["expr"], json.dumps(rule["annotations"])) for rule in alerts()]
    texts += [(target["expr"], target["legendFormat"]) for panel in panels() for target in panel["targets"]]
    for expression, shown in texts:
        labels = set.union(set(), *(metrics[name] for name in re.findall(r"volstream_\w+", expression)))
        used = re.findall(r"\$labels\.(\w+)|\{\{(\w+)\}\}", shown)
        grouped = {name for names in re.findall(r"by \(([\w, ]+)\)", expression) for name in names.split(", ")}
        assert {one or other for one, other in used} <= (grouped or labels | {"instance"}), expression
        assert {*grouped, *re.findall(r"\{(\w+)=", expression.replace("up{job", ""))} <= labels, expression


def test_what_to_do_is_a_command_that_there_is() -> None:
    context = click.Context(volstream)
    told = [text for rule in alerts() for text in re.findall(r"volstream ([\w-]+)", rule["annotations"]["do"])]
    assert len(told) >= len(alerts()) - 1
    for name in told:
        assert any(name in names for names in GROUPS.values()), name
        assert volstream.get_command(context, name) is not None
