"""Prometheus, Debian's, with the configuration and the rules that ``deploy/prometheus`` gives."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.ports import free_ports
from tests.waiting import eventually

RULES = Path(__file__).parents[1] / "deploy" / "prometheus" / "rules.yml"

#: What stands for the times of the rules: the least that two scrapes need.
_HASTE = {r"for: \w+": "for: 1s", r"\[\w+\]": "[60s]", r"\b\d+ \* 3600\b": "2", r"\b3600\b": "2"}


@dataclass(frozen=True)
class Prometheus:
    """A running server."""

    port: int

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, expression: str, label: str) -> dict[str, float]:
        """The values of an expression now, by a label."""
        found = self.get("query", query=expression)["result"]
        return {one["metric"][label]: float(one["value"][1]) for one in found}

    def alerts(self) -> dict[str, list[str]]:
        """The summaries of the alerts that fire, by the rules' names."""
        firing: dict[str, list[str]] = {}
        for one in self.get("alerts")["alerts"]:
            if one["state"] == "firing":
                firing.setdefault(one["labels"]["alertname"], []).append(one["annotations"]["summary"])
        return firing


@contextmanager
def watching(folder: Path, *ports: int) -> Iterator[Prometheus]:
    """Prometheus that scrapes daemons on ports of this machine, with hours shortened to seconds; skips where it is not installed,
    but not in CI."""
    if shutil.which("prometheus") is None:
        reason = "Prometheus is not installed (Debian: apt-get install prometheus)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    text = RULES.read_text()
    sample = yaml.safe_load(RULES.with_name("prometheus.yml").read_text())
    sample["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    sample["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{port}" for port in ports]
    for long, short in _HASTE.items():
        text = re.sub(long, short, text)
    (folder / "rules.yml").write_text(text)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(sample))
    (port,) = free_ports(1)
    arguments = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", "--log.level=warn"]
    process = subprocess.Popen(["prometheus", *arguments, f"--web.listen-address=127.0.0.1:{port}"], cwd=folder)
    try:
        eventually(lambda: _is_ready(port), timeout=30)
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=10):
            return True
    except OSError:
        return False
