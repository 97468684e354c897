"""The run events of attempts, from the catalog's facts."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from importlib.metadata import version
from typing import Any
from urllib.parse import unquote, urlsplit

import attr
from openlineage.client import facet_v2
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState, set_producer
from openlineage.client.generated.base import DatasetFacet, RunFacet

from volstream.base import definitions
from volstream.base.config import environment
from volstream.base.definitions import DynamicJob, FileJob, SourceKind, StatementJob
from volstream.base.model.work import Batch, Intent, Plan
from volstream.catalog.consumptions import BatchOutcome
from volstream.files.providers.base import provider_of
from volstream.functions.pickled import source_of
from volstream.home import Home
from volstream.tables.delta import places
from volstream.tables.delta.log import DeltaLog
from volstream.tables.delta.opened import schema_at
from volstream.tables.delta.places import reached

# Volumes and tables as datasets, named as OpenLineage names files and object stores.


@attr.define
class RangeFacet(DatasetFacet):
    """The versions that a batch's plan covers: of a volume its refreshes, of a table Delta's.

    Attributes:
        fromVersion: excluded; None: from the beginning.
        toVersion: included.
        initial: the rows present at ``toVersion``, not changes.
    """

    stream: str
    fromVersion: int | None  # noqa: N815  # as in OpenLineage's own facets, here and below
    toVersion: int  # noqa: N815
    initial: bool

    @staticmethod
    def _get_schema() -> str:
        return "urn:volstream:openlineage:range:1"


def name_of(location: str) -> tuple[str, str]:
    """Returns the namespace and the name of what is at a location, a path or a URI."""
    parts = urlsplit(location)
    if parts.scheme in ("", "file"):
        path = parts.path if parts.scheme == "" else unquote(parts.path)
        return "file", path.rstrip("/") or "/"
    key = parts.path.strip("/") or "/"
    # The specification names buckets like this, of those stores of ours that it has.
    provider = provider_of(location)
    return f"{provider.scheme if provider else parts.scheme}://{parts.netloc}", key


def input_of(location: str, facets: dict[str, Any], batch: Batch, *, of_files: bool) -> InputDataset:
    """Returns what a batch reads."""
    namespace, name = name_of(location)
    statistics = facet_v2.input_statistics_input_dataset.InputStatisticsInputDatasetFacet(size=batch.bytes, fileCount=batch.files)
    return InputDataset(namespace, name, facets=facets, inputFacets={"inputStatistics": statistics} if of_files else {})


def range_facets(plan: Plan, stream: str) -> dict[str, Any]:
    """Returns the facets of the versions that a plan reads."""
    version = facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(plan.to_version))
    covered = RangeFacet(stream, plan.from_version, plan.to_version, plan.initial)
    return {"version": version, "volstream_range": covered}


def table_facets(location: str, namespace: str, name: str) -> dict[str, Any]:
    """Returns the facets of a table: its columns, its storage, and its name in the home."""
    symlink = facet_v2.symlinks_dataset.Identifier(namespace=namespace, name=name, type="TABLE")
    facets: dict[str, Any] = {
        "storage": facet_v2.storage_dataset.StorageDatasetFacet(storageLayer="delta", fileFormat="parquet"),
        "symlinks": facet_v2.symlinks_dataset.SymlinksDatasetFacet(identifiers=[symlink]),
    }
    schema = schema_at(location)
    if schema is not None:
        field = facet_v2.schema_dataset.SchemaDatasetFacetFields
        fields = [field(name=column, type=schema.sql_type(column)) for column in schema.columns]
        facets["schema"] = facet_v2.schema_dataset.SchemaDatasetFacet(fields=fields)
    return facets


def output_of(location: str, facets: dict[str, Any], *, attempt: str, after: int, rows: int | None) -> OutputDataset:
    """Returns what an attempt writes.

    Args:
        attempt, after: it is committed by this attempt, in a version after this one, which the log tells.
        rows: number of rows written; None: it is not committed.
    """
    namespace, name = name_of(location)
    if rows is None:
        return OutputDataset(namespace, name, facets=facets)
    commits = DeltaLog(location).commits_after(after)
    version = next((commit.version for commit in commits if commit.metadata.get("attempt") == attempt), None)
    if version is not None:
        facet = facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=str(version))
        facets = {**facets, "version": facet}
    statistics = facet_v2.output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(rowCount=rows)
    return OutputDataset(namespace, name, facets=facets, outputFacets={"outputStatistics": statistics})


#: Identifies what made an event.
PRODUCER = f"urn:volstream:{version('volstream')}"

set_producer(PRODUCER)


@attr.define
class BatchFacet(RunFacet):
    """The batch that a run is an attempt at."""

    batch: str
    number: int
    files: int
    removals: int
    failed: int | None

    @staticmethod
    def _get_schema() -> str:
        return "urn:volstream:openlineage:batch:1"


class Events:
    """Makes the events of one home.

    Args:
        namespace: of its jobs; None: ``OPENLINEAGE_NAMESPACE``, else ``volstream``.
    """

    def __init__(self, home: Home, namespace: str | None) -> None:
        self._home = home
        self._namespace = namespace or environment("OPENLINEAGE_NAMESPACE") or "volstream"

    def of(self, when: datetime, intent: Intent, end: BatchOutcome | str | None) -> RunEvent | None:
        """Returns the event of an attempt's step; None if the attempt is of no job, or the job was dropped.

        Args:
            end: None: it begins; else how it was committed, or why it was not.
        """
        catalog = self._home.catalog
        batches = catalog.reports.batches_in(intent.attempt)
        job_id = next((batch.job_id for batch in batches if batch.job_id is not None), None)
        job = None if job_id is None else catalog.jobs.by_id(job_id)
        if job is None:
            return None
        outcome = end if isinstance(end, BatchOutcome) else None
        state = RunState.START if end is None else RunState.FAIL if outcome is None else RunState.COMPLETE
        with reached(self._home.warehouse):
            inputs, outputs = list(self._inputs(batches)), list(self._outputs(intent, job, outcome))
        return RunEvent(
            eventType=state,
            eventTime=when.isoformat(),
            run=Run(str(uuid.UUID(intent.attempt)), facets=_run_facets(batches, end)),
            job=Job(self._namespace, str(job.name), facets=_job_facets(job)),
            inputs=inputs,
            outputs=outputs,
        )

    def _inputs(self, batches: list[Batch] | Any) -> Iterator[InputDataset]:
        catalog = self._home.catalog
        plans = catalog.reports.plans(batch.plan_id for batch in batches)
        for batch in batches:
            plan, stream = plans.get(batch.plan_id), catalog.streams.by_id(batch.stream_id)
            if plan is None or stream is None:
                continue
            facets = range_facets(plan, str(stream.name))
            if stream.source_kind is SourceKind.VOLUME:
                volume = catalog.volumes.by_id(stream.source_id)
                if volume is not None:
                    yield input_of(volume.location, facets, batch, of_files=True)
                continue
            location, name = places.table_location(self._home.warehouse, stream.source_name), str(stream.source_name)
            facets |= table_facets(location, self._namespace, name)
            yield input_of(location, facets, batch, of_files=False)

    def _outputs(self, intent: Intent, job: definitions.Job, outcome: BatchOutcome | None) -> Iterator[OutputDataset]:
        for target in intent.targets:
            facets = table_facets(target.location, self._namespace, str(job.into))
            rows = None if outcome is None else outcome.rows
            yield output_of(target.location, facets, attempt=intent.attempt, after=target.version, rows=rows)


def _run_facets(batches: Any, end: BatchOutcome | str | None) -> dict[str, Any]:
    first = batches[0]
    engine = facet_v2.processing_engine_run.ProcessingEngineRunFacet(version=version("volstream"), name="volstream")
    failed = end.failed if isinstance(end, BatchOutcome) else None
    facets: dict[str, Any] = {
        "processing_engine": engine,
        "volstream_batch": BatchFacet(first.id, first.number, first.files, first.removals, failed),
    }
    if isinstance(end, str):
        facets["errorMessage"] = facet_v2.error_message_run.ErrorMessageRunFacet(message=end, programmingLanguage="python")
    return facets


def _job_facets(job: definitions.Job) -> dict[str, Any]:
    facets: dict[str, Any] = {}
    if job.comment:
        facets["documentation"] = facet_v2.documentation_job.DocumentationJobFacet(description=job.comment)
    match job:
        case FileJob():
            kind = "LOAD" if job.loads else "FUNCTION"
            if kind == "FUNCTION":
                if job.pickled is None:
                    facets["sourceCodeLocation"] = _code(job)
                elif (text := source_of(job.pickled).text) is not None:
                    facets["sourceCode"] = facet_v2.source_code_job.SourceCodeJobFacet(language="python", sourceCode=text)
        case StatementJob() | DynamicJob():
            kind, text = ("SQL", job.statement) if isinstance(job, StatementJob) else ("DYNAMIC_TABLE", job.query)
            facets["sql"] = facet_v2.sql_job.SQLJobFacet(query=text, dialect="spark")
        case _:
            raise AssertionError(job)
    facets["jobType"] = facet_v2.job_type_job.JobTypeJobFacet(processingType="BATCH", integration="VOLSTREAM", jobType=kind)
    return facets


def _code(job: FileJob) -> Any:
    """Returns where a function is: its file, or the module that is imported."""
    place, _, _ = job.function.rpartition(":")
    module = place.replace(".", "/") + ".py"
    if place.startswith("/"):
        url, path = f"file://{place}", place
    elif job.search_path is not None:
        url, path = f"file://{job.search_path}/{module}", module
    else:
        url, path = f"python:{place}", module
    return facet_v2.source_code_location_job.SourceCodeLocationJobFacet(type="file", url=url, path=path, version=job.fingerprint)
