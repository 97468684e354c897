"""The engine's jars: Delta's five, the location of all jars, and their download by set-up. Runs no Spark.

Downloads are done by Apache Ivy, which is part of pyspark, with its default settings. Proxies etc. are configured as usual in
Java (``JAVA_TOOL_OPTIONS``), and every file must have the checksum given here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from volstream.errors import JavaError
from volstream.spark.jvm.java import Java

DELTA_VERSION = "4.4.0"


@dataclass(frozen=True)
class Jar:
    """A jar on Maven Central.

    Attributes:
        sha256: checksum that the file must have.
    """

    organisation: str
    artifact: str
    revision: str
    sha256: str

    @property
    def name(self) -> str:
        """The name of its file."""
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

#: volstream's own jar, part of the package: an extension of Spark whose functions call no Java methods and open no files, and
#: a log store of Delta whose commits replace none.
EXTENSION = Path(__file__).with_name("extension") / "volstream-extension.jar"
EXTENSION_CLASS = "volstream.NoReflection"

#: Ends an engine in which a cancelled task goes on.
LISTENER_CLASS = "volstream.StuckTasks"
LOG_STORE_CLASS = "volstream.ConditionalLogStore"

#: The schemes for which it is used.
LOG_STORE_SCHEMES = ("file", "s3", "s3a")

#: Time for some megabytes over a slow line; Ivy's own time-outs are per connection.
_FETCH_SECONDS = 600.0


def pyspark_directory() -> Path:
    """Returns the folder of the installed pyspark package, found without importing it."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JavaError("The package pyspark is not installed.", "Reinstall volstream.")
    return Path(spec.origin).parent


def installed(cache: Path, wanted: Sequence[Jar] = DELTA, set_up: str = SET_UP) -> list[Path]:
    """Returns jars from the cache, in order, after verifying their checksums: 15 MB take about 20 ms.

    Args:
        set_up: command that fetches them, for messages.

    Raises:
        JavaError: they have not been fetched yet, or have changed.
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


def resolve(cache: Path, java: Java, wanted: Sequence[Jar] = DELTA) -> bool:
    """Fetches jars that are missing from the cache or damaged; returns True if there were any.

    Safe to run concurrently: each jar is verified in a private folder and moved into place atomically.

    Raises:
        JavaError: the download failed (the message has Ivy's last lines), or returned a different file; or as :func:`prepare`.
    """
    missing = missing_jars(cache, wanted)
    if not missing:
        return False
    with tempfile.TemporaryDirectory(dir=prepare(cache), prefix=".fetch-") as scratch:
        fetched = _fetch(Path(scratch), java, missing)
        for jar in missing:
            new = fetched / jar.name
            if not _is_whole(new, jar):
                raise JavaError(
                    f"The download of {jar.name} is not the jar that volstream was built with.",
                    "Check the network: a proxy may have answered instead of the repository.",
                )
            os.replace(new, _path(cache, jar))
    return True


def prepare(cache: Path) -> Path:
    """Creates the cache, and returns its folder of jars. Raises JavaError if that is impossible."""
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


def _fetch(scratch: Path, java: Java, wanted: Sequence[Jar]) -> Path:
    """Makes Ivy download the jars into a folder below ``scratch``; returns the folder."""
    module = scratch / "ivy.xml"
    module.write_text(_ivy_module(wanted), encoding="utf-8")
    target = scratch / "jars"
    ivy = next((pyspark_directory() / "jars").glob("ivy-*.jar"))
    command = [
        str(java.executable),
        "-jar",
        str(ivy),
        "-ivy",
        str(module),
        "-cache",
        str(scratch / "ivy"),
        "-retrieve",
        f"{target}/[artifact]-[revision].[ext]",
    ]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False, cwd=scratch)
    except subprocess.TimeoutExpired:
        raise JavaError(f"The engine's jars were not downloaded within {_FETCH_SECONDS:.0f} s.", "Try again.") from None
    if run.returncode != 0:
        lines = [line.strip() for line in (run.stdout + run.stderr).splitlines() if line.strip()]
        if any("PKIX" in line for line in lines):
            raise JavaError(
                "The engine's jars could not be downloaded: Java does not trust the certificate that your network shows.",
                "Name a store that has it: JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=/etc/ssl/certs/java/cacerts",
            )
        raise JavaError(
            "The engine's jars could not be downloaded; Ivy says: " + " | ".join(lines[-12:]),
            "Check the network, or set the proxy in JAVA_TOOL_OPTIONS (-Dhttps.proxyHost=... -Dhttps.proxyPort=...).",
        )
    return target


def _ivy_module(wanted: Sequence[Jar]) -> str:
    """Returns a module that depends on exactly these jars, because their dependencies are part of pyspark."""
    dependencies = "\n".join(
        f'  <dependency org="{jar.organisation}" name="{jar.artifact}" rev="{jar.revision}" transitive="false" '
        'conf="default->master"/>'
        for jar in wanted
    )
    return (
        '<ivy-module version="2.0">\n <info organisation="volstream" module="engine"/>\n'
        ' <configurations><conf name="default"/></configurations>\n'
        f" <dependencies>\n{dependencies}\n </dependencies>\n</ivy-module>\n"
    )
