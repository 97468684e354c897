"""Volumes and tables as datasets, named as OpenLineage names files and object stores."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import attr
from openlineage.client import facet_v2
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.generated.base import DatasetFacet

from volstream.base.model.work import Batch, Plan
from volstream.files.providers import provider_of
from volstream.tables.delta.log import DeltaLog
from volstream.tables.delta.opened import schema_at


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
    provider = provider_of(location)  # the specification names buckets like this, of those stores of ours that it has
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
