"""Daemon and Spark apart, as different Unix users: a cluster made as docs/operations/cluster.md says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.environments import wheel
from tests.folders import FileWriter
from tests.ports import free_ports
from tests.spark_cluster import Cluster
from tests.waiting import eventually

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

ROWS = "def f(file):\n    return [{'n': number, 't': 'x' * 50} for number in range(int(file.read_text()))]\n"
CLASHING = "import clasher\ndef f(file):\n    return {'text': f'{file.read_text()} by {clasher.VERSION}'}\n"
FATAL = "import os\ndef f(file):\n    number = int(file.read_text())\n    return os._exit(3) if number == 2 else {'n': number}\n"
SLOW = "import time\ndef f(file):\n    time.sleep(0.2)\n    return {'n': int(file.read_text())}\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with TemporaryDirectory(prefix="volstream-cluster-") as name:  # pytest's own are closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        made = Cluster(folder)
        try:
            made.start()
            yield made
        finally:
            made.stop()


def job(cluster: Cluster, name: str, code: str, returns: str, numbers: Sequence[int], *more: str) -> None:
    """A volume with a file for each number, and a job on it."""
    folder = cluster.ours / name
    folder.mkdir()
    files = FileWriter(folder)
    for number in numbers:
        files.put(f"{number:04}", str(number))
    (cluster.ours / f"{name}.py").write_text(code)
    cluster.volstream("create-volume", name, str(folder), "--queue-type", "none")
    function = f"{cluster.ours}/{name}.py:f"
    options = ("--function", function, "--into", f"of_{name}", "--returns", returns, *more)
    cluster.volstream("create-job", name, "--volume", name, *options)


def summary(cluster: Cluster, name: str) -> dict[str, int]:
    query = f"SELECT count(*) AS n, count(DISTINCT _file_path) AS files, sum(n) AS total FROM of_{name}"
    [row] = cluster.volstream("sql", query, json=True)
    return dict(row)


def begun(cluster: Cluster, job: str) -> bool:
    return any(batch["state"] == "intent" for batch in cluster.volstream("list", "batches", "--job", job, json=True))


def test_a_job_writes_few_and_many_rows(cluster: Cluster) -> None:
    job(cluster, "rows", ROWS, "n INT, t STRING", [number * 1000 for number in range(30)])
    cluster.volstream("run-job", "rows")
    total = sum(n * (n - 1) // 2 for n in range(0, 30_000, 1000))
    assert summary(cluster, "rows") == {"n": 435_000, "files": 29, "total": total}
    assert [*(cluster.shared / "_staging").iterdir()] == []


def test_the_doctor_asks_the_server_and_its_workers(cluster: Cluster) -> None:
    asked = checks(cluster)
    assert {check["state"] for check in asked if check["what"] in ("server", "settings", "workers")} == {"ok"}
    assert any("as user nobody with Python 3." in check["said"] for check in asked)


def test_the_doctor_says_that_the_server_is_down(cluster: Cluster) -> None:
    cluster.kill("connect")
    try:
        [server] = (check for check in checks(cluster, fails=4) if check["what"] == "server")
        assert (server["state"], "died or stopped answering" in server["said"]) == ("failed", True)
    finally:
        cluster.start("connect")


def test_a_volume_that_workers_cannot_read_is_told_by_the_doctor_and_stops_no_other_job(cluster: Cluster) -> None:
    job(cluster, "hidden", SLOW, "n INT", range(2))
    cluster.hide(cluster.ours / "hidden")
    try:
        assert any(
            "user nobody on" in check["said"] and "cannot read the volume" in check["said"] for check in checks(cluster, fails=4)
        )
        job(cluster, "seen", SLOW, "n INT", range(2))
        cluster.volstream("run-job", "seen")
    finally:
        (cluster.ours / "hidden").chmod(0o755)
    cluster.volstream("run-job", "hidden")
    assert summary(cluster, "hidden") == {"n": 2, "files": 2, "total": 1}


def checks(cluster: Cluster, fails: int = 0) -> list[dict[str, str]]:
    return list(cluster.volstream("doctor", "--cluster", json=True, fails=fails))


def test_workers_need_neither_volstream_nor_the_packages_of_a_function(cluster: Cluster) -> None:
    for number in "12":
        built = wheel(cluster.ours, f"{number}.0")
        requirements = cluster.ours / f"{number}.txt"
        requirements.write_text(f"./{built.name}\n")
        job(cluster, f"by_{number}", CLASHING, "text STRING", range(3), "--environment", str(requirements))
    for number in "12":
        cluster.volstream("run-job", f"by_{number}")
        rows = cluster.volstream("sql", f"SELECT text FROM of_by_{number} ORDER BY text", json=True)
        assert [row["text"] for row in rows] == [f"{name} by {number}.0" for name in range(3)]


def test_a_worker_has_the_cpus_that_its_job_asks_for(cluster: Cluster) -> None:
    job(cluster, "one", SLOW, "n INT", range(4), "--cpus", "1")
    cluster.volstream("run-job", "one")
    assert summary(cluster, "one") == {"n": 4, "files": 4, "total": 6}
    job(cluster, "two", SLOW, "n INT", range(4), "--cpus", "2")
    with cluster.begun("run-job", "two", executor_wait_seconds="5") as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 4, said
    assert "none large enough for the job" in said


def test_a_file_that_kills_its_worker_is_told_from_the_others(cluster: Cluster) -> None:
    job(cluster, "fatal", FATAL, "n INT", range(4))
    cluster.volstream("run-job", "fatal", fails=5)
    assert summary(cluster, "fatal") == {"n": 3, "files": 3, "total": 4}


@pytest.mark.parametrize("victim", ["executor", "connect", "worker-0", "master"])
def test_each_file_counts_once_after_a_process_was_killed(cluster: Cluster, victim: str) -> None:
    name = f"killed_{victim.replace('-', '_')}"
    job(cluster, name, SLOW, "n INT", range(100))
    with cluster.begun("run-job", name, engine_stall_seconds="10") as process:
        eventually(lambda: process.poll() is not None or begun(cluster, name), 60)
        if victim == "executor":
            cluster.kill_executor()
        else:
            cluster.kill(victim)
            cluster.start(victim)
        process.communicate(timeout=240)
    cluster.volstream("run-job", name)
    assert summary(cluster, name) == {"n": 100, "files": 100, "total": 4950}


def test_a_daemon_goes_on_after_the_server_was_started_anew(cluster: Cluster) -> None:
    job(cluster, "kept", SLOW, "n INT", range(3), "--on-change")
    cluster.volstream("run-job", "kept")
    with cluster.begun("daemon", http_port=str(free_ports(1)[0])) as daemon:
        try:
            for number in (3, 4):
                FileWriter(cluster.ours / "kept").put(f"{number:04}", str(number))
                cluster.volstream("refresh", "kept")
                eventually(lambda: summary(cluster, "kept")["n"] == number + 1, 120)  # noqa: B023  # awaited here
                if number == 3:
                    cluster.kill("connect")
                    cluster.start("connect")
        finally:
            daemon.terminate()
            daemon.communicate(timeout=60)


def test_a_cluster_without_executors_is_told_and_waited_for(cluster: Cluster) -> None:
    job(cluster, "none", SLOW, "n INT", range(5))
    for name in ("worker-0", "worker-1"):
        cluster.kill(name)
    with cluster.begun("run-job", "none", executor_wait_seconds="5") as process:
        _, said = process.communicate(timeout=120)
    assert process.returncode == 4, said
    assert "Spark has not run a task of this work for 5s" in said
    cluster.start("worker-0", "worker-1")
    cluster.volstream("run-job", "none")
    assert summary(cluster, "none") == {"n": 5, "files": 5, "total": 10}
