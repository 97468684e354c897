"""Versions of a job's code. Works without Arrow, for commands that only read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime

from volstream.base.config import Settings
from volstream.base.definitions import FileJob
from volstream.base.processes import user_name
from volstream.catalog import Catalog
from volstream.catalog.reports import CodeVersion
from volstream.functions.environments import EnvironmentStore
from volstream.functions.loading.options import INFERRED
from volstream.functions.pickled import PickledSource, code_of
from volstream.functions.source import FunctionSource

#: Maximum characters of a source that is kept.
_MAX_SOURCE = 1 << 20


def version_of(settings: Settings, job: FileJob, source: FunctionSource | None = None) -> CodeVersion:
    """Returns the current version of a job's code, without its number.

    Args:
        source: the function's code, looked up if not given.

    Raises:
        FunctionLoadError: the function does not exist any more.
    """
    source = code_of(job) if source is None else source
    environment = None
    if job.environment is not None:
        store = EnvironmentStore(settings.environments_directory)
        environment = store.id_of(job.environment) or job.environment
    arguments = {name: str(value) for name, value in job.arguments.items() if name != INFERRED}
    returns = "" if job.loads else job.returns  # a loader's columns come from its files
    parts = [source.behaviour, source.attribute, arguments, returns, environment]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
    return CodeVersion(
        job_id=job.id,
        digest=digest,
        function=str(job.function),
        arguments=arguments,
        returns=job.returns,
        environment=environment,
        source=_texts(source),
        made_by=user_name(),
        made_on=datetime.now(UTC),
    )


def may_have_older(catalog: Catalog, settings: Settings, job: FileJob) -> bool:
    """Returns whether a table of the job may have rows of older code, without reading it. Raises as
    :func:`version_of`."""
    versions = catalog.codes.versions(job.id)
    return len(versions) > 1 or (len(versions) == 1 and versions[0].digest != version_of(settings, job).digest)


def _texts(source: FunctionSource) -> Mapping[str, str] | None:
    if isinstance(source, PickledSource):
        return None if source.text is None else {source.attribute: source.text}
    if not source.files or sum(map(len, source.files.values())) > _MAX_SOURCE:
        return None
    return {path: content.decode("utf-8", "replace").replace("\0", "\\0") for path, content in source.files.items()}
