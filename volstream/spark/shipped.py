"""What sessions bring to a Spark that others started, whose workers need not have volstream: its own code, and functions'
environments.

The home's engine needs none of this: its workers run this interpreter.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

#: Every file of the archive has the earliest time that zip can store, so that equal code gives equal archives.
_TIME = (1980, 1, 1, 0, 0, 0)


def bring_code(session: SparkSession) -> None:
    """Makes volstream importable in the workers of a session; there it comes before an installed one, which may be older."""
    session.addArtifact(_code(), pyfile=True)


def bring_folder(session: SparkSession, archive: Path, name: str) -> None:
    """Makes workers of a session unpack an archive, where ``SparkFiles.get`` finds it by this name."""
    session.addArtifact(f"{archive}#{name}", archive=True)


@functools.cache
def _code() -> str:
    """Returns the path of an archive of the package, which lives as long as this process."""
    root = Path(__file__).parents[1]
    folder = tempfile.mkdtemp(prefix="volstream-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    draft, hashed = Path(folder, "draft"), hashlib.sha256()
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in sorted(root.rglob("*.py")):
            name, code = f"{root.name}/{path.relative_to(root)}", path.read_bytes()
            archive.writestr(zipfile.ZipInfo(name, _TIME), code, zipfile.ZIP_DEFLATED)
            hashed.update(name.encode() + b"\0" + code)
    return str(draft.rename(Path(folder, f"volstream-{hashed.hexdigest()[:16]}.zip")))
