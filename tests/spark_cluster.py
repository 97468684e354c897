"""A cluster of Spark on this host, as others start one: a master, two workers with one core each, and a Connect server.

The processes run as another Unix user if this one is root; both users are in one group. The workers' Python has what PySpark
itself needs there, and no volstream.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from json import loads
from pathlib import Path
from typing import Any

import psutil
import pyspark
import yaml

from tests.ports import free_ports
from tests.waiting import eventually
from volstream.base import config
from volstream.spark.jvm import install

#: Hadoop rejects a user without a name, so the tests run Spark as ``nobody``, and volstream as another user of the same group.
_SPARK, _OURS, _GROUP = 65_534, 54_321, 54_322

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"

#: The Connect server of deploy/docker, with what docs/operations/cluster.md asks of one.
_SERVER = yaml.safe_load((Path(__file__).parents[1] / "deploy" / "docker" / "compose.spark.yml").read_text())["services"][
    "spark-connect"
]
_SETTINGS = dict(part.removeprefix("--conf=").split("=", 1) for part in _SERVER["command"] if part.startswith("--conf="))


#: What PySpark needs of its workers' Python: pandas and pyarrow, with what these need.
_OF_WORKERS = ("numpy", "numpy.libs", "pandas", "pandas.libs", "pyarrow", "dateutil", "pytz", "six.py", "tzdata")


def python_of_another_user() -> str | None:
    """The Python with which volstream can run as another user; None: it cannot."""
    if os.geteuid() != 0:
        return None
    for python in (sys.executable, shutil.which(f"python{sys.version_info[0]}.{sys.version_info[1]}", path="/usr/bin")):
        probe = [*_as(_OURS), "env", str(python), "-c", "import volstream.api.session, pyspark"]
        if python and subprocess.run(probe, capture_output=True, check=False, env=_paths()).returncode == 0:
            return python
    return None


def _paths() -> dict[str, str]:
    """Where volstream's Python finds packages, although it may be another one than this."""
    return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), str(Path(pyspark.__file__).parents[1])])}


def _as(user: int) -> Sequence[str]:
    return [
        "setpriv",
        f"--reuid={user}",
        f"--regid={_GROUP}",
        "--clear-groups",
        "--inh-caps=-all",
        "--ambient-caps=-all",
        "--bounding-set=-all",
        "--",
    ]


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": str(folder),
        "JAVA_HOME": str(install.find_java().executable.parents[1]),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
    }


@dataclass
class Cluster:
    """The cluster's processes, by name: ``master``, ``worker-0``, ``worker-1``, ``connect``."""

    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    python: str | None = field(default_factory=python_of_another_user)

    def __post_init__(self) -> None:
        self.other = self.python is not None
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports = dict(zip(("master", "connect"), free_ports(2), strict=True))
        self.run = self.folder / "spark"
        self.shared, self.ours = self.folder / "warehouse", self.folder / "ours"
        for made, user in ((self.run, _SPARK), (self.shared, _OURS), (self.ours, _OURS)):
            made.mkdir()
            if self.other:
                os.chown(made, user, _GROUP)
                made.chmod(0o2770 if made == self.shared else 0o755)
        self.packages = self.run / "packages"
        self.packages.mkdir()
        for name in _OF_WORKERS:
            if (installed := Path(pyspark.__file__).parents[1] / name).exists():
                (self.packages / name).symlink_to(installed)
        self.jars = [shutil.copy(jar, self.run) for jar in (*install.cached_jars(config.cache_directory()), install.EXTENSION)]

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.ports['master']}"

    def start(self, *names: str) -> None:
        """Starts processes, or all, and waits until they listen."""
        for name in names or ("master", "worker-0", "worker-1", "connect"):
            port = self.ports.get(name)
            if name == "master":
                self._begin(name, [_MASTER, "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"])
            elif name == "connect":
                self._begin(name, self._submit())
            else:
                options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
                self._begin(name, [_WORKER, *options, "--work-dir", str(self.run / name), self.master])
            if port is not None:
                eventually(lambda: _listens(port), timeout=60)  # noqa: B023  # awaited here

    def volstream(self, *arguments: str, json: bool = False, fails: int = 0, **settings: str) -> Any:
        """Runs a command as volstream's user, which must end with the status ``fails``; returns what it prints, or the JSON."""
        with self.begun(*arguments, *(("--format", "json") if json else ()), **settings) as process:
            printed, said = process.communicate(timeout=240)
        assert process.returncode == fails, f"{said}\n{printed}"
        return loads(printed) if json else printed

    def begun(self, *arguments: str, **settings: str) -> subprocess.Popen[str]:
        """Starts a command as volstream's user."""
        python = self.python or sys.executable
        environment = _environment(self.ours) | {
            **_paths(),
            "VOLSTREAM_HOME": str(self.ours / "home"),
            "VOLSTREAM_SPARK_REMOTE": f"sc://127.0.0.1:{self.ports['connect']}",
            "VOLSTREAM_WAREHOUSE": str(self.shared),
            "VOLSTREAM_SETTLE_SECONDS": "0.05",
        }
        environment |= {f"VOLSTREAM_{name.upper()}": value for name, value in settings.items()}
        return subprocess.Popen(
            [*([*_as(_OURS), "env"] if self.other else ()), python, "-m", "volstream", *arguments],
            env=environment,
            cwd=self.ours,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            umask=0o022,
        )

    def hide(self, folder: Path) -> None:
        """Makes a folder volstream's user's alone."""
        if self.other:
            os.chown(folder, _OURS, _GROUP)
        folder.chmod(0o700)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_executor(self) -> None:
        """Kills the JVM of one executor."""
        for worker in ("worker-0", "worker-1"):
            if worker in self.processes:
                for child in psutil.Process(self.processes[worker].pid).children(recursive=True):
                    if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                        child.kill()
                        return
        raise AssertionError("there is no executor")

    def stop(self) -> None:
        for name in [*self.processes]:
            self.kill(name)
        shutil.rmtree(self.run, ignore_errors=True)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def _submit(self) -> list[str]:
        class_path = os.pathsep.join(map(str, self.jars))
        values = {
            **_SETTINGS,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.driver.extraClassPath": class_path,
            "spark.executor.extraClassPath": class_path,
            "spark.executor.memory": "512m",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.ports["connect"]),
            "spark.sql.warehouse.dir": str(self.shared / "tables"),
            "spark.local.dir": str(self.run),
            **self.settings,
        }
        given = [part for key, value in values.items() for part in ("--conf", f"{key}={value}")]
        return ["org.apache.spark.deploy.SparkSubmit", "--master", self.master, *given, "--class", _CONNECT, "spark-internal"]

    def _begin(self, name: str, arguments: Sequence[str]) -> None:
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*(_as(_SPARK) if self.other else ()), "bash", str(spark_class), *arguments],
                env=_environment(self.run)
                | {
                    "PYSPARK_PYTHON": str(Path(self.python or sys.executable).resolve()),  # no virtual environment
                    "PYTHONPATH": str(self.packages),
                    # A master that starts again then knows its applications.
                    "SPARK_MASTER_OPTS": (
                        f"-Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self.run}/master"
                    ),
                },
                cwd=self.run,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=0o007,
            )


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
