"""The files that a job's function made, compared with the volume that has them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from volstream.base.config import Settings
from volstream.base.definitions import FileJob
from volstream.base.model.names import Name
from volstream.base.model.paths import Selection
from volstream.catalog import Catalog
from volstream.errors import InvalidValueError
from volstream.functions.output import STAGING
from volstream.jobs.outputs import EXAMPLES, files_listed, finish, output_store, target_of


@dataclass(frozen=True)
class ComparedOutputs:
    """What is in the volume of a job's outputs, compared with what the rows of its table name.

    Attributes:
        count: number of outputs that rows name.
        lost: the files whose rows name an output that is missing, or that another writer changed.
        unnamed: number of files in the job's folder of the volume that no row names.
        examples: paths of some of these.
    """

    count: int
    lost: Collection[str]
    unnamed: int
    examples: Sequence[str]


def compared_outputs(catalog: Catalog, settings: Settings, job: FileJob) -> ComparedOutputs:
    """Lists the volume of a job's outputs. The caller holds the job's lease; all outputs of the table are in memory.

    Raises:
        InvalidValueError: the job makes no files.
        NotFoundError: the volume was dropped.
        StorageError: the listing failed.
    """
    if job.outputs_to is None:
        raise InvalidValueError(f"The job {job.name} makes no files.", "Leave out --outputs.")
    finish(catalog, settings, str(job.into))
    volume = catalog.volumes.get(Name.parse(job.outputs_to))
    missing = {output.path: output for output in catalog.outputs.live(str(job.into)) if output.volume_id == volume.id}
    count, unnamed = len(missing), 0
    lost, examples = set[str](), list[str]()
    store, target = output_store(volume, catalog, settings), target_of(job)
    for file in files_listed(store.list(target.prefix, Selection(ignores=(STAGING,)))):
        output = missing.pop(file.relative_path, None)
        if output is None:
            unnamed += 1
            examples += [file.relative_path] if unnamed <= EXAMPLES else []
        elif output.etag != file.etag:
            lost.add(output.source)
    lost |= {output.source for output in missing.values()}
    return ComparedOutputs(count, lost, unnamed, examples)
