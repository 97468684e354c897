"""Settings: read once at the edge, validated, frozen, passed down. The only module that looks at the environment.

Order, the first wins: what the caller passes (flags, ``Session`` configs), environment ``VOLSTREAM_*``, the file
``volstream.toml`` in the home, the defaults here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import platformdirs
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_serializer,
    field_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from volstream.errors import InvalidValueError
from volstream.model.files import is_utf8, printable
from volstream.model.units import MAX_BYTES, MAX_SECONDS, parse_duration, parse_size


def _seconds(value: object) -> object:
    return _parsed(parse_duration, value)


def _bytes(value: object) -> object:
    return _parsed(parse_size, value)


def _parsed(parse: Callable[[str], float], value: object) -> object:
    """``value`` read by ``parse`` where it is text; its error as the one that pydantic collects with the field's name."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except InvalidValueError as error:
        raise ValueError(str(error)) from None


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=MAX_SECONDS)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0, le=MAX_BYTES)]

#: Arrow's columns end at 2 GiB.
ResultBytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0, le=1 << 30)]

#: Held in memory by each worker.
LogBytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0, le=64 << 20)]

BytesOrNone = Annotated[
    Annotated[int, Field(gt=0, le=MAX_BYTES)] | None,
    BeforeValidator(lambda value: None if value == "none" else _bytes(value)),
]


def _store_option(name: object) -> object:
    if not isinstance(name, str) or not name.upper().startswith("AWS_"):
        raise ValueError(f"{name!r} is not a store option; they begin with AWS_, such as AWS_ENDPOINT_URL")
    return name.upper()


StoreOption = Annotated[str, BeforeValidator(_store_option)]


class VirtualCluster(BaseModel):
    """What a daemon of a virtual cluster runs on: what is given stands in the place of the home's own settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spark_remote: str | None = Field(default=None, repr=False)
    spark_master: str | None = None
    """Spark's master of the daemon's own engine, such as ``local[8]``, ``spark://host:7077`` or ``k8s://https://host``."""
    spark_conf: dict[str, str] = Field(default={}, repr=False)
    """More Spark settings, besides the home's."""
    cores: int | None = Field(default=None, ge=0)
    driver_memory: Bytes | None = None
    max_parallel_jobs: int | None = Field(default=None, gt=0)


#: What may be said by the environment of where an object store is, and by which variables.
_STORE_VARIABLES = {
    "AWS_ENDPOINT_URL": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "AWS_REGION": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "AWS_ALLOW_HTTP": ("AWS_ALLOW_HTTP",),
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST",),
}


class StaticKeys(BaseModel):
    """Keys of a storage connection that is made with ``--credentials static``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    access_key_id: str
    access_key_secret: SecretStr
    security_token: SecretStr | None = None


class Settings(BaseSettings):
    """All settings of a home. Durations are seconds (``30s`` and the like are read too), sizes bytes (``64MiB``).

    What may have a secret in it is not in its ``repr``.
    """

    model_config = SettingsConfigDict(env_prefix="VOLSTREAM_", frozen=True, extra="forbid", hide_input_in_errors=True)

    home: Path
    catalog_url: str = Field(default="", repr=False)
    """SQLAlchemy URL of the catalog; empty: SQLite in the home."""
    warehouse: str = ""
    """Directory of all Delta tables, or a place in an object store, ``s3://bucket/prefix``; empty: ``warehouse`` in the home."""
    warehouse_options: dict[StoreOption, SecretStr] = {}
    """What the warehouse's object store needs to be told, named as deltalake's ``storage_options``."""
    spark_remote: str = Field(default="", repr=False)
    """``sc://host:port`` of a Spark Connect server elsewhere; empty: the home's own engine."""

    driver_memory: Bytes = 2 << 30
    """Heap of the engine's JVM."""
    cores: int = Field(default=0, ge=0)
    """Task slots of the engine; 0: as many as the machine has cores."""
    jvm_options: str = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    """The engine's JVM flags. The default halves start-up and suits small tables; for heavy SQL set it empty."""
    spark_conf: dict[str, str] = Field(default={}, repr=False)
    """More Spark settings of the engine; they win over volstream's."""
    engine_idle_seconds: Seconds = 600.0
    """A background engine without clients ends after this time."""
    engine_start_seconds: Seconds = 120.0
    """How long a start of the engine may take."""
    engine_stall_seconds: Seconds = 60.0
    """An engine that answers no heartbeat for this long counts as lost."""

    virtual_clusters: dict[str, VirtualCluster] = {}
    """By name, in any case: what ``volstream daemon --virtual-cluster NAME`` runs on. One that is not here: on the home's."""

    credentials: dict[str, StaticKeys] = {}
    """Keys by the connection that uses them; they stay in this process."""

    lease_seconds: Seconds = 30.0
    """A lease that was not renewed for this long may be taken over by another host."""
    shutdown_seconds: Seconds = 30.0
    """How long the daemon finishes work in hand after SIGTERM."""

    http_port: int = Field(default=8642, ge=0, le=65535)
    """The daemon's HTTP port on 127.0.0.1; 0: any free one."""
    debounce_seconds: Seconds = 0.2
    """A local file must be quiet this long before it is looked at."""
    settle_seconds: Seconds = 1.0
    """A listing takes a file only if it was last modified at least this long ago, or did not change meanwhile."""
    poll_seconds: Seconds = 10.0
    """Period of full scans for volumes with queue type ``poll``."""
    queue_pollers: int = Field(default=1, ge=1, le=16)
    """Threads that ask the queue of a volume with queue type ``sqs`` or ``mns`` for messages."""
    reconcile_seconds: Seconds = 3600.0
    """Period of full listings while the daemon runs."""
    tick_keys: int = Field(default=20_000, gt=0)
    """Changed keys that are looked at and compared at once; all of a tick are one refresh."""
    directory_versions: int = Field(default=1000, ge=1)
    """Refreshes of a directory whose changes are kept beyond those that streams need."""
    on_change_gap_seconds: Seconds = 0.1
    """Least time between two runs of an on-change job."""
    max_parallel_jobs: int = Field(default=4, gt=0)
    """Jobs that the daemon runs at once."""
    time_zone: str = "UTC"
    """The zone in which cron lines are read."""

    batch_seconds: Seconds = 60.0
    """How long a batch should take: how large it is follows from what was measured.

    A commit takes seconds whatever the batch: where that is half of the time, larger batches look no faster, and stay away.
    """
    batch_max_files: int = Field(default=100_000, gt=0)
    """Most files of a batch, if the job sets no ``--max-files``."""
    batch_max_bytes: Bytes = 1 << 30
    """Most bytes of a batch, if the job sets no ``--max-bytes``."""
    function_memory: BytesOrNone = 4 << 30
    """What a job's function may take of memory, in each worker (Linux); ``none``: no limit."""
    fetch_ahead_bytes: Bytes = 64 << 20
    """Contents fetched from a remote store ahead of the function, in each worker."""
    result_row_bytes: ResultBytes = 64 << 20
    """The values of a row that a function gives; the file fails otherwise. The engine holds several copies of a row at once, in
    each of its slots."""
    result_file_bytes: ResultBytes = 512 << 20
    """The values of all rows that a function gives for a file; the file fails otherwise."""
    log_file_bytes: LogBytes = 16 << 10
    """What is kept of what a function prints in a call: its last lines."""
    log_batch_bytes: LogBytes = 1 << 20
    """What is kept of what is printed in a batch."""
    log_bytes: Bytes = 64 << 20
    """What is kept of what a job's function prints, in all; the newest."""
    retry_first_seconds: Seconds = 10.0
    """Delay before a failed file's first retry; doubles each time, with jitter."""
    retry_max_seconds: Seconds = 3600.0
    """The longest such delay."""
    history_seconds: Seconds = 90 * 86400.0
    """How long the catalog remembers what ended: refreshes, plans, batches and attempts; and what was printed is kept."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del dotenv_settings, file_secret_settings
        home = init_settings.init_kwargs["home"]  # type: ignore[attr-defined]  # pydantic types it as the base class
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, Path(home) / "volstream.toml")

    @field_validator("warehouse")
    @classmethod
    def _known(cls, warehouse: str) -> str:
        if "://" in warehouse and "@" in urlsplit(warehouse).netloc:
            raise ValueError("keys are not part of its URL; write them into warehouse_options")
        if warehouse.startswith("oss://"):
            raise ValueError(
                "deltalake knows no oss://; write s3://bucket/prefix, and in warehouse_options AWS_ENDPOINT_URL, the "
                "S3-compatible endpoint of OSS"
            )
        return warehouse

    def for_cluster(self, name: str) -> Settings:
        """The settings of a daemon of that virtual cluster."""
        profile = next((one for key, one in self.virtual_clusters.items() if key.upper() == name.upper()), None)
        if profile is None:
            return self
        given = profile.model_dump(exclude_none=True, exclude={"spark_master", "spark_conf"})
        master = {"spark.master": profile.spark_master} if profile.spark_master else {}
        return self.model_copy(update={**given, "spark_conf": {**self.spark_conf, **master, **profile.spark_conf}})

    def history_begins(self) -> datetime:
        """What ended before this moment need not be remembered any more."""
        return datetime.now(UTC) - timedelta(seconds=self.history_seconds)

    @property
    def slots(self) -> int:
        """Task slots of the home's own engine: ``cores``, or as many as this process may use, which in a container are fewer than
        the machine has."""
        if self.cores:
            return self.cores
        return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1

    @property
    def catalog_file(self) -> Path:
        """Where the catalog is that the home has without a ``catalog_url``."""
        return self.home / "catalog.db"

    @property
    def database_url(self) -> str:
        """The catalog's SQLAlchemy URL."""
        return self.catalog_url or f"sqlite:///{self.catalog_file}"

    @property
    def is_made(self) -> bool:
        """Whether there is a catalog; of a database elsewhere nobody is asked."""
        return bool(self.catalog_url) or self.catalog_file.exists()

    @property
    def warehouse_path(self) -> str:
        """The warehouse as a local path or URI, without a trailing slash."""
        return self.warehouse.rstrip("/") or str(self.home / "warehouse")

    @property
    def warehouse_storage(self) -> dict[str, str]:
        """What the warehouse's object store is told: ``warehouse_options``, and what the environment says of where it is.

        Keys are not among them but where they are set: who is not told any looks for them as AWS's own programs do.
        """
        if "://" not in self.warehouse_path:
            return {}
        known = {name: found for name, names in _STORE_VARIABLES.items() if (found := environment(*names)) is not None}
        return known | {name: value.get_secret_value() for name, value in self.warehouse_options.items()}

    @field_serializer("warehouse_options", when_used="json")
    def _reveal(self, options: dict[str, SecretStr]) -> dict[str, str]:
        """For the home's engine, which gets the settings through its standard input."""
        return {name: value.get_secret_value() for name, value in options.items()}

    @property
    def run_directory(self) -> Path:
        """Lock, address and token of the engine: what describes running processes."""
        return self.home / "run"

    @property
    def log_directory(self) -> Path:
        """Logs of the background engine and of the JVM."""
        return self.home / "log"


def load(home: str | os.PathLike[str] | None = None, **values: Any) -> Settings:
    """Reads the settings of a home.

    Args:
        home: the folder; None: ``VOLSTREAM_HOME``, else the user's data folder of the platform.
        values: settings that win over file and environment.

    Raises:
        InvalidValueError: a value that cannot be used, or a name that is no setting; names the source.
    """
    chosen = Path(home or os.environ.get("VOLSTREAM_HOME") or platformdirs.user_data_path("volstream"))
    chosen = Path(os.path.abspath(chosen.expanduser()))
    if not is_utf8(str(chosen)):
        raise InvalidValueError(f"The path of the home, {printable(str(chosen))!r}, is not text in UTF-8.")
    try:
        return Settings(home=chosen, **values)
    except ValidationError as error:
        lines = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise InvalidValueError(
            f"The settings are not valid: {lines}.", f"Look at {chosen / 'volstream.toml'} and VOLSTREAM_* variables."
        ) from None
    except SettingsError as error:  # names the setting, and not its value
        raise InvalidValueError(f"A VOLSTREAM_* variable cannot be read: {error}.", "Write it as JSON.") from None
    except (OSError, ValueError) as error:  # the file, and the TOML in it
        raise InvalidValueError(f"{chosen / 'volstream.toml'} cannot be read: {error}.") from None


def cache_directory() -> Path:
    """Where set-up keeps jars and the class archive: ``VOLSTREAM_CACHE``, else the user's cache folder."""
    return Path(os.environ.get("VOLSTREAM_CACHE") or platformdirs.user_cache_path("volstream"))


def environment(*names: str) -> str | None:
    """The first of these environment variables, which are not volstream's own, that is set and not empty."""
    return next((value for name in names if (value := os.environ.get(name))), None)


def java_home() -> str | None:
    """``JAVA_HOME``, where it is set."""
    return environment("JAVA_HOME")
