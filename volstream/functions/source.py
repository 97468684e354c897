"""The source of per-file functions: its parts, how it is shipped, and how executors import it.

Code that is not installed is shipped as source with the job, so executors need only the function's installed
dependencies. Functions are found in ``finding``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import shutil
import stat
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from volstream.errors import FunctionLoadError
from volstream.functions.processes import Environment

#: Folder for shipped functions, shared by all of the user's processes.
_SHIPPED = Path(tempfile.gettempdir()) / f"volstream-functions-{os.getuid()}"

#: Shipped code that no process has used for this long is removed. It is shipped again when needed.
_UNUSED_SECONDS = 30 * 86400.0

OWN = __name__.partition(".")[0]

#: Prefix of the unique names of functions' own modules.
_ENTRY = "_volstream_"


#: The file or module that this thread is importing for its function, if any.
_importing: ContextVar[str | None] = ContextVar("importing", default=None)

#: The folder from which this thread imports modules for a function, if it does, and the source found below
#: it: a file may have been saved since.
_found: ContextVar[tuple[str, Mapping[str, bytes]] | None] = ContextVar("found", default=None)


@dataclass
class _Places:
    """The entries of ``sys.path`` for a function's code.

    Attributes:
        own: the function's folders, which volstream adds.
        front, back: entries that the code itself has added before its folder, and behind. Other functions
            must not import from there.
        users: number of blocks that need them now.
        before: the path without them.
        during: the path with them.
    """

    own: Sequence[str]
    front: list[str] = field(default_factory=list)
    back: list[str] = field(default_factory=list)
    users: int = 0
    before: Sequence[str] = ()
    during: Sequence[str] = ()

    def enter(self) -> None:
        """Adds the places, unless another block has."""
        if not self.users:
            self.before = [*sys.path]
            self.during = sys.path[:] = [*self.front, self.own[0], *self.before, *self.back, *self.own[1:]]
        self.users += 1

    def leave(self, others: Collection[str]) -> None:
        """Removes the places unless another block needs them, and remembers the code's additions. Keeps
        ``others``."""
        self.users -= 1
        if self.users:
            return
        if sys.path == self.during:  # nearly always
            sys.path[:] = self.before
            return
        remaining, front, path = Counter(self.before), True, list[str]()
        for place in sys.path:
            front &= place != self.own[0]
            if remaining[place] or place in others:
                remaining[place] -= 1
                path.append(place)
            elif place not in (*self.own, *self.front, *self.back):
                (self.front if front else self.back).append(place)
        sys.path[:] = path


@dataclass(frozen=True)
class _Imported:
    """The state of a process's imports for functions.

    Attributes:
        folders: the folder from which each function was imported, by fingerprint. Installed functions have
            none.
        served: the fingerprint of the latest function of each folder. The latest folder is last.
        modules: names of the modules that functions imported.
        places: the ``sys.path`` entries of each function while it may import, by fingerprint.
        for_children: folders in which child processes of a function find its own module, whose name is
            unique; by fingerprint.
    """

    folders: dict[str, str] = field(default_factory=dict)
    served: dict[str, str] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    places: dict[str, _Places] = field(default_factory=dict)
    for_children: dict[str, str] = field(default_factory=dict)


#: The state of this process, whose ``sys.modules`` all functions share.
_imported = _Imported()

#: Several threads may call one function.
_path = threading.Lock()


@dataclass(frozen=True)
class FunctionSource:
    """A function with its source, which can be imported anywhere.

    Attributes:
        module: dotted name of the function's module.
        attribute: the function's name in the module.
        root: folder searched on the original machine, or None if the module is installed.
        files: source by path below ``root``. Empty if the module is installed.
        fingerprint: hash of the source, which changes with every edit.
        behaviour: hash of the source without comments and layout. It tells whether code has changed.
        environment: where the function runs. By default, with volstream's own packages.
        reads: some of the files are not source, but files that the function declares to read.
    """

    module: str
    attribute: str
    root: str | None
    files: Mapping[str, bytes]
    fingerprint: str
    behaviour: str
    environment: Environment | None = field(default=None, kw_only=True)
    reads: bool = field(default=False, kw_only=True)

    def is_that_of(self, fingerprint: str | None) -> bool:
        """Returns whether a job with this fingerprint has this code. In the first release it was the hash of
        the source."""
        return fingerprint in (self.behaviour, self.fingerprint)

    @cached_property
    def tops(self) -> frozenset[str]:
        """Names of the function's top-level modules, except modules of the standard library and of
        volstream."""
        names = {name.partition("/")[0].removesuffix(".py") for name in self.files if name.endswith(".py")}
        return frozenset(names - sys.stdlib_module_names - {OWN})

    @property
    def place(self) -> str:
        """The path of the function's file, or the name of its installed module."""
        return self.module if self.root is None else f"{Path(self.root) / self.module.replace('.', '/')}.py"

    def folder(self) -> AbstractContextManager[object]:
        """Returns a block in whose calls relative paths start at the folder of the function's own code.

        Code that is installed, stored in the catalog, or not on this machine has no such folder. An empty one
        is created instead.
        """
        if self.root is not None and os.access(self.root, os.R_OK | os.X_OK):
            return _inside(self.root)
        return _in_empty_folder()

    def load(self) -> Callable[..., Any]:
        """Imports the function.

        Raises:
            FunctionLoadError: the module cannot be imported, or lacks the callable.
        """
        with importing(self):
            module = self._import()
        function = getattr(module, self.attribute, None)
        if not callable(function):
            kind = "has no" if function is None else "has no callable"
            raise FunctionLoadError(f"The module {self.module} {kind} {self.attribute!r}.", _nearby(module))
        if getattr(function, "__volstream_reads__", ()) and not self.reads:
            raise FunctionLoadError(
                f"{self.attribute} declares files that it reads, but {self.place} does not define it at its top.",
                "Name the file that defines it, and define it there by def or class, not in an if or by another name.",
            )
        return function  # type: ignore[no-any-return]  # getattr of a module

    def _import(self) -> ModuleType:
        if self.root is None:
            return importlib.import_module(self.module)
        self.unpacked()
        entry = f"{self.module}.py"
        if entry not in self.files:
            with self.importable():
                return importlib.import_module(self.module)
        path = Path(_imported.folders[self.fingerprint]) / entry
        # Identical files in two folders are two modules: each may read files beside it.
        where = hashlib.sha256(str(path.parent).encode("utf-8", "surrogatepass")).hexdigest()
        name = f"{_ENTRY}{self.module}_{self.fingerprint[:12]}_{where[:8]}"
        self._name_for_children(name, path)
        with self.importable():
            return _import_file(path, name)

    def _name_for_children(self, name: str, path: Path) -> None:
        """Makes the function's module importable by its unique name in child processes, which get
        ``sys.path`` and unpickle names."""
        code = f"__file__ = {str(path)!r}\nexec(compile(open(__file__, 'rb').read(), __file__, 'exec', dont_inherit=True))"
        # There may be no safe place, and most functions start no such processes.
        with suppress(OSError, FunctionLoadError):
            _imported.for_children[self.fingerprint] = str(_unpacked(name, {f"{name}.py": code.encode()}))

    def unpacked(self) -> None:
        """Makes the function's modules importable by :meth:`importable`, in place if they exist here, else
        from copies."""
        folder = (
            self.root
            if self.root is not None and _has(Path(self.root), self.files)
            else str(_unpacked(self.fingerprint, self.files))
        )
        _imported.folders[self.fingerprint] = folder
        # Not invalidate_caches(): every archive in the path of a Spark worker would re-read its directory,
        # 0.2 s each.
        for place in {Path(folder), *(Path(folder, name).parent for name in self.files)}:
            sys.path_importer_cache[str(place)] = FileFinder(str(place), *_LOADERS)

    @contextmanager
    def importable(self) -> Iterator[None]:
        """In the block, ``import`` finds modules beside the loaded function, for imports in its body."""
        folder = _imported.folders.get(self.fingerprint)
        if folder is None:  # installed
            yield
            return
        _forget_others(self, folder)
        child_folder = _imported.for_children.get(self.fingerprint)
        places = _imported.places.setdefault(self.fingerprint, _Places([folder]))
        with _path:
            places.own = [folder] if child_folder is None else [folder, child_folder]
            places.enter()
        count = len(sys.modules)
        token = _found.set((f"{folder}{os.sep}", self.files))
        try:
            yield
        finally:
            _found.reset(token)
            with _path:
                places.leave({place for use in _imported.places.values() if use is not places and use.users for place in use.own})
            if (new := len(sys.modules) - count) > 0:
                latest = islice(reversed(sys.modules), new)
                _imported.modules.update(name for name in latest if not name.startswith(_ENTRY))


def _has(root: Path, files: Mapping[str, bytes]) -> bool:
    """Returns whether a folder has the files, unchanged.

    In the original folder, data files beside them are then available, too.
    """
    try:
        return all((root / name).read_bytes() == content for name, content in files.items())
    except OSError:
        return False


def _unpacked(name: str, files: Mapping[str, bytes]) -> Path:
    """Returns a folder with the files for all of the user's processes on this host. Raises OSError,
    FunctionLoadError."""
    own_folder(_SHIPPED)
    folder = _SHIPPED / name
    # It may be missing, emptied by a power cut, or incomplete after a clean-up of temporary folders.
    if not _has(folder, files):
        temporary = Path(tempfile.mkdtemp(dir=_SHIPPED))
        for path, content in files.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_bytes(content)
        try:
            temporary.rename(folder)
        except OSError:  # another worker was first, or the folder is damaged
            if not _has(folder, files):
                with suppress(OSError):  # another worker repairs it
                    folder.rename(tempfile.mkdtemp(dir=_SHIPPED))
                    temporary.rename(folder)
            shutil.rmtree(temporary, ignore_errors=True)
            if not _has(folder, files):
                raise
    os.utime(folder)  # marks it as used
    return folder


@contextmanager
def importing(source: FunctionSource) -> Iterator[None]:
    """Marks the block as importing the user's code. Raises FunctionLoadError if the import fails."""
    token = _importing.set(source.place)
    try:
        yield
    except FunctionLoadError:  # from check_not_imported
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise _load_error(source, error) from error
    finally:
        _importing.reset(token)


def named_like(value: Any) -> Any:
    """Returns what the module of a function or class has under its qualified name, or None."""
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found


def folder_of(source: FunctionSource) -> str | None:
    """Returns the folder from which this process has imported a function, or None if it is installed."""
    return _imported.folders.get(source.fingerprint)


def own_folder(path: Path) -> None:
    """Creates a folder at a predictable path, or checks that it belongs to the user and only the user can
    write to it.

    Raises:
        FunctionLoadError: another user controls it, so its contents must not be run.
    """
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise FunctionLoadError(
            f"{path} belongs to another user, or others can write to it, so no code is run from it.",
            "Remove it, or set TMPDIR to a folder of your own.",
        )


def forget_unused() -> None:
    """Removes shipped code from this host that was not used for a month."""
    if not _SHIPPED.is_dir():
        return
    for folder in _SHIPPED.iterdir():
        with suppress(OSError):  # another process removed it first
            if time.time() - folder.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(folder)


def check_not_imported() -> None:
    """Raises FunctionLoadError if this code runs because its file is being imported for a function.

    Otherwise a program would run again inside itself, and on every worker.
    """
    if (place := _importing.get()) is not None:
        raise FunctionLoadError(
            f"{place} opens a session when it is imported, which happens wherever its function runs.",
            'Put that under: if __name__ == "__main__":',
        )


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    """Runs a block in a folder, then returns to the previous folder.

    If Spark has deleted that, every later call in this process would fail, so it returns to the folder for
    temporary files.
    """
    try:
        before = os.getcwd()
    except FileNotFoundError:
        before = tempfile.gettempdir()
    os.chdir(folder)
    try:
        yield
    finally:
        try:
            os.chdir(before)
        except FileNotFoundError:
            os.chdir(tempfile.gettempdir())


@contextmanager
def _in_empty_folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="volstream-", ignore_cleanup_errors=True) as folder, _inside(folder):
        yield


def is_installed(origin: Path) -> bool:
    paths = sysconfig.get_paths()
    places = {Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(place in origin.resolve().parents for place in places)


def _import_file(path: Path, name: str) -> ModuleType:
    """Imports a file under a unique name, so that ``json.py`` or an edited version does not conflict with
    another module."""
    if name in sys.modules:
        return sys.modules[name]
    loader = _SourceLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None, "a loader always has a spec"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and typing look up their module during execution
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _SourceLoader(SourceFileLoader):
    """Compiles the source that was found, or else the current one.

    Python's own loader would accept bytecode of an earlier version with the same size and modification
    second.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        folder, files = _found.get() or ("", {})
        found = files.get(path.removeprefix(folder))
        code: CodeType = self.source_to_code(self.get_data(path) if found is None else found, path)
        return code


_LOADERS = ((ExtensionFileLoader, EXTENSION_SUFFIXES), (_SourceLoader, SOURCE_SUFFIXES))


def _forget_others(source: FunctionSource, folder: str) -> None:
    """Unloads modules of other functions: a worker serves many jobs, and must not take them for this
    function's modules.

    Keeps installed modules, and those of the standard library and volstream, on which this process relies.
    """
    if _imported.served and next(reversed(_imported.served.items())) == (folder, source.fingerprint):
        return
    former = tuple(f"{each}{os.sep}" for each in _imported.served)
    _imported.served.pop(folder, None)
    _imported.served[folder] = source.fingerprint
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in source.tops or (name in _imported.modules and _is_below(module, former)):
            _imported.modules.discard(name)
            del sys.modules[name]


def _is_below(module: ModuleType, folders: tuple[str, ...]) -> bool:
    """Returns whether a module that is not installed was imported from below one of the folders, which end in
    a separator."""
    places = [getattr(module, "__file__", None) or "", *map(str, getattr(module, "__path__", ()))]
    return any(f"{place}{os.sep}".startswith(folders) and not is_installed(Path(place)) for place in places)


#: Packages of functions that are called otherwise than their modules.
_PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "fitz": "pymupdf",
    "magic": "python-magic",
    "pptx": "python-pptx",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def to_install(module: str, source: FunctionSource) -> str:
    """Returns how a function gets a module that is missing."""
    top = module.partition(".")[0]
    package = _PACKAGES.get(top, top)
    if source.environment is None:
        return f"Install {package} into volstream's environment, or give the function an environment of its own (--environment)."
    return f"Add {package} to {source.environment.name}: the function has only the packages there."


def _load_error(source: FunctionSource, error: BaseException) -> FunctionLoadError:
    """Returns the error with its place in the user's file, without frames of the import system."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    remedy = to_install(error.name or "", source) if isinstance(error, ModuleNotFoundError) else ""
    return FunctionLoadError(f"{source.place} cannot be imported: {type(error).__name__}: {error}{where}.", remedy)


def _nearby(module: ModuleType) -> str:
    own = [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return f"It defines: {', '.join(sorted(own))}." if own else ""
