"""The lock files: ``make setup`` installs what pyproject.toml requires, and nothing without a checksum."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
GROUPS = PROJECT["dependency-groups"]
WANTED = [
    *PROJECT["project"]["dependencies"],
    # Java by pip is tried by the release check; set-up has the machine's.
    *(one for name, extra in PROJECT["project"]["optional-dependencies"].items() if name != "java" for one in extra),
    *GROUPS["dev"],
    *GROUPS["bench"],
]


def locked(name: str) -> dict[str, list[str]]:
    """The versions of each package in a lock file: one, or one for each platform."""
    found: dict[str, list[str]] = {}
    for line in (ROOT / name).read_text().replace("\\\n", " ").splitlines():
        package, version, rest = re.fullmatch(r"([A-Za-z0-9._-]+)==(\S+)(.*)", line).groups()  # type: ignore[union-attr]
        assert "--hash=sha256:" in rest, f"{package} has no checksum"
        found.setdefault(canonicalize_name(package), []).append(version)
    return found


@pytest.mark.parametrize(("name", "wanted"), [("requirements.lock", WANTED), ("requirements-build.lock", GROUPS["build"])])
def test_the_lock_has_what_pyproject_requires(name: str, wanted: list[str]) -> None:
    found = locked(name)
    for requirement in map(Requirement, wanted):
        versions = found[canonicalize_name(requirement.name)]
        assert all(version in requirement.specifier for version in versions), (requirement, versions)


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-build.lock"])
def test_the_lock_names_no_registry(name: str) -> None:
    text = (ROOT / name).read_text()
    assert not re.search(r"://|^-", text, re.MULTILINE)


def test_set_up_installs_nothing_without_a_checksum() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    install = re.search(r"^INSTALL := (.*)$", text, re.MULTILINE)
    assert install is not None
    recipe = text.partition(".venv/packages:")[2].partition("\n\n")[0].replace("$(INSTALL)", install[1])
    installs = [line for line in recipe.splitlines() if "pip install" in line]
    assert [
        (line.count("pip install"), line.count("--require-hashes"), re.findall(r"\S+\.lock", line)) for line in installs[:2]
    ] == [(1, 1, ["requirements-build.lock"]), (2, 2, ["requirements.lock", "requirements.lock"])]
    assert [("--no-deps" in line, line.split()[-2:]) for line in installs[2:]] == [(True, ["--editable", "."])]


def test_the_packages_of_azurite_have_checksums() -> None:
    folder = ROOT / "tests" / "azurite"
    wanted, packages = (json.loads((folder / name).read_text()) for name in ("package.json", "package-lock.json"))
    own, *others = packages["packages"].values()
    assert own["dependencies"] == wanted["dependencies"]
    assert all("integrity" in package for package in others)
