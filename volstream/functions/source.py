"""Per-file functions: finds their source, fingerprints it, ships it, and imports it on executors.

A function is named ``file.py:func`` (which includes the modules beside the file) or ``pkg.mod:func``. Code that is not
installed is shipped as source with the job, so executors need only the function's installed dependencies.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import shutil
import stat
import sys
import sysconfig
import tempfile
import time
import traceback
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, chdir, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from itertools import islice
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from volstream.base.model.arguments import checked
from volstream.base.model.code import parsed
from volstream.base.model.text import like
from volstream.errors import FunctionLoadError, InvalidValueError
from volstream.functions.environment import Environment
from volstream.functions.hints import hints_of

#: Folder for shipped functions, shared by all of the user's processes.
_SHIPPED = Path(tempfile.gettempdir()) / f"volstream-functions-{os.getuid()}"

#: Shipped code that no process has started to use for this long is removed, and shipped again when needed.
_UNUSED_SECONDS = 30 * 86400.0

_OWN = __name__.partition(".")[0]

#: Folder from which each function was imported in this process, by fingerprint; without installed functions.
_folders: dict[str, str] = {}

#: Fingerprint of the latest function of each folder, the latest folder at the end; and modules that functions imported.
_served: dict[str, str] = {}
_brought: set[str] = set()

#: Folder in which children that a function starts afresh find its own module, whose name is unique; by fingerprint.
_for_children: dict[str, str] = {}

#: How the names of functions' own modules begin, which are unique.
_ENTRY = "_volstream_"


#: The file or module that this thread is importing for its function; None: it imports none.
_importing: ContextVar[str | None] = ContextVar("importing", default=None)

#: Files per call if a function takes a list of unspecified length.
_BATCH_SIZE = 64

#: Calls in flight per worker for a coroutine function that declares no number.
_OF_COROUTINES = 32

_F = TypeVar("_F", bound=Callable[..., Any])


@checked
def function(
    *, returns: object = None, batch_size: int | None = None, concurrency: int | None = None
) -> Callable[[_F], _F]:
    """Declares properties of a per-file function, or of a class whose instances are such functions, that annotations cannot.

    Args:
        returns: DDL such as ``label STRING, score DOUBLE``, a dataclass, or a PyArrow schema.
        batch_size: the function takes a list of at most this many files, and returns a list with one entry per file.
        concurrency: calls in flight in each worker: of a coroutine function on an event loop (default 32); of a plain function
            in threads, which must be thread-safe.
    """
    if concurrency is not None and concurrency < 1:
        raise InvalidValueError(f"A function cannot have {concurrency} calls in flight.", "Give concurrency=1 or more.")
    if batch_size is not None and batch_size < 1:
        raise InvalidValueError(f"A function cannot take {batch_size} files at once.", "Give batch_size=1 or more.")

    def declare(decorated: _F) -> _F:
        # Read by schema.of_function, batch_size_of and concurrency_of.
        if returns is not None:
            decorated.__volstream_returns__ = returns  # type: ignore[attr-defined]
        if batch_size is not None:
            decorated.__volstream_batch_size__ = batch_size  # type: ignore[attr-defined]
        if concurrency is not None:
            decorated.__volstream_concurrency__ = concurrency  # type: ignore[attr-defined]
        return decorated

    return declare


def batch_size_of(function: Callable[..., Any]) -> int | None:
    """Returns the number of files that the function takes at once; None: one file, not a list.

    It takes a list if :func:`function` says so, or if its first parameter is annotated as ``list[File]``.
    """
    declared: int | None = getattr(function, "__volstream_batch_size__", None)
    if declared is not None:
        return declared
    target: Any = function
    if not hasattr(target, "__code__"):  # a class, or a callable object
        target = target.__call__
    try:
        parameters = [*inspect.signature(target).parameters][isinstance(function, type) :]
    except (TypeError, ValueError):  # a built-in function
        return None
    first = hints_of(target).get(parameters[0]) if parameters else None
    return _BATCH_SIZE if typing.get_origin(first) in (list, Sequence) else None


def concurrency_of(function: Callable[..., Any]) -> int:
    """Returns the number of calls in flight that the function wants in each worker, by :func:`function` or default."""
    declared: int | None = getattr(function, "__volstream_concurrency__", None)
    target: Any = function if hasattr(function, "__code__") else function.__call__  # type: ignore[operator]
    waits = inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)
    return declared or (_OF_COROUTINES if waits else 1)


@dataclass(frozen=True)
class FunctionSource:
    """A function with the source that it needs, which can be imported anywhere.

    Attributes:
        module: dotted name of the function's module.
        attribute: the function's name in the module.
        root: folder searched on the original machine; None: the module is installed.
        files: source by path below ``root``; empty if the module is installed.
        fingerprint: hash of the source, which changes with every edit.
        environment: where it runs; None: with volstream's own packages.
    """

    module: str
    attribute: str
    root: str | None
    files: Mapping[str, bytes]
    fingerprint: str
    environment: Environment | None = field(default=None, kw_only=True)

    @cached_property
    def tops(self) -> frozenset[str]:
        """Names of the function's top-level modules, except those of the standard library and of volstream."""
        names = {name.partition("/")[0].removesuffix(".py") for name in self.files}
        return frozenset(names - sys.stdlib_module_names - {_OWN})

    @property
    def place(self) -> str:
        """The path of the function's file, or the name of its module if that is installed."""
        return self.module if self.root is None else f"{Path(self.root) / self.module.replace('.', '/')}.py"

    def folder(self) -> AbstractContextManager[object]:
        """Returns a block in whose calls relative paths begin at the folder of the function's own code, wherever they are made.

        Code that is installed, kept in the catalog, or not on this machine has no such folder: an empty one is made.
        """
        if self.root is not None and os.access(self.root, os.R_OK | os.X_OK):
            return chdir(self.root)
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
        return function  # type: ignore[no-any-return]  # getattr of a module

    def _import(self) -> ModuleType:
        if self.root is None:
            return importlib.import_module(self.module)
        self.unpacked()
        entry = f"{self.module}.py"
        if entry not in self.files:
            with self.importable():
                return importlib.import_module(self.module)
        path = Path(_folders[self.fingerprint]) / entry
        # Equal files of two folders are two modules: each may read what is beside it.
        where = hashlib.sha256(str(path.parent).encode("utf-8", "surrogatepass")).hexdigest()
        name = f"{_ENTRY}{self.module}_{self.fingerprint[:12]}_{where[:8]}"
        self._name_for_children(name, path)
        with self.importable():
            return _import_file(path, name)

    def _name_for_children(self, name: str, path: Path) -> None:
        """Makes the function's module importable by its unique name in children: they get ``sys.path``, and names to unpickle."""
        code = (
            f"__file__ = {str(path)!r}\nexec(compile(open(__file__, 'rb').read(), __file__, 'exec', dont_inherit=True))"
        )
        # There may be no place that is safe; most functions start no such children.
        with suppress(OSError, FunctionLoadError):
            _for_children[self.fingerprint] = str(_unpacked(name, {f"{name}.py": code.encode()}))

    def unpacked(self) -> None:
        """Makes the function's modules importable by :meth:`importable`: in place if they exist here, else from copies."""
        folder = (
            self.root
            if self.root is not None and _has(Path(self.root), self.files)
            else str(_unpacked(self.fingerprint, self.files))
        )
        _folders[self.fingerprint] = folder
        # Not invalidate_caches(): every archive in the path of a Spark worker would re-read its directory, 0.2 s each.
        for place in {Path(folder), *(Path(folder, name).parent for name in self.files)}:
            sys.path_importer_cache[str(place)] = FileFinder(str(place), *_LOADERS)

    @contextmanager
    def importable(self) -> Iterator[None]:
        """While the block runs, ``import`` finds modules beside the loaded function, for imports in the function's body."""
        folder = _folders.get(self.fingerprint)
        if folder is None:  # installed
            yield
            return
        _forget_others(self, folder)
        named = _for_children.get(self.fingerprint)
        added = [folder] if named is None else [folder, named]
        sys.path.insert(0, folder)
        sys.path.extend(added[1:])
        count = len(sys.modules)
        try:
            yield
        finally:
            for place in added:
                sys.path.remove(place)
            if (new := len(sys.modules) - count) > 0:
                latest = islice(reversed(sys.modules), new)
                _brought.update(name for name in latest if not name.startswith(_ENTRY))


def _has(root: Path, files: Mapping[str, bytes]) -> bool:
    """True if a folder has the files, unchanged. Of the original one, data files beside them are then available, too."""
    try:
        return all((root / name).read_bytes() == content for name, content in files.items())
    except OSError:
        return False


def _unpacked(name: str, files: Mapping[str, bytes]) -> Path:
    """Returns a folder with the files, for all of the user's processes on this host. Raises OSError, FunctionLoadError."""
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
    """Marks the block as importing the user's code; raises FunctionLoadError if that fails."""
    token = _importing.set(source.place)
    try:
        yield
    except FunctionLoadError:  # from check_not_imported
        raise
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise _load_error(source, error) from error
    finally:
        _importing.reset(token)


def own_folder(path: Path) -> None:
    """Creates a folder at a predictable path, or checks that it is the user's and that only the user can write to it.

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
    """Removes functions' code from this host that was not used for a month."""
    if not _SHIPPED.is_dir():
        return
    for folder in _SHIPPED.iterdir():
        with suppress(OSError):  # another process removed it first
            if time.time() - folder.stat().st_mtime > _UNUSED_SECONDS:
                shutil.rmtree(folder)


def find(text: str, search_path: str | None = None) -> FunctionSource:
    """Finds the source of ``file.py:func`` or ``pkg.mod:func``.

    Args:
        search_path: folder to search for modules that are not installed.

    Raises:
        FunctionLoadError: malformed, or no such file or module.
    """
    place, colon, attribute = text.rpartition(":")
    if not colon or not place or not attribute.isidentifier():
        raise FunctionLoadError(
            f"{text!r} does not name a function.",
            _defined(Path(text)) if text.endswith(".py") else "Write FILE.py:FUNCTION or package.module:FUNCTION.",
        )
    if place.endswith(".py"):
        return _from_file(Path(place), attribute)
    if not all(part.isidentifier() for part in place.split(".")):
        raise FunctionLoadError(
            f"{place!r} is neither a .py file nor a module.", "Write FILE.py:FUNCTION or pkg.mod:FUNCTION."
        )
    return _from_module(place, attribute, search_path)


def found_beside(module: str) -> Mapping[str, bytes]:
    """Returns the source of a top-level module or package, with the modules that it imports; empty if it is installed."""
    try:
        return _from_module(module, module, None).files
    except FunctionLoadError:  # it exists only in this process
        return {}


def check_not_imported() -> None:
    """Raises FunctionLoadError if this code runs because its file is being imported for a function.

    Otherwise a program would run again inside itself, and on every worker.
    """
    if (place := _importing.get()) is not None:
        raise FunctionLoadError(
            f"{place} opens a session when it is imported, as it is wherever its function runs.",
            'Put that under: if __name__ == "__main__":',
        )


def missing(text: str, search_path: str | None = None) -> str | None:
    """Returns why :func:`find` would not find a function's file or module; None: it exists. Reads no source."""
    place = text.rpartition(":")[0]
    try:
        if place.endswith(".py"):
            _file(Path(place))
        elif place.partition(".")[0] != _OWN:
            _, origin = _place(place, search_path)
            if not _is_installed(origin) and _module_file(origin, place) is None:
                return f"There is no module {place} in {origin.parent}."
    except FunctionLoadError as error:
        return error.message
    return None


def check_signature(function: Callable[..., Any], arguments: Mapping[str, str]) -> None:
    """Raises FunctionLoadError if a function cannot be called with a file and these arguments, or a class cannot be set up so.

    Accepts functions without an inspectable signature, such as some written in C.
    """
    if isinstance(function, type):
        if not any("__call__" in vars(base) for base in function.__mro__):
            raise FunctionLoadError(
                f"{function.__name__} is a class without __call__.", "Give it a method __call__(self, file)."
            )
        calls: list[tuple[Any, tuple[None, ...], Mapping[str, str], str]] = [
            (function, (), arguments, "set up"),
            (function.__call__, (None, None), {}, "called with a file"),
        ]
    else:
        calls = [(function, (None,), arguments, "called with a file")]
    for called, positional, named, what in calls:
        try:
            signature = inspect.signature(called)
        except (TypeError, ValueError):
            continue
        name = getattr(function, "__name__", type(function).__name__)
        keywords = [
            parameter.name for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD
        ]
        if len(keywords) == len(signature.parameters) and (unknown := sorted({*named} - {*keywords})):
            raise FunctionLoadError(
                f"{name} has no argument {unknown[0]!r}.",
                like(unknown[0], keywords) or f"It has {', '.join(keywords)}.",
            )
        try:
            signature.bind(*positional, **named)
        except TypeError as error:
            raise FunctionLoadError(
                f"{name}{signature} cannot be {what}: {error}.",
                "The function, or a class's __call__, takes the file first; the others are given by name: --arg name=value.",
            ) from None


@contextmanager
def _in_empty_folder() -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="volstream-", ignore_cleanup_errors=True) as folder, chdir(folder):
        yield


def absolute(text: str, directory: Path) -> str:
    """Returns ``text`` with an absolute path to its file; module names are unchanged."""
    place, _, attribute = text.rpartition(":")
    return f"{(directory / place).resolve()}:{attribute}" if place.endswith(".py") else text


def location_of(function: Callable[..., Any]) -> str | None:
    """Returns where a function can be imported from; None: it is not at the top of a file, or is in the program's own file,
    which importing would run again."""
    name = str(getattr(function, "__qualname__", ""))
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not function:
        return None
    try:
        file = inspect.getsourcefile(function)
    except TypeError:  # it is not written in Python
        return None
    return f"{file}:{name}" if file is not None and os.path.isfile(file) else None


def _from_file(path: Path, attribute: str) -> FunctionSource:
    path = _file(path)
    root = path.parent
    files: dict[str, bytes] = {}
    _collect(root, path.name, files)
    return FunctionSource(path.stem, attribute, str(root), files, _fingerprint(files))


def _defined(path: Path) -> str:
    """Returns a hint that lists what a file defines, without running the file."""
    tree = parsed(_content(_file(path)), str(path))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return f"Write {path}:FUNCTION." + (f" It defines: {', '.join(defined)}." if defined else "")


def _file(path: Path) -> Path:
    path = Path(os.path.expanduser(path))  # Path's own raises for an unknown user
    if not os.path.isfile(path):  # False also for a name that is too long
        raise FunctionLoadError(f"There is no file {path}.", "Correct the path, or bring the file back.")
    return path.resolve()


def _from_module(module: str, attribute: str, search_path: str | None) -> FunctionSource:
    top = module.partition(".")[0]
    if top == _OWN:  # executors have it, and its new version does not change the user's code
        return FunctionSource(module, attribute, None, {}, _fingerprint({module: b""}))
    spec, origin = _place(module, search_path)
    if _is_installed(origin):
        source = _module_file(origin, module)
        return FunctionSource(module, attribute, None, {}, _fingerprint({module: _content(source) if source else b""}))
    root = origin.parent.parent if spec.submodule_search_locations and spec.origin else origin.parent
    files: dict[str, bytes] = {}
    if spec.submodule_search_locations:
        for source in _modules(root / top):
            files[source.relative_to(root).as_posix()] = _content(source)
    else:
        _collect(root, f"{top}.py", files)
    if _module_file(origin, module) is None:
        raise FunctionLoadError(f"There is no module {module} in {root}.")
    return FunctionSource(module, attribute, str(root), files, _fingerprint(files))


def _place(module: str, search_path: str | None) -> tuple[ModuleSpec, Path]:
    """Returns the spec and the file or folder of a module's top-level package. Raises FunctionLoadError."""
    paths = ([search_path] if search_path else []) + sys.path
    spec = PathFinder.find_spec(module.partition(".")[0], paths)
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise FunctionLoadError(f"There is no module {module}.", "Install it, or run in the folder that contains it.")
    return spec, Path(spec.origin) if spec.origin else Path(next(iter(spec.submodule_search_locations or [])))


def _module_file(origin: Path, module: str) -> Path | None:
    """Returns the source file of ``module``, whose top-level package or module is at ``origin``."""
    parts = module.split(".")[1:]
    base = origin.parent if origin.name == "__init__.py" else origin
    if not parts:
        return origin if origin.suffix == ".py" else None
    candidates = (base.joinpath(*parts).with_suffix(".py"), base.joinpath(*parts, "__init__.py"))
    return next((path for path in candidates if os.path.isfile(path)), None)


def _is_installed(origin: Path) -> bool:
    paths = sysconfig.get_paths()
    places = {Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(place in origin.resolve().parents for place in places)


def _collect(root: Path, name: str, files: dict[str, bytes]) -> None:
    """Adds a file and, transitively, the modules and packages beside it that it imports."""
    if name in files:
        return
    files[name] = _content(root / name)
    try:
        tree = parsed(files[name], str(root / name))
    except SyntaxError as error:
        raise FunctionLoadError(f"{root / name} cannot be read: {error}.") from None
    for top in sorted(set(imported_by(tree))):
        if os.path.isfile(root / f"{top}.py"):
            _collect(root, f"{top}.py", files)
        elif os.path.isfile(root / top / "__init__.py"):
            for source in _modules(root / top):
                _collect(root, source.relative_to(root).as_posix(), files)


def _modules(package: Path) -> Iterator[Path]:
    """Yields the files of a package's modules, except dangling links, with which editors lock files."""
    return filter(os.path.isfile, sorted(package.rglob("*.py")))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FunctionLoadError(f"{path} cannot be read: {error.strerror}.") from None


def imported_by(tree: ast.AST) -> Iterator[str]:
    """Yields the top-level modules that source imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def _fingerprint(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()


def _import_file(path: Path, name: str) -> ModuleType:
    """Imports a file under a unique name, so that ``json.py`` or an edited version does not clash with another module."""
    if name in sys.modules:
        return sys.modules[name]
    loader = _SourceLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None, "of a loader there is one"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and typing look up their module during execution
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class _SourceLoader(SourceFileLoader):
    """Compiles the current source. Python's own loader would accept bytecode of an earlier version with the same size and
    modification second."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


_LOADERS = ((ExtensionFileLoader, EXTENSION_SUFFIXES), (_SourceLoader, SOURCE_SUFFIXES))


def _forget_others(source: FunctionSource, folder: str) -> None:
    """Unloads modules of other functions: a worker serves many jobs, and must not take them for this function's modules.

    Keeps modules of the standard library and of volstream, because everything else in this process relies on them, and installed
    ones.
    """
    if _served and next(reversed(_served.items())) == (folder, source.fingerprint):
        return
    former = tuple(f"{each}{os.sep}" for each in _served)
    _served.pop(folder, None)
    _served[folder] = source.fingerprint
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in source.tops or (name in _brought and _is_below(module, former)):
            _brought.discard(name)
            del sys.modules[name]


def _is_below(module: ModuleType, folders: tuple[str, ...]) -> bool:
    """True if a module that is not installed was imported from below one of the folders, which end in a separator."""
    places = [getattr(module, "__file__", None) or "", *map(str, getattr(module, "__path__", ()))]
    return any(f"{place}{os.sep}".startswith(folders) and not _is_installed(Path(place)) for place in places)


def _load_error(source: FunctionSource, error: BaseException) -> FunctionLoadError:
    """Returns the error with its place in the user's file, without frames of the import system."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    remedy = ""
    if isinstance(error, ModuleNotFoundError):
        remedy = (
            f"Install {error.name} into volstream's environment, or give the function an environment of its own "
            "(--environment)."
            if source.environment is None
            else f"Add the package of {error.name} to {source.environment.name}: the function has only the packages there."
        )
    return FunctionLoadError(f"{source.place} cannot be imported: {type(error).__name__}: {error}{where}.", remedy)


def _nearby(module: ModuleType) -> str:
    own = [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
    return f"It defines: {', '.join(sorted(own))}." if own else ""
