"""Daemon and Spark apart, as different Unix users: a cluster made as docs/operations/cluster.md says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.folders import FileWriter
from tests.spark_cluster import Cluster

pytestmark = pytest.mark.timeout(300)

ROWS = "def f(file):\n    return [{'n': number, 't': 'x' * 50} for number in range(int(file.read_text()))]\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    for above in (folder, *folder.parents[:2]):
        above.chmod(0o755)
    made = Cluster(folder)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_job_writes_few_and_many_rows(cluster: Cluster) -> None:
    for name in ("files", "code"):
        (cluster.ours / name).mkdir()
    files = FileWriter(cluster.ours / "files")
    for number in range(30):
        files.put(f"{number}", str(number * 1000))
    (cluster.ours / "code" / "job.py").write_text(ROWS)
    cluster.volstream("create-volume", "v", str(cluster.ours / "files"), "--queue-type", "none")
    cluster.volstream(
        "create-job",
        "j",
        "--volume",
        "v",
        "--function",
        f"{cluster.ours}/code/job.py:f",
        "--into",
        "t",
        "--returns",
        "n INT, t STRING",
    )
    cluster.volstream("run-job", "j")
    [row] = cluster.volstream("sql", "SELECT count(*) AS n, count(DISTINCT _file_path) AS files FROM t", json=True)
    assert row == {"n": sum(range(30)) * 1000, "files": 29}
