"""DataChain: a dataset of the files of a folder, kept with ``delta``. Runs in its own environment.

    DATACHAIN_ROOT_DIR=STATE python -m benchmarks.others.with_datachain update FOLDER
    DATACHAIN_ROOT_DIR=STATE python -m benchmarks.others.with_datachain export ROWS.parquet

It must run in the checkout, where its processes look for modules. Deleted files stay in its dataset. ``export`` writes the
rows of all files into a file.
"""

import sys
from pathlib import Path

import datachain as dc

from benchmarks.functions import summary_of
from benchmarks.raw import PROCESSES


def _process(file: dc.File) -> tuple[str, int, str]:
    summary = summary_of(file.read())
    return summary.sha256, summary.words, summary.first_line


def _update(folder: Path) -> None:
    files = dc.read_storage(
        folder.as_uri(), update=True, delta=True, delta_on="file.path", delta_compare=["file.size", "file.last_modified"]
    )
    results = files.settings(parallel=PROCESSES).map(_process, output={"sha256": str, "words": int, "first_line": str})
    results.save("summaries")


def _export(rows: Path) -> None:
    dc.read_dataset("summaries").select("file.path", "sha256", "words", "first_line").to_parquet(rows)


if __name__ == "__main__":
    if sys.argv[1] == "export":
        _export(Path(sys.argv[2]))
    else:
        _update(Path(sys.argv[2]))
