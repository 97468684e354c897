"""Packages of one module that say their version, and environments with them; nothing is downloaded."""

from __future__ import annotations

import base64
import hashlib
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path


def wheel(folder: Path, version: str, name: str = "clasher") -> Path:
    """Builds the wheel of a package whose ``VERSION`` is its version."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for name_, text in {**files, f"{about}/RECORD": f"{record}{about}/RECORD,,\n"}.items():
            archive.writestr(name_, text)
    return path


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def environment(folder: Path, **modules: str) -> Path:
    """Makes a virtual environment that has modules, given as source text."""
    venv.create(folder, symlinks=True)
    places = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for name, code in modules.items():
        (places / f"{name}.py").write_text(code)
    return folder


#: Stands for uv: makes an environment without packages, notes each command in ``$UV_NOTES``, and in ``$UV_HANG`` its process
#: before it hangs.
UV = f"""#!/bin/sh
echo "$1 $2" >> "$UV_NOTES"
for last; do :; done
if [ "$1" = venv ]; then
    mkdir -p "$last/bin"
    ln -s {sys.executable} "$last/bin/python"
    if [ -n "$UV_HANG" ]; then echo $$ > "$UV_HANG"; exec sleep 120; fi
fi
if [ "$2" = compile ]; then
    while [ "$1" != -o ]; do shift; done
    echo "a==1" > "$2"
fi
"""


def stand_in(folder: Path) -> Path:
    """Makes a folder for ``PATH`` with a stand-in for uv."""
    folder.mkdir()
    (folder / "uv").write_text(UV)
    (folder / "uv").chmod(0o755)
    return folder
