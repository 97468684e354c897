"""Settings: where they come from, and those of a virtual cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from volstream import config
from volstream.errors import InvalidValueError


def home(tmp_path: Path, toml: str) -> Path:
    (tmp_path / "volstream.toml").write_text(toml)
    return tmp_path


CLUSTERS = """
cores = 2
spark_conf = {"spark.a" = "1", "spark.b" = "1"}
[virtual_clusters.GPU]
spark_remote = "sc://gpu:15002"
max_parallel_jobs = 9
[virtual_clusters.big]
spark_master = "local[8]"
driver_memory = "8GiB"
spark_conf = {"spark.b" = "2"}
"""


def test_a_daemon_runs_on_what_its_virtual_cluster_says_and_on_the_home_s_else(tmp_path: Path) -> None:
    settings = config.load(home(tmp_path, CLUSTERS))
    gpu, big = settings.for_cluster("gpu"), settings.for_cluster("BIG")
    assert (gpu.spark_remote, gpu.max_parallel_jobs, gpu.cores, dict(gpu.spark_conf)) == (
        "sc://gpu:15002", 9, 2, {"spark.a": "1", "spark.b": "1"},
    )  # fmt: skip
    assert (big.spark_remote, big.driver_memory, dict(big.spark_conf)) == (
        "", 8 << 30, {"spark.a": "1", "spark.b": "2", "spark.master": "local[8]"},
    )  # fmt: skip
    assert settings.for_cluster("DEFAULT") is settings


@pytest.mark.parametrize(
    "toml", ["[virtual_clusters.x]\nsparc_master = 'y'", "[virtual_clusters.x]\ncores = -1", "virtual_clusters = 3"]
)
def test_what_is_no_setting_of_a_virtual_cluster_is_refused(tmp_path: Path, toml: str) -> None:
    with pytest.raises(InvalidValueError, match="virtual_clusters"):
        config.load(home(tmp_path, toml))
