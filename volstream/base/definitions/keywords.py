"""The keyword arguments of public methods, for type checkers and editors. Made by docs/generate.py from the definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypedDict

from volstream.base.definitions.job import FileFormat, FileOrder, NewColumns, OnMove, Write
from volstream.base.definitions.objects import QueueType, StreamMode
from volstream.base.model.names import Name


class ConnectionKeywords(TypedDict, total=False):
    """Options of a connection."""

    region: str | None
    endpoint: str | None
    role_arn: str | None
    credentials: str
    comment: str | None


class VolumeKeywords(TypedDict, total=False):
    """Options of a volume."""

    connection: str | Name | None
    queue_type: QueueType | str | None
    queue_name: str | None
    queue_properties: Mapping[str, str | int | float] | None
    virtual_cluster: str
    recursive: bool
    patterns: Sequence[str] | str
    ignores: Sequence[str] | str
    max_removals: str | None
    inventory: str | None
    expect_every: float | str | timedelta | None
    comment: str | None


class StreamKeywords(TypedDict, total=False):
    """Options of a new stream."""

    show_initial_rows: bool
    at_version: int | None
    at_timestamp: datetime | str | None
    mode: StreamMode | Literal["standard", "append-only"]
    identity: Sequence[str] | str
    comment: str | None


class DynamicTableKeywords(TypedDict, total=False):
    """Options of a new dynamic table."""

    comment: str | None
    on_change: bool
    every: float | str | timedelta | None
    cron: str | None
    priority: int


class FileJobChanges(DynamicTableKeywords, total=False):
    """What can be changed of any job on files."""

    where: str | None
    on_move: OnMove | Literal["rerun", "rekey"]
    order: FileOrder | Literal["path", "newest"]
    retries: int
    pause_after: int
    timeout: float | str | timedelta | None
    isolate: bool
    concurrency: int | None
    rate: str | None
    parallel: int | None
    cpus: int | None
    memory: int | str | None
    gpus: int | None
    expect: Sequence[str] | str
    expect_warn: Sequence[str] | str
    verify_every: float | str | timedelta | None
    after_load: str
    max_files: int | None
    max_bytes: int | str | None
    alert: Sequence[str] | str | None


class JobChanges(FileJobChanges, total=False):
    """What can be changed of a job."""

    returns: str | None
    arguments: Mapping[str, str | int | float]
    environment: str | None
    group_complete: str | None
    group_quiet: float | str | timedelta | None


class JobKeywords(JobChanges, total=False):
    """Options of a new job."""

    outputs_to: str | None
    outputs_prefix: str | None
    group_by: str | None
    write: Write | Literal["upsert", "append"]


class LoadKeywords(FileJobChanges, total=False):
    """Options of a new job that loads files."""

    format: FileFormat | str | None
    reader_options: Mapping[str, str | int | float]
    header: bool
    delimiter: str | None
    encoding: str
    skip_rows: int | None
    skip_footer: int
    comment_prefix: str | None
    null_values: Sequence[str] | str
    quote: str
    escape: str | None
    decimal: str
    date_format: str | None
    timestamp_format: str | None
    records: str | None
    entries: Sequence[str] | str
    schema: str | None
    infer_types: bool
    new_columns: NewColumns | Literal["add", "rescue", "fail"]
    max_bad_rows: int | str | None
    write: Write | Literal["upsert", "append"]


class SourceChanges(TypedDict, total=False):
    """What can be changed of a source."""

    retention_policy: str | timedelta | None
    comment: str | None
