"""Settings: read once at the edge, validated, frozen, passed down. The only module that reads the
environment.

Precedence, highest first: values passed by the caller (flags, ``Session`` configs), ``VOLSTREAM_*``
environment variables, the file ``volstream.toml`` in the home, the defaults below.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Self, get_origin

import platformdirs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)

from volstream.base.model.arguments import checked
from volstream.base.model.paths import is_utf8, printable, without_secrets
from volstream.base.model.text import like
from volstream.base.model.units import MAX_BYTES, MAX_SECONDS, parse_duration, parse_size
from volstream.errors import InvalidValueError

#: What Spark takes for the end of a folder's path or for a pattern of paths, and deltalake for another
#: character.
_UNFIT = re.compile(r"[,*?#%\\\[\]{}\x00-\x1f\x7f]")


def _seconds(value: object) -> object:
    return _parsed(parse_duration, value)


def _bytes(value: object) -> object:
    return _parsed(parse_size, value)


def _parsed(parse: Callable[[str], float], value: object) -> object:
    """Parses ``value`` if it is text; re-raises a failure as a ValueError, so that pydantic reports it with
    the field's name."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value)
    except InvalidValueError as error:
        raise ValueError(str(error)) from None


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, le=MAX_SECONDS)]
Bytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0, le=MAX_BYTES)]

#: Arrow's string and binary columns are limited to 2 GiB.
ResultBytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0, le=1 << 30)]

#: Held in memory by each worker.
LogBytes = Annotated[int, BeforeValidator(_bytes), Field(gt=0, le=64 << 20)]

BytesOrNone = Annotated[
    Annotated[int, Field(gt=0, le=MAX_BYTES)] | None, BeforeValidator(lambda value: None if value == "none" else _bytes(value))
]


def _store_option(name: object) -> object:
    if not isinstance(name, str) or not name.upper().startswith("AWS_"):
        raise ValueError(f"{name!r} is not a store option; store options begin with AWS_, such as AWS_ENDPOINT_URL")
    return name.upper()


StoreOption = Annotated[str, BeforeValidator(_store_option)]


#: Where the engine's jars are published.
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"

#: Shortest token that is accepted, in characters.
MIN_TOKEN = 16


def _hard_to_guess(token: SecretStr) -> SecretStr:
    value = token.get_secret_value()
    if "${" not in value and len(value.strip()) < MIN_TOKEN:  # what a reference leads to is checked where it is resolved
        raise ValueError(f"a token has at least {MIN_TOKEN} characters")
    return token


class VirtualCluster(BaseModel):
    """The resources of a virtual cluster's daemon. Values given here override the home's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    spark_remote: str | None = Field(default=None, repr=False)
    spark_master: str | None = None
    """Spark master of the daemon's own engine, such as ``local[8]``, ``spark://host:7077`` or ``k8s://https://host``."""
    spark_conf: dict[str, str] = Field(default={}, repr=False)
    """Spark settings added to those of the home."""
    cores: int | None = Field(default=None, ge=0)
    driver_memory: Bytes | None = None
    max_parallel_jobs: int | None = Field(default=None, gt=0)


#: Store options that can come from the environment, with the variables that provide them.
_STORE_VARIABLES = {
    "AWS_ENDPOINT_URL": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "AWS_REGION": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "AWS_ALLOW_HTTP": ("AWS_ALLOW_HTTP",),
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST",),
}


class StaticKeys(BaseModel):
    """Keys of a storage connection created with ``--credentials static``."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    access_key_id: str
    access_key_secret: SecretStr
    security_token: SecretStr | None = None


def _words(command: object) -> object:
    """Splits a command as a shell does; none is run."""
    return shlex.split(command) if isinstance(command, str) else command


class Receiver(BaseModel):
    """Who gets alerts: a webhook, to which they are posted as JSON; a command, which reads them from standard
    input; or a kind of receiver that a plug-in adds.

    Alerts that come within ``digest`` seconds of the first are one message; 0: each is its own.

    ``${env:NAME}`` and ``${file:/path}`` in the webhook, its headers and a kind's options stand for what a
    variable or file has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    webhook: SecretStr | None = None
    headers: dict[str, SecretStr] = {}
    command: Annotated[tuple[str, ...], BeforeValidator(_words)] = ()
    kind: str | None = None
    options: dict[str, SecretStr] = {}
    digest: Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=MAX_SECONDS)] = 0.0

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if [self.webhook is None, not self.command, self.kind is None].count(False) != 1:
            raise ValueError("a receiver of alerts has either a webhook or a command, or the kind of a plug-in")
        return self


class Settings(BaseModel):
    """All settings of a home. Durations are in seconds (``30s`` etc. also accepted), sizes in bytes
    (``64MiB``).

    Settings that may contain a secret are left out of its ``repr``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    home: Path
    catalog_url: str = Field(default="", repr=False)
    """SQLAlchemy URL of the catalog; empty: SQLite in the home."""
    warehouse: str = ""
    """Directory of all Delta tables, relative to the home, or an object store location, ``s3://bucket/prefix``; empty:
    ``warehouse``."""
    warehouse_options: dict[StoreOption, SecretStr] = {}
    """Options of the warehouse's object store, named like deltalake's ``storage_options``."""
    spark_remote: str = Field(default="", repr=False)
    """``sc://host:port`` of an external Spark Connect server; empty: the home's own engine."""
    metastore: str = Field(default="", pattern=r"^[\w-]*$")
    """Spark catalog in which the home's tables are registered under their names: ``spark_catalog`` for a Hive metastore, or a
    catalog of ``spark_conf``; empty: none."""

    driver_memory: Bytes = 2 << 30
    """Heap of the engine's JVM."""
    cores: int = Field(default=0, ge=0)
    """Task slots of the engine; 0: one for each core of the machine."""
    jvm_options: str = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    """The engine's JVM flags. The default halves start-up time and suits small tables; set it to empty for heavy SQL."""
    spark_conf: dict[str, str] = Field(default={}, repr=False)
    """Additional Spark settings of the engine; they override volstream's own, except how Spark reads names and texts of SQL."""
    fetch_jars: bool = True
    """Whether commands fetch jars that the engine lacks; false: only ``volstream setup`` does."""
    jar_repository: str = Field(default=MAVEN_CENTRAL, pattern=r"^https?://", repr=False)
    """URL of a Maven repository with the engine's jars, such as a company's mirror of Maven Central."""
    engine_idle_seconds: Seconds = 600.0
    """A background engine without clients shuts down after this time."""
    engine_start_seconds: Seconds = 120.0
    """Maximum duration of an engine start."""
    engine_stall_seconds: Seconds = 60.0
    """An engine that has not answered a heartbeat for this long is considered lost."""
    executor_wait_seconds: Seconds = 300.0
    """If ``spark_remote`` runs no task of a job for this long, the work is cancelled and retried later."""

    virtual_clusters: dict[str, VirtualCluster] = {}
    """Resources of ``volstream daemon --virtual-cluster NAME``, by case-insensitive name. Unlisted clusters use the home's."""

    credentials: dict[str, StaticKeys] = {}
    """Keys by the connection that uses them; they never leave this process."""

    lease_seconds: Seconds = Field(default=30.0, le=900)
    """A lease not renewed for this long may be taken over by another host; at most 15 minutes."""
    shutdown_seconds: Seconds = 30.0
    """How long the daemon may take to finish its current work after SIGTERM, and an engine to finish what its clients do."""

    http_port: int = Field(default=8642, ge=0, le=65535)
    """The daemon's HTTP port, of the console and of probes and metrics; 0: any free port."""
    console_address: str = "127.0.0.1"
    """Address that the console listens on. If other hosts can reach it, it needs a certificate."""
    console_certificate: Path | None = None
    """PEM file of the console's certificate; without it the console speaks HTTP, and listens on this machine only."""
    console_key: Path | None = None
    """PEM file of its private key."""
    console_hosts: tuple[str, ...] = ()
    """Host names by which browsers reach the console, besides ``console_address`` and those of this machine's loopback."""
    debounce_seconds: Seconds = 0.2
    """A local file must be unmodified for this long before it is processed."""
    settle_seconds: Seconds = 1.0
    """A listing includes a file only if it was last modified at least this long ago, or did not change meanwhile."""
    poll_seconds: Seconds = 10.0
    """Period of full scans for volumes with queue type ``poll``."""
    queue_pollers: int = Field(default=1, ge=1, le=16)
    """Requests that wait at once for messages of a provider's queue, such as one of SQS."""
    listing_seconds: Seconds = 3600.0
    """Period of full listings while the daemon runs."""
    tick_keys: int = Field(default=20_000, gt=0)
    """Maximum number of changed keys checked at once; they are committed as one refresh."""
    directory_versions: int = Field(default=1000, ge=1)
    """Number of directory refreshes whose changes are kept in addition to those that streams need."""
    on_change_gap_seconds: Seconds = 0.1
    """Minimum interval between two runs of an on-change job."""
    max_parallel_jobs: int = Field(default=4, gt=0)
    """Maximum number of jobs that the daemon runs at once."""
    residents: int = Field(default=4, ge=0)
    """Number of tasks in which the daemon's engine waits for small batches, in slots besides ``cores``; 0: each batch is a call
    of Spark, which takes a tenth of a second longer. Not on a cluster."""
    time_zone: str = "UTC"
    """Time zone of cron expressions."""

    commit_seconds: float = Field(default=60.0, ge=0)
    """Interval in seconds at which rows of real-time streams are committed to their tables; 0: each flush is committed."""

    ingest_address: str = ""
    """``host:port`` at which the daemon serves real-time streams to clients without Java; empty: it does not."""
    ingest_token: Annotated[SecretStr, AfterValidator(_hard_to_guess)] | None = None
    """Token that clients of the ingestion server must send, 16 characters or more; None: the content of ``ingest.token`` in the
    home, created at the first start."""
    upload_hosts: tuple[str, ...] = ()
    """Hosts from which ``session.connector.upload_file`` may fetch files by ``https://`` or ``http://``."""
    upload_max_bytes: Bytes = 10 << 30
    """Maximum size of a file that ``session.connector.upload_file`` reads."""
    ingest_certificate: Path | None = None
    """PEM file of the ingestion server's certificate; required unless it listens on this machine only."""
    ingest_key: Path | None = None
    """PEM file of its private key."""

    batch_seconds: Seconds = 60.0
    """Target duration of a batch; batches are sized from measured throughput.

    A commit takes seconds regardless of batch size: once it is half of the total, larger batches look no faster and are avoided.
    """
    batch_max_files: int = Field(default=100_000, gt=0)
    """Maximum number of files in a batch, for every eight slots of a cluster; unless the job sets ``--max-files``."""
    batch_max_bytes: Bytes = 1 << 30
    """Maximum number of bytes in a batch, for every eight slots of a cluster; unless the job sets ``--max-bytes``."""
    function_memory: BytesOrNone = 4 << 30
    """Memory limit of a job's function, in each worker (Linux); ``none``: no limit."""
    fetch_ahead_bytes: Bytes = 64 << 20
    """Bytes prefetched from a remote store ahead of the function, in each worker."""
    step_bytes: Bytes = 64 << 20
    """Maximum size of the values of steps that a job keeps for each file; those beyond it are computed at each call."""
    result_row_bytes: ResultBytes = 64 << 20
    """Maximum size of one row that a function returns; beyond it the file fails. Each of the engine's slots holds several copies
    of a row at once."""
    result_file_bytes: ResultBytes = 512 << 20
    """Maximum size of all rows that a function returns for one file; beyond it the file fails."""
    log_file_bytes: LogBytes = 16 << 10
    """Output kept from one function call: its last lines."""
    log_batch_bytes: LogBytes = 1 << 20
    """Output kept from one batch."""
    log_bytes: Bytes = 64 << 20
    """Output kept from a job's function in total: the newest."""
    retry_first_seconds: Seconds = 10.0
    """Delay before a failed file's first retry; doubles each time, with jitter."""
    retry_max_seconds: Seconds = 3600.0
    """The longest delay between retries."""
    retry_later_max_seconds: Seconds = 86400.0
    """How long a function may ask to be called later for a file (`RetryLater`) before the file fails."""
    receivers: dict[str, Receiver] = {}
    """Who gets alerts, by name: `webhook` (a URL) with `headers`, or `command`."""
    on_failure: tuple[str, ...] = ()
    """Receivers of alerts about quarantined files, which failed and will not be retried, and about failed runs."""
    on_pause: tuple[str, ...] = ()
    """Receivers of alerts about paused jobs, whether they paused themselves or a user paused them."""
    on_stale: tuple[str, ...] = ()
    """Receivers of alerts about streams that are stale or soon will be."""
    on_problem: tuple[str, ...] = ()
    """Receivers of alerts about everything else that has stopped: volumes, sources, commits of tables, the engine."""
    alert_after_seconds: Seconds = 30.0
    """How long a transient problem must last before it raises an alert; failures within this time share one alert."""
    alert_repeat_seconds: Seconds = 86400.0
    """Time after which a problem that lasts raises another alert."""
    stale_warning_seconds: Seconds = 86400.0
    """A stream is about to become stale if changes that it has not consumed may be deleted within this time."""

    openlineage: dict[str, Any] = Field(default={}, repr=False)
    """OpenLineage's own configuration, such as `transport`; empty: `OPENLINEAGE_*` variables or an `openlineage.yml`."""

    history_seconds: Seconds = 90 * 86400.0
    """How long finished refreshes, plans, batches and attempts stay in the catalog, and printed output is kept."""

    @field_validator("warehouse")
    @classmethod
    def _known(cls, warehouse: str) -> str:
        if without_secrets(warehouse) != warehouse:
            raise ValueError("keys are not part of its URL; write them into warehouse_options")
        if warehouse.startswith("oss://"):
            raise ValueError(
                "deltalake does not support oss://; write s3://bucket/prefix, and set AWS_ENDPOINT_URL in warehouse_options "
                "to OSS's S3-compatible endpoint"
            )
        return warehouse

    def for_cluster(self, name: str) -> Settings:
        """Returns the settings of a virtual cluster's daemon."""
        profile = next((cluster for key, cluster in self.virtual_clusters.items() if key.upper() == name.upper()), None)
        if profile is None:
            return self
        overrides = profile.model_dump(exclude_none=True, exclude={"spark_master", "spark_conf"})
        master = {"spark.master": profile.spark_master} if profile.spark_master else {}
        return self.model_copy(update={**overrides, "spark_conf": {**self.spark_conf, **master, **profile.spark_conf}})

    def history_begins(self) -> datetime:
        """Returns the time before which finished work may be forgotten."""
        return datetime.now(UTC) - timedelta(seconds=self.history_seconds)

    @property
    def on_cluster(self) -> bool:
        """True if functions run elsewhere than in the slots of the home's own engine."""
        return bool(self.spark_remote) or "spark.master" in self.spark_conf

    @property
    def slots(self) -> int:
        """Task slots of the home's own engine: ``cores``, or the number of CPUs available to this process,
        which in a container may be fewer than the machine's."""
        if self.cores:
            return self.cores
        return len(os.sched_getaffinity(0))

    @property
    def catalog_file(self) -> Path:
        """The path of the catalog that is used if ``catalog_url`` is not set."""
        return self.home / "catalog.db"

    @property
    def database_url(self) -> str:
        """The catalog's SQLAlchemy URL, or its file, whose path need not be fit for a URL."""
        return self.catalog_url or str(self.catalog_file)

    @property
    def is_made(self) -> bool:
        """True if a catalog exists; a database elsewhere is assumed to exist without being queried."""
        return bool(self.catalog_url) or os.path.exists(self.catalog_file)

    @property
    def warehouse_path(self) -> str:
        """The warehouse as an absolute local path or URI, without a trailing slash."""
        warehouse = self.warehouse.rstrip("/") or "warehouse"
        return warehouse if "://" in warehouse else str(self.home / Path(warehouse).expanduser())

    @property
    def warehouse_storage(self) -> dict[str, str]:
        """Options of the warehouse's object store: ``warehouse_options``, and its location as given by the
        environment.

        Keys are included only if they are set; without them the store looks for credentials as AWS's own
        tools do.
        """
        if "://" not in self.warehouse_path:
            return {}
        found = {name: value for name, names in _STORE_VARIABLES.items() if (value := environment(*names)) is not None}
        found |= {name: value.get_secret_value() for name, value in self.warehouse_options.items()}
        if "AWS_ENDPOINT_URL" in found and "AWS_ACCESS_KEY_ID" not in found:
            found.setdefault("AWS_FORCE_CREDENTIAL_LOAD", "true")  # deltalake would look for no profile
        return found

    @field_serializer("warehouse_options", when_used="json")
    def _reveal(self, options: dict[str, SecretStr]) -> dict[str, str]:
        """Reveals the options to the home's engine, which receives the settings through its standard
        input."""
        return {name: value.get_secret_value() for name, value in options.items()}

    @property
    def environments_directory(self) -> Path:
        """Environments of functions with packages of their own."""
        return self.home / "environments"

    @property
    def run_directory(self) -> Path:
        """Runtime files of the engine: lock, address and token."""
        return self.home / "run"

    @property
    def log_directory(self) -> Path:
        """Logs of the background engine and of the JVM."""
        return self.home / "log"


@checked
def load(home: str | os.PathLike[str] | None = None, **values: Any) -> Settings:
    """Reads the settings of a home.

    Args:
        home: the folder; None: ``VOLSTREAM_HOME``, else the platform's user data folder.
        values: settings that override the file and the environment.

    Raises:
        InvalidValueError: a value is invalid, or a name is not a setting; the message names the source.
    """
    try:
        chosen = Path(home or os.environ.get("VOLSTREAM_HOME") or platformdirs.user_data_path("volstream"))
        chosen = Path(os.path.abspath(chosen.expanduser()))
    except RuntimeError as error:
        raise _no_user(error, "--home or VOLSTREAM_HOME") from None
    if not is_utf8(str(chosen)):
        raise InvalidValueError(f"The path of the home, {printable(str(chosen))!r}, is not valid UTF-8.")
    if _UNFIT.search(str(chosen)):
        raise InvalidValueError(
            f"{str(chosen)!r} cannot be a home: Spark or Delta would misread a part of the path.",
            r"Choose a path without , * ? # % \ [ ] { } and control characters.",
        )
    try:
        file = _from_file(chosen / "volstream.toml")
        return Settings.model_validate(_merged(_merged(file, _from_environment()), {**values, "home": chosen}))
    except ValidationError as error:
        check = f"Check {chosen / 'volstream.toml'} and the VOLSTREAM_* variables."
        unknown = [".".join(map(str, problem["loc"])) for problem in error.errors() if problem["type"] == "extra_forbidden"]
        if unknown:
            near = like(unknown[0], Settings.model_fields) if "." not in unknown[0] else ""
            raise InvalidValueError(f"There is no setting {unknown[0]!r}.", near + check) from None
        lines = "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors())
        raise InvalidValueError(f"The settings are not valid: {lines}.", check) from None
    except RecursionError:
        raise InvalidValueError(f"{chosen / 'volstream.toml'} cannot be read: its values are nested too deeply.") from None
    except (OSError, ValueError) as error:  # reading the file, or parsing its TOML
        raise InvalidValueError(f"{chosen / 'volstream.toml'} cannot be read: {error}.") from None


def _from_file(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def _from_environment() -> dict[str, Any]:
    """Returns the settings in ``VOLSTREAM_<NAME>`` variables, those with parts as JSON. Raises
    InvalidValueError."""
    given = {name.lower(): text for name, text in os.environ.items()}
    values: dict[str, Any] = {}
    for name, field in Settings.model_fields.items():
        text = given.get(f"volstream_{name}")
        if text is not None:
            has_parts = get_origin(field.annotation) in (dict, tuple)
            values[name] = _from_json(f"VOLSTREAM_{name.upper()}", text) if has_parts else text
    return values


def _from_json(variable: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidValueError(f"The variable {variable} cannot be read.", "Write it as JSON.") from None


def _merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merges two mappings, tables key by key; values of ``over`` win."""
    both = {name for name in over if isinstance(over[name], dict) and isinstance(values.get(name), dict)}
    return {**values, **over, **{name: _merged(values[name], over[name]) for name in both}}


def cache_directory() -> Path:
    """Returns the folder for jars and the class archive: ``VOLSTREAM_CACHE``, else the user's cache folder.

    Raises:
        InvalidValueError: the user has none.
    """
    try:
        return Path(os.environ.get("VOLSTREAM_CACHE") or platformdirs.user_cache_path("volstream"))
    except RuntimeError as error:
        raise _no_user(error, "VOLSTREAM_CACHE") from None


def _no_user(error: RuntimeError, name: str) -> InvalidValueError:
    """Returns the error for a user who has no home directory, as in containers, or does not exist."""
    return InvalidValueError(f"Your home directory cannot be determined: {error}.", f"Give a whole path: {name}.")


def environment(*names: str) -> str | None:
    """Returns the first of these environment variables that is set and not empty; for variables that are not
    volstream's own."""
    return next((value for name in names if (value := os.environ.get(name))), None)
