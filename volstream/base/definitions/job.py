"""Jobs: what consumes streams and fills tables."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

from volstream.base.definitions import forms
from volstream.base.definitions.forms import OpenWords, of_plugins
from volstream.base.definitions.objects import StreamSpec
from volstream.base.definitions.options import Key, Option, keys, read, to_create
from volstream.base.model.names import Name
from volstream.base.model.text import nearest
from volstream.base.model.units import exact_size, format_size
from volstream.base.plugins import Group
from volstream.errors import InvalidValueError


class Write(StrEnum):
    """A job's way of writing its result table: one state per file, or a log of every processed version."""

    UPSERT = "upsert"
    APPEND = "append"


class OnMove(StrEnum):
    """A job's treatment of a file moved within its volume: call the function again, or let the rows
    follow."""

    RERUN = "rerun"
    REKEY = "rekey"


class FileOrder(StrEnum):
    """The order of the files in a run: by path, or the newest first."""

    PATH = "path"
    NEWEST = "newest"


class TriggerKind(StrEnum):
    """The occasions on which the daemon runs a job."""

    MANUAL = "manual"
    ON_CHANGE = "on-change"
    EVERY = "every"
    CRON = "cron"


class JobState(StrEnum):
    """The state of a job, which tells whether the daemon and ``run-job`` may run it."""

    ACTIVE = "active"
    PAUSED = "paused"


class FileFormat(OpenWords):
    """The format of a volume's files: one of these, or a plug-in's by its name."""

    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"
    AVRO = "avro"
    ORC = "orc"


class NewColumns(StrEnum):
    """The treatment of a file's columns that the table lacks: add them, rescue their values, or fail the
    file."""

    ADD = "add"
    RESCUE = "rescue"
    FAIL = "fail"


@dataclass(frozen=True)
class Trigger:
    """The schedule of a job: ``every`` in seconds, ``cron`` as a five-field expression."""

    kind: TriggerKind = TriggerKind.MANUAL
    every: float | None = None
    cron: str | None = None

    def __str__(self) -> str:
        """Returns the schedule in words."""
        match self.kind:
            case TriggerKind.EVERY:
                return f"every {self.every:g}s"
            case TriggerKind.CRON:
                return f"cron {self.cron}"
            case _:
                return self.kind.value


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """When the daemon runs a job: by at most one of ``on_change``, ``every`` and ``cron``; without them only
    ``run-job`` does."""

    on_change: Annotated[bool, Option("Run as soon as something changes.", flag="--on-change", clause=True)] = False
    every: Annotated[float | None, Option("Run periodically.", clause=True)] = None
    cron: Annotated[str | None, Option("Run on a schedule.", metavar="'*/5 * * * *'", clause=True)] = None
    priority: Annotated[
        int,
        Option("Jobs with higher priority run first; ties go to the job that has waited longest.", minimum=-1000, maximum=1000),
    ] = 0

    def __post_init__(self) -> None:
        """Raises InvalidValueError for two schedules."""
        if (self.on_change, self.every is not None, self.cron is not None).count(True) > 1:
            raise InvalidValueError("on_change, every and cron are mutually exclusive.", "Give one of them.")

    @property
    def trigger(self) -> Trigger:
        """The schedule."""
        if self.on_change:
            return Trigger(TriggerKind.ON_CHANGE)
        if self.every is not None:
            return Trigger(TriggerKind.EVERY, every=self.every)
        return Trigger() if self.cron is None else Trigger(TriggerKind.CRON, cron=self.cron)


#: The options of a schedule when none is set; a new schedule replaces the whole one.
NO_SCHEDULE: Mapping[str, object] = {"on_change": False, "every": None, "cron": None}


@dataclass(frozen=True, kw_only=True)
class JobOptions(Scheduled):
    """What a user says of any job."""

    alert: Annotated[
        Sequence[str] | None,
        Option(
            "Receivers of its alerts; none: no alerts; default: the receivers in the settings.",
            form=forms.RECEIVERS,
            metavar="RECEIVER",
        ),
    ] = None
    comment: Annotated[str | None, Option(clause=True)] = None


#: Each call in flight has a thread.
_MAX_CONCURRENCY = 1024

#: The largest number of files or retries that the catalog can store.
_MAX_COUNT = 2**31 - 1


def _memory(value: Any) -> int:
    size: int = forms.SIZE.read(value)
    if size < _LEAST_MEMORY:
        raise InvalidValueError(f"{format_size(size)} is too little memory for a worker.", "Give 64MiB or more; 300MiB, not 300.")
    return size


#: With less a worker cannot hold what it reads and returns.
_LEAST_MEMORY = 64 << 20

_MEMORY = forms.form("a size", "int | str", _memory, metavar="1GiB", write=exact_size)


def _folder(value: Any) -> str:
    folder: str = forms.TEXT.read(value).removesuffix("/")
    if not {"", ".", ".."}.isdisjoint(folder.split("/")) or not folder.isprintable():
        raise forms.unfit(value, "a folder", "Write for example thumbs or 2026/thumbs.")
    return folder


#: What follows ``archive:`` is a folder.
KEEP, DELETE, ARCHIVE = "keep", "delete", "archive:"


def _after_load(value: Any) -> str:
    text: str = forms.TEXT.read(value)
    if text.lower() in (KEEP, DELETE):
        return text.lower()
    if not text.startswith(ARCHIVE) or not (folder := _folder(text.removeprefix(ARCHIVE))):
        raise forms.unfit(text, "keep, delete or archive:FOLDER")
    return f"{ARCHIVE}{folder}"


@dataclass(frozen=True, kw_only=True)
class FileJobOptions(JobOptions):
    """What a user says of a job on files, whatever it does with them."""

    where: Annotated[
        str | None, Option('Take only files that satisfy this, such as "size < 1000000".', metavar="SQL", clause=True)
    ] = None
    write: Annotated[Write, Option("One state per file, or a log of every processed version.", alterable=False)] = Write.UPSERT
    on_move: Annotated[OnMove, Option("When a file moves inside the volume: run the function, or let its rows follow.")] = (
        OnMove.RERUN
    )
    order: Annotated[FileOrder, Option("Order of the files of a run: by path, or the newest first.")] = FileOrder.PATH
    retries: Annotated[int, Option("Retries after a file's first failed attempt.", minimum=0, maximum=_MAX_COUNT)] = 3
    pause_after: Annotated[
        int, Option("Pause after this many batches in which every file failed; 0: never.", minimum=0, maximum=_MAX_COUNT)
    ] = 3
    timeout: Annotated[float | None, Option("Time limit per file.", metavar="60s")] = None
    isolate: Annotated[bool, Option("Run each file in a child process that can be killed.")] = False
    concurrency: Annotated[
        int | None,
        Option("Calls in flight in each worker; by default what the function declares.", minimum=1, maximum=_MAX_CONCURRENCY),
    ] = None
    rate: Annotated[str | None, Option("Maximum rate of calls, by all workers together.", form=forms.RATE)] = None
    parallel: Annotated[
        int | None,
        Option("Maximum number of workers, each with its own copy of what the function loads.", minimum=1, maximum=_MAX_COUNT),
    ] = None
    cpus: Annotated[
        int | None, Option("CPUs of each worker; with more CPUs each, fewer workers run.", minimum=1, maximum=_MAX_COUNT)
    ] = None
    memory: Annotated[int | None, Option("Memory of each worker, in place of the setting function_memory.", form=_MEMORY)] = None
    gpus: Annotated[
        int | None, Option("GPUs of each worker, the only ones that its function sees.", minimum=1, maximum=_MAX_COUNT)
    ] = None
    expect: Annotated[
        Sequence[str],
        Option(
            "Each row of a file must satisfy this, or the file fails; `rows` is the file's number of rows.",
            form=forms.CONDITIONS,
            single="expect",
            metavar="SQL",
        ),
    ] = ()
    expect_warn: Annotated[
        Sequence[str],
        Option("Count the files whose rows do not satisfy this.", form=forms.CONDITIONS, single="expect-warn", metavar="SQL"),
    ] = ()
    verify_every: Annotated[
        float | None, Option("How often the daemon compares the table with the files.", metavar="1d", minimum=1)
    ] = None
    after_load: Annotated[
        str,
        Option(
            "What happens to a file once its rows are committed.",
            form=forms.form("keep, delete or archive:FOLDER", "str", _after_load, metavar="keep|delete|archive:FOLDER"),
        ),
    ] = KEEP
    max_files: Annotated[int | None, Option("Maximum number of files in a batch.", minimum=1, maximum=_MAX_COUNT)] = None
    max_bytes: Annotated[int | None, Option("Maximum number of bytes in a batch.", form=forms.SIZE)] = None


_INTO = Option("The table.", metavar="TABLE", alterable=False, clause=True)
_STREAM = Option("The stream whose files are processed.", names="stream", alterable=False, clause=True)
_VOLUME = Option(
    "The volume whose files are processed, by a stream of the job's own.", names="volume", alterable=False, clause=True
)
_FUNCTION = Option("The function to run on each file.", metavar="FILE.py:FUNC|pkg.mod:FUNC", clause=True)
_RETURNS = Option("Columns of the result: 'label STRING, score DOUBLE'.", metavar="DDL", clause=True)


_OUTPUTS_TO = Option(
    "The volume that gets the files which the function returns.",
    form=forms.form("a name", "str", lambda value: str(forms.NAME.read(value)), metavar="VOLUME"),
    names="volume",
    alterable=False,
)
_OUTPUTS_PREFIX = Option(
    "A folder in it, which volstream puts before the paths of these files.",
    form=forms.form("a folder", "str", _folder, metavar="FOLDER"),
    alterable=False,
)


@dataclass(frozen=True, kw_only=True)
class FunctionOptions:
    """What a user says of the function of a job."""

    returns: Annotated[str | None, _RETURNS] = None
    arguments: Annotated[
        Mapping[str, str],
        Option("Passed to the function by name: text, or the int, float or bool of its annotation.", single="arg"),
    ] = field(default_factory=dict)
    environment: Annotated[
        str | None,
        Option(
            "The function's own packages: a requirements file, the folder of a virtual environment, or an archive of one.",
            metavar="requirements.txt|VENV|ARCHIVE.tar.gz",
        ),
    ] = None
    outputs_to: Annotated[str | None, _OUTPUTS_TO] = None
    outputs_prefix: Annotated[str | None, _OUTPUTS_PREFIX] = None


@dataclass(frozen=True, kw_only=True)
class SetOptions:
    """What a user says of the sets that files form for a function."""

    group_by: Annotated[
        str | None,
        Option(
            "Call the function on sets of files that share this: folder, stem, or an expression of relative_path.",
            metavar="folder|stem|SQL",
            alterable=False,
        ),
    ] = None
    group_complete: Annotated[
        str | None, Option("Hold a set back until its files satisfy this, such as 'count(*) >= 2'.", metavar="SQL")
    ] = None
    group_quiet: Annotated[float | None, Option("Hold a set back until it has not changed for this long.", metavar="30s")] = None

    @property
    def unit(self) -> str:
        """What the function is called on, and what numbers of outcomes and failures count: ``file`` or
        ``set``."""
        return "file" if self.group_by is None else "set"


def _character(what: str, example: str, *words: str) -> forms.Form:
    """Returns the form of a character of csv files, or one of some words instead."""

    def read(value: Any) -> str:
        text: str = forms.TEXT.read(value)
        if text.lower() in ("tab", "\\t"):
            text = "\t"
        if text.lower() in words:
            return text.lower()
        if (
            len(text) != 1
            or not text.isascii()
            or not (text.isprintable() or text == "\t")
            or (text == '"' and what == "delimiter")
        ):
            raise InvalidValueError(f"The {what} cannot be {text!r}.", f"Give one ASCII character, {example}.")
        return text

    return forms.form(f"one ASCII character, {example}", "str", read, metavar="CHARACTER")


def _time_format(value: Any) -> str:
    text: str = forms.TEXT.read(value)
    try:
        shown = datetime(2026, 3, 1, 14, 5, 9, tzinfo=UTC).strftime(text)
        if shown != text and datetime.strptime(shown, text).year == 2026:
            return text
    except ValueError:
        pass
    raise forms.unfit(text, "a format of dates", "Write it as for Python's strptime, with the year: %d.%m.%Y, not dd.MM.yyyy.")


def _prefix(value: Any) -> str:
    text: str = forms.TEXT.read(value)
    if not text or not text.isprintable():
        raise forms.unfit(value, "the beginning of a line", "Give for example '#'.")
    return text


def _encoding(value: Any) -> str:
    name = forms.TEXT.read(value)
    try:
        codec = codecs.lookup(name)
    except (LookupError, ValueError):  # the latter for a NUL
        raise InvalidValueError(f"There is no encoding {name!r}.", "Give, for example, utf-8 or latin-1.") from None
    if not codec._is_text_encoding:  # Python's own test in open()
        raise InvalidValueError(f"{name!r} is not an encoding of text.", "Give, for example, utf-8 or latin-1.")
    return codec.name


def _records(value: Any) -> str:
    text: str = forms.TEXT.read(value)
    if not all(text.split(".")):
        raise forms.unfit(value, "a path of keys", "Give for example Records, or detail.items.")
    return text


_RECORDS = forms.form("a path of keys", "str", _records)
_DELIMITER = _character("delimiter", "or tab")
_TIME_FORMAT = forms.form("a format of dates", "str", _time_format, metavar="%d.%m.%Y")
_ENCODING = forms.form("an encoding", "str", _encoding, metavar="NAME")


def _bad_rows(value: Any) -> str:
    text = str(value).replace(" ", "")
    number = text.removesuffix("%")
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,18}|[0-9]{1,3}(\.[0-9]{1,6})?%", text):
        raise forms.unfit(value, "a number of rows or a percentage", "Give for example 100 or 5%.")
    if text != number and Decimal(number) > 100:
        raise forms.unfit(value, "a percentage", "Give 0% to 100%.")
    return text


_BAD_ROWS = forms.form("a number of rows or a percentage", "int | str", _bad_rows, metavar="N|N%")


@dataclass(frozen=True, kw_only=True)
class LoadKeys:
    """What a user says of how files are loaded as rows."""

    format: Annotated[
        FileFormat | None,
        Option(
            "Format of all files; default: by each file's extension.",
            flag="--file-format",
            form=forms.words(FileFormat, others=of_plugins(Group.READERS)),
        ),
    ] = None
    reader_options: Annotated[
        Mapping[str, str], Option("Options of the plug-in that reads the format.", form=forms.NAMED, single="reader_option")
    ] = field(default_factory=dict)
    header: Annotated[bool, Option("The first row of csv files contains the column names.")] = True
    delimiter: Annotated[str | None, Option("Separator of values in csv files; tab for tabs.", form=_DELIMITER)] = None
    encoding: Annotated[str, Option("Encoding of csv and json files.", form=_ENCODING)] = "utf-8"
    skip_rows: Annotated[int | None, Option("Lines before the header of csv files.", minimum=0, maximum=_MAX_COUNT)] = None
    skip_footer: Annotated[int, Option("Trailing lines of a csv file that are not data.", minimum=0, maximum=1000)] = 0
    comment_prefix: Annotated[
        str | None,
        Option("Lines of csv files that start with this are comments.", form=forms.form("text", "str", _prefix), metavar="'#'"),
    ] = None
    null_values: Annotated[
        Sequence[str], Option(r"Values of csv files that are NULL, besides empty ones: \N, NULL, NA.", single="null_value")
    ] = ()
    quote: Annotated[str, Option("Quote around values of csv files.", form=_character("quote", "or none", "none"))] = '"'
    escape: Annotated[str | None, Option("Escape character of csv files.", form=_character("escape", "such as \\"))] = None
    decimal: Annotated[str, Option("Decimal separator of csv files.", form=_character("decimal", "such as ,"))] = "."
    date_format: Annotated[str | None, Option("Format of dates in csv files; default: ISO 8601.", form=_TIME_FORMAT)] = None
    timestamp_format: Annotated[
        str | None, Option("Format of times in csv files; default: ISO 8601.", form=_TIME_FORMAT, metavar="'%d.%m.%Y %H:%M'")
    ] = None
    records: Annotated[
        str | None,
        Option("Where the records of json files are: a key, or keys with dots between them.", form=_RECORDS, metavar="KEY.KEY"),
    ] = None
    entries: Annotated[
        Sequence[str], Option("Entries of zip and tar files to load; default: all.", single="entry", metavar="GLOB")
    ] = ()
    schema: Annotated[str | None, Option("The table's columns; default: inferred from a sample of the files.", metavar="DDL")] = (
        None
    )
    infer_types: Annotated[bool, Option("Infer the types of values in csv and json files; otherwise they are text.")] = True
    new_columns: Annotated[
        NewColumns, Option("Columns that the table lacks: add them, rescue their values, or fail the file.")
    ] = NewColumns.ADD
    max_bad_rows: Annotated[
        str | None,
        Option("A file fails if more of its rows than this have values that do not fit; default: none does.", form=_BAD_ROWS),
    ] = None

    def __post_init__(self) -> None:
        """Raises InvalidValueError for a text with a comma, which separates texts where the catalog keeps
        them, and for a delimiter that is also another character."""
        if self.delimiter is not None and self.delimiter in (self.quote, self.escape):
            said = f"The delimiter {self.delimiter!r} is also the quote or escape character."
            raise InvalidValueError(said, "Give different characters.")
        for name, texts in (("null_values", self.null_values), ("entries", self.entries)):
            if odd := next((text for text in texts if "," in text or text != text.strip()), None):
                raise InvalidValueError(f"{name}: {odd!r} has a comma, or blanks at an end.", "Give texts without them.")


@dataclass(frozen=True, kw_only=True)
class JobSpec(JobOptions):
    """A job to be created."""

    name: Name
    into: Annotated[Name, _INTO]


@dataclass(frozen=True, kw_only=True)
class FileJobSpec(FunctionOptions, SetOptions, FileJobOptions, JobSpec):
    """A :class:`FileJob` to be created: with one of ``stream`` and ``volume``."""

    function: Annotated[str, _FUNCTION]
    stream: Annotated[Name | None, _STREAM] = None
    volume: Annotated[Name | None, _VOLUME] = None
    pickled: bytes | None = field(default=None, repr=False)


#: Options of a job on files that its methods have as arguments of their own.
JOB_ARGUMENTS = ("function", "into", "stream", "volume")


#: The name under which a job has the function that loads files.
LOADER = "volstream.functions.loading.loader:Loader"


def name_of_load(into: str) -> str:
    """Returns the default name of a job that loads a table. Raises InvalidValueError."""
    table = Name.parse(into)
    return str(Name(table.schema, f"load_{table.name}"))


#: Options of a job that loads files.
LOAD_OPTIONS = {**to_create(LoadKeys), **to_create(FileJobOptions)}


@dataclass(frozen=True, kw_only=True)
class StatementJobSpec(JobSpec):
    """A :class:`StatementJob` to be created: the streams that its statement reads, the first one by which it
    is known."""

    statement: str
    streams: Sequence[Name]


@dataclass(frozen=True, kw_only=True)
class DynamicJobSpec(JobSpec):
    """A :class:`DynamicJob` to be created: the streams to make, one on each relation that its query reads."""

    query: str
    own_streams: Sequence[StreamSpec]


@dataclass(frozen=True, kw_only=True)
class DynamicTableOptions(Scheduled):
    """What a user says of a dynamic table."""

    query: Annotated[str, Option("What the table holds.", metavar="SQL", alterable=False, clause=True)]
    comment: Annotated[str | None, Option(clause=True)] = None


def load_keys(names: Iterable[str], *own: str) -> Mapping[str, Key]:
    """Returns the options of loading, except ``own``. Raises InvalidValueError if a name is none of them."""
    allowed = to_create(LoadKeys, *own)
    if unknown := sorted({*names} - allowed.keys()):
        raise InvalidValueError(f"There is no load option {unknown[0]!r}.", nearest(unknown[0], list(allowed)))
    return allowed


def _load(value: Any) -> LoadKeys:
    if isinstance(value, LoadKeys):
        return value
    if not isinstance(value, Mapping):
        raise forms.unfit(value, 'a table, such as { format = "csv" }')
    load_keys(value)
    return LoadKeys(**read(LoadKeys, value))


def _said(load: LoadKeys) -> Mapping[str, Any]:
    """Returns the options of loading that are not the defaults."""
    said = {name: (key, getattr(load, name)) for name, key in keys(LoadKeys).items()}
    return {name: key.write(value) for name, (key, value) in said.items() if value != key.default}


_LOAD = forms.form("a table", "Mapping[str, str | bool]", _load, write=_said)


@dataclass(frozen=True, kw_only=True)
class JobDefinition(FunctionOptions, SetOptions, FileJobOptions):
    """All that can be said of a job, whatever it runs: a function, a loader of files, or a statement."""

    stream: Annotated[Name | None, _STREAM] = None
    volume: Annotated[Name | None, _VOLUME] = None
    function: Annotated[str | None, _FUNCTION] = None
    load: Annotated[LoadKeys | None, Option("How files are loaded as rows.", form=_LOAD)] = None
    statement: Annotated[str | None, Option("DML that consumes streams.", metavar="SQL")] = None
    into: Annotated[Name | None, _INTO] = None


#: The reason of a pause that a person asked for.
PAUSED_BY_USER = "paused by the user"


@dataclass(frozen=True, kw_only=True)
class Job(JobOptions):
    """A job as the catalog has it: a :class:`FileJob`, a :class:`StatementJob` or a :class:`DynamicJob`.

    Attributes:
        stream_id: the stream's; the first one's, if a statement reads several.
        other_stream_ids: the other streams that a statement reads.
        into: the table.
        owns_stream: the streams were made for this job and are dropped with it.
        last_started, last_ended: times of the last run; ``last_ended`` is None while a run is in progress,
            and stays so if its process died or could not write the catalog.
        last_outcome: a line about the last run that ended well and had work.
        generation: a number that grows with each change of what decides about files, and each retry. What a
            run found with an earlier one is due again.
    """

    id: str
    name: Name
    stream_id: str
    other_stream_ids: Sequence[str] = ()
    into: Name
    state: JobState
    state_reason: str | None
    owns_stream: bool
    created_on: datetime
    last_started: datetime | None = None
    last_ended: datetime | None = None
    last_outcome: str | None = None
    generation: int = 0

    @property
    def stream_ids(self) -> Sequence[str]:
        """The ids of all streams that the job consumes."""
        return (self.stream_id, *self.other_stream_ids)

    @property
    def unended(self) -> bool:
        """True if a run began whose end is not known: it is in progress, or was interrupted."""
        return self.last_started is not None and self.last_ended is None

    @property
    def paused_itself(self) -> str | None:
        """Why the job paused itself; None: it is active, or was paused by a person."""
        return None if self.paused == PAUSED_BY_USER else self.paused

    @property
    def paused(self) -> str | None:
        """Why it is paused; None: it is not."""
        return (self.state_reason or PAUSED_BY_USER) if self.state is JobState.PAUSED else None


@dataclass(frozen=True, kw_only=True)
class FileJob(SetOptions, FileJobOptions, Job):
    """Runs a function on each file of a volume's stream, into a result table.

    Attributes:
        function: ``/abs/file.py:func`` or ``pkg.mod:func``.
        search_path: folder to import ``pkg.mod`` from if it is not installed; None: installed.
        pickled: a function that no file has (``functions/pickled.py``); ``function`` is then its name.
        fingerprint: hash of the function's code when the job was made or altered.
        returns: the result's own columns as DDL, for example ``label STRING, score DOUBLE``.
        environment: absolute path of what defines the environment in which the function runs; None:
            volstream's own.
        outputs_to, outputs_prefix: volume, and folder in it, of the files that the function returns.
        declared: ``returns`` is what the function declares, or returned for a sample, not what the user gave
            besides.
        made_by_run: ``run`` made it, or took it over as asked, so that its calls may change it.
        clean: the result table was made empty by this job, and nothing but its first pass wrote to it.
        may_have_strays: the result table may have rows of files that left the volume unseen by the stream: it
            was reset, or another job wrote them. The next run looks for them.
        failed_batches: batches in a row of which every file failed.
        verified_on: when the table was last compared with its files.
        verified_version: version of the table up to which no other writer changed rows, or what it changed
            was put right.
    """

    function: str
    search_path: str | None
    fingerprint: str
    returns: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    environment: str | None = None
    outputs_to: str | None = None
    outputs_prefix: str | None = None
    pickled: bytes | None = field(default=None, repr=False)
    declared: bool = False
    made_by_run: bool = False
    clean: bool = False
    may_have_strays: bool = False
    failed_batches: int = 0
    verified_version: int | None = None
    verified_on: datetime | None = None

    @property
    def loads(self) -> bool:
        """True if it loads files as rows, rather than running a user's function."""
        return self.function == LOADER

    @property
    def function_arguments(self) -> Mapping[str, str]:
        """The arguments of its function; for a job that loads, including the table's columns."""
        return {**self.arguments, "columns": self.returns} if self.loads else self.arguments

    @property
    def takes_files(self) -> bool:
        """True if files leave the volume once their rows are committed."""
        return self.after_load != KEEP

    @property
    def archive(self) -> str | None:
        """The folder of the volume that gets such files; None: they are deleted, or stay."""
        return self.after_load.removeprefix(ARCHIVE) if self.after_load.startswith(ARCHIVE) else None


@dataclass(frozen=True, kw_only=True)
class StatementJob(Job):
    """Runs DML that consumes its streams."""

    statement: str


@dataclass(frozen=True, kw_only=True)
class DynamicJob(Job):
    """Keeps a dynamic table, ``into``, equal to a query. The streams on what the query reads are its own."""

    query: str
