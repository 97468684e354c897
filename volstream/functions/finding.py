"""Finds the source of a function, ``FILE.py:FUNCTION`` or ``package.module:FUNCTION``, with its imported
modules."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import os
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from volstream.base.model.code import parsed
from volstream.base.model.units import format_size
from volstream.errors import FunctionLoadError
from volstream.functions.source import OWN, FunctionSource, is_installed

#: Functions that import a module by name.
_IMPORTING = ("importlib.import_module", "import_module", "__import__")

#: Maximum total size of the files that a function declares to read.
_MOST_READ = 16 << 20

_MODULE = re.compile(r"\.*\w+(\.\w+)*")


def find(text: str, search_path: str | None = None) -> FunctionSource:
    """Finds the source of ``file.py:func`` or ``pkg.mod:func``.

    Args:
        search_path: folder to search for modules that are not installed.

    Raises:
        FunctionLoadError: the text is malformed, or there is no such file or module.
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
        raise FunctionLoadError(f"{place!r} is neither a .py file nor a module.", "Write FILE.py:FUNCTION or pkg.mod:FUNCTION.")
    return _from_module(place, attribute, search_path)


def local_modules(module: str) -> Mapping[str, bytes]:
    """Returns the source of a top-level module or package, with its imported modules. Empty if it is
    installed."""
    try:
        return _from_module(module, module, None).files
    except FunctionLoadError:  # it exists only in this process
        return {}


def missing(text: str, search_path: str | None = None) -> str | None:
    """Returns why :func:`find` would not find a function's file or module, or None if it exists. Reads no
    source."""
    place = text.rpartition(":")[0]
    try:
        if place.endswith(".py"):
            _file(Path(place))
        elif place.partition(".")[0] != OWN:
            _, origin = _place(place, search_path)
            if not is_installed(origin) and _module_file(origin, place) is None:
                return f"There is no module {place} in {origin.parent}."
    except FunctionLoadError as error:
        return error.message
    return None


def absolute(text: str, directory: Path) -> str:
    """Returns ``text`` with an absolute path to its file; module names are unchanged."""
    place, _, attribute = text.rpartition(":")
    return f"{(directory / place).resolve()}:{attribute}" if place.endswith(".py") else text


def location_of(function: Callable[..., Any]) -> str | None:
    """Returns where a function can be imported from.

    Returns None if it is not at the top level of a file, or is in the program's main file, which an import
    would run again.
    """
    name = str(getattr(function, "__qualname__", ""))
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not function:
        return None
    try:
        file = inspect.getsourcefile(function)
    except TypeError:  # not written in Python
        return None
    return f"{file}:{name}" if file is not None and os.path.isfile(file) else None


def _from_file(path: Path, attribute: str) -> FunctionSource:
    path = _file(path)
    root = path.parent
    files = dict[str, bytes]()
    _collect(root, path.name, files)
    extras = _read_by(root, path.name, files[path.name], attribute)
    return FunctionSource(path.stem, attribute, str(root), {**files, **extras}, *_hashes(files, extras), reads=bool(extras))


def _defined(path: Path) -> str:
    """Returns a hint that lists what a file defines, without running the file."""
    tree = parsed(_content(_file(path)), str(path))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = [node.name for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    return f"Write {path}:FUNCTION." + (f" It defines: {', '.join(defined)}." if defined else "")


def _file(path: Path) -> Path:
    path = Path(os.path.expanduser(path))  # Path.expanduser raises an error for an unknown user
    if not os.path.isfile(path):  # False also for a name that is too long
        raise FunctionLoadError(f"There is no file {path}.", "Correct the path, or restore the file.")
    return path.resolve()


def _from_module(module: str, attribute: str, search_path: str | None) -> FunctionSource:
    top = module.partition(".")[0]
    if top == OWN:  # executors have volstream, and a new version of it does not change the user's code
        return FunctionSource(module, attribute, None, {}, *_hashes({module: b""}))
    spec, origin = _place(module, search_path)
    if is_installed(origin):
        source = _module_file(origin, module)
        return FunctionSource(module, attribute, None, {}, *_hashes({module: _content(source) if source else b""}))
    root = origin.parent.parent if spec.submodule_search_locations and spec.origin else origin.parent
    files: dict[str, bytes] = {}
    if spec.submodule_search_locations:
        for source in _modules(root / top):
            files[source.relative_to(root).as_posix()] = _content(source)
    else:
        _collect(root, f"{top}.py", files)
    target = _module_file(origin, module)
    if target is None:
        raise FunctionLoadError(f"There is no module {module} in {root}.")
    extras = _read_by(root, target.relative_to(root).as_posix(), _content(target), attribute)
    return FunctionSource(module, attribute, str(root), {**files, **extras}, *_hashes(files, extras), reads=bool(extras))


def _place(module: str, search_path: str | None) -> tuple[ModuleSpec, Path]:
    """Returns the spec of a module's top-level package, and its file or folder. Raises FunctionLoadError."""
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


def _collect(
    root: Path, name: str, files: dict[str, bytes], places: Sequence[str] = ("",), known: Mapping[str, bytes] | None = None
) -> None:
    """Adds a file and, transitively, the modules and packages that it imports from places, which are folders
    below the root.

    If ``known`` files are given, adds only these.
    """
    if name in files or (known is not None and name not in known):
        return
    files[name] = _content(root / name) if known is None else known[name]
    try:
        tree = parsed(files[name], str(root / name))
    except SyntaxError as error:
        raise FunctionLoadError(f"{root / name} cannot be read: {error}.") from None
    collect_imported(root, name, tree, set(imported_by(tree)), files, places, known)


def collect_imported(
    root: Path,
    name: str,
    tree: ast.Module,
    modules: Iterable[str],
    files: dict[str, bytes],
    places: Sequence[str] = ("",),
    known: Mapping[str, bytes] | None = None,
) -> None:
    """Adds modules that a file imports, with the modules that they import, unless they are installed.

    Args:
        name: path of the file below the root.
        tree: of the file.
        known: the only files to consider, by path below the root. Files on disk by default.
    """
    folder = os.path.dirname(name)
    added_folders = [os.path.normpath(os.path.join(folder, place)) for place in put_on_path(tree)]
    places = [*places, *(place for place in added_folders if not place.startswith(("..", "/")) and os.path.isdir(root / place))]
    for module in sorted(modules):
        within = [folder] if module.startswith(".") else places
        for found in (found for place in within for found in _found_in(root, place, module)):
            _collect(root, found, files, places, known)


def _read_by(root: Path, name: str, source: bytes, attribute: str) -> Mapping[str, bytes]:
    """Returns the files that a function declares to read (``reads``), by path below the root."""
    folder, files = (root / name).parent, dict[str, bytes]()
    if b"reads" not in source:  # the usual case, without parsing again
        return files
    for pattern in _patterns(parsed(source, name), attribute):
        if os.path.isabs(pattern) or ".." in pattern.split("/"):
            raise FunctionLoadError(f"reads={pattern!r} leaves the folder of {name}.", "Name files in it or below it.")
        found = [path for path in sorted(folder.glob(pattern)) if path.is_file()]
        if not found:
            raise FunctionLoadError(
                f"reads={pattern!r} matches no file in {folder}.", "Correct the pattern, or restore the files."
            )
        if sum(path.stat().st_size for path in found) + sum(map(len, files.values())) > _MOST_READ:
            raise FunctionLoadError(
                f"The files that {attribute} reads have more than {format_size(_MOST_READ)}, which would travel with each task.",
                "Read large ones, such as models, in the __init__ of a class that takes their version as an argument.",
            )
        files |= {path.relative_to(root).as_posix(): _content(path) for path in found}
    return files


def _patterns(tree: ast.Module, attribute: str) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == attribute:
            calls = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
            for reads in (keyword.value for call in calls for keyword in call.keywords if keyword.arg == "reads"):
                try:
                    value = ast.literal_eval(reads)
                except ValueError:
                    raise FunctionLoadError(
                        f"reads={ast.unparse(reads)} of {attribute} is computed.", 'Write it out, as in reads=["prompts/*.txt"].'
                    ) from None
                yield from [value] if isinstance(value, str) else map(str, value)


def _found_in(root: Path, place: str, module: str) -> Iterable[str]:
    """Returns the files of a module in a folder below the root: all files of a package, or a single file."""
    path = os.path.join(place, *[".."] * (len(module) - len(module.lstrip(".")) - 1))
    for part in module.lstrip(".").split("."):
        path = os.path.normpath(os.path.join(path, part))
        if path.startswith(".."):
            break
        if os.path.isfile(root / f"{path}.py"):
            return [f"{path}.py"]
        if os.path.isfile(root / path / "__init__.py"):
            return [source.relative_to(root).as_posix() for source in _modules(root / path)]
    return []


def _modules(package: Path) -> Iterator[Path]:
    """Yields the files of a package's modules. Skips dangling links, with which editors lock files."""
    return filter(os.path.isfile, sorted(package.rglob("*.py")))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FunctionLoadError(f"{path} cannot be read: {error.strerror}.") from None


def imported_by(tree: ast.AST) -> Iterator[str]:
    """Yields the modules that source imports, also by ``importlib``, and the names imported from them, which
    may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (f"{node.module}." if node.module else "")
            yield from (f"{start}{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in _IMPORTING:
            yield from (text for text in _texts(node.args[:1]) if _MODULE.fullmatch(text))


def put_on_path(tree: ast.AST) -> Iterator[str]:
    """Yields the folders that source puts on ``sys.path``, relative to it, if they are written or
    constants."""
    nodes = [*ast.walk(tree)]
    named = {
        target.id: node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.path.insert", "sys.path.append", "site.addsitedir"):
            args = [named.get(arg.id, arg) if isinstance(arg, ast.Name) else arg for arg in node.args]
            whole = [arg.value for arg in args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            # In an expression, a text follows the file's folder.
            yield os.path.join("", *(whole or [text.lstrip("/") for text in _texts(args)]))


def _texts(trees: Sequence[ast.AST]) -> Sequence[str]:
    """Returns the texts in expressions, in source order."""
    nodes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    nodes.sort(key=lambda node: (node.lineno, node.col_offset))
    return [node.value for node in nodes if isinstance(node.value, str)]


def _hashes(files: Mapping[str, bytes], extras: Mapping[str, bytes] = types.MappingProxyType({})) -> tuple[str, str]:
    """Returns the hash of source and the files that it reads, and the hash of its behaviour."""
    return hash_of({**files, **extras}), hash_of({**{name: meaning_of(content) for name, content in files.items()}, **extras})


def hash_of(files: Mapping[str, bytes]) -> str:
    """Returns the hash of files with their names."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\0{len(files[name])}\0".encode())
        digest.update(files[name])
    return digest.hexdigest()


@functools.lru_cache(1000)
def meaning_of(content: bytes) -> bytes:
    """Returns Python source without comments and layout, and other content unchanged."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.unparse(ast.parse(content)).encode("utf-8", "surrogatepass")
    except (SyntaxError, ValueError, RecursionError):
        return content
