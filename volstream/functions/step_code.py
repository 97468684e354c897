"""Hashes the code of a step: everything that its value can depend on, and nothing else.

That is the step, the definitions of its module that it reaches, the statements at module level, and the whole files
of the modules that these import. An edit of any other code computes no value again.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from volstream.base.model.code import parsed
from volstream.errors import InvalidValueError
from volstream.functions.finding import collect_imported, hash_of, imported_by, meaning_of
from volstream.functions.source import OWN, FunctionSource, folder_of

#: What finds definitions by other means than their names: all of the module counts then.
_DYNAMIC = frozenset(["globals", "locals", "vars", "eval", "exec", "compile", "__import__", "importlib", "modules"])

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def code_of(source: FunctionSource, function: Any, pickled: str) -> str:
    """Returns the hash of the code of a step of a function.

    Args:
        source: the function's.
        function: the step's, without decorators.
        pickled: hash of the code of one without a file; empty: it has a file.

    Raises:
        InvalidValueError: the step is defined inside of another function.
    """
    environment = source.environment and (source.environment.python, source.environment.archive)
    if pickled:
        return _digest(pickled, environment, {name: meaning_of(content) for name, content in source.files.items()})
    if "<locals>" in function.__qualname__:
        raise InvalidValueError(
            f"The step {function.__name__} is defined inside of another function, so its code cannot be told from others.",
            "Define it at the top of its file, or as a method of a class there.",
        )
    file = inspect.getsourcefile(function)
    if file is None:
        raise InvalidValueError(f"The step {function.__name__} has no source.", "Wrap it in a function in a file.")
    folder = folder_of(source)
    name = os.path.relpath(file, folder) if folder is not None else ""
    if name not in source.files:  # it is installed
        return _digest(function.__qualname__, environment, {"": meaning_of(Path(file).read_bytes())})
    tree = parsed(source.files[name], name)
    reached = ast.Module(_reached(tree, function.__qualname__), [])
    files: dict[str, bytes] = {}
    collect_imported(Path(str(folder)), name, tree, set(imported_by(reached)), files, known=source.files)
    files.pop(name, None)  # a package's module that imports from the package
    others = {path: meaning_of(content) for path, content in files.items()}
    others |= {path: content for path, content in source.files.items() if not path.endswith(".py")}  # what the function reads
    return _digest(function.__qualname__, environment, {**others, "": ast.unparse(reached).encode("utf-8", "surrogatepass")})


def _digest(name: str, environment: object, files: Mapping[str, bytes]) -> str:
    return hashlib.sha256(repr((name, environment, hash_of(files))).encode()).hexdigest()


@dataclass
class _Unit:
    """A statement at module level that counts only if it is reached.

    Attributes:
        names: what it defines; none: it always counts.
        hooks: names in its decorators and bases: by these, others may reach it.
        of_import: it counts as well if nothing uses its names, for what importing does.
    """

    node: ast.stmt
    names: Collection[str] = ()
    hooks: Collection[str] = ()
    of_import: bool = False
    uses: Collection[str] = field(default_factory=frozenset)


def _reached(tree: ast.Module, name: str) -> list[ast.stmt]:
    """Returns the statements that a definition reaches, itself included, in their order; all of them if that cannot be told."""
    top, _, method = name.partition(".")
    harmless = _harmless(tree)
    units = [_unit(node, harmless) for statement in tree.body for node in _split(statement)]
    own = [unit for unit in units if top in unit.names]
    if len(own) != 1 or "." in method or isinstance(own[0].node, ast.ClassDef) != bool(method):
        return tree.body
    whole = own[0]
    if method:
        sliced = _sliced(own[0].node, method)
        if sliced is None:
            return tree.body
        units[units.index(whole)] = _unit(sliced, harmless)
        own = [one for one in units if one.node is sliced]
    reached = [unit for unit in units if unit is own[0] or not unit.names]
    used_by_any = {used for unit in units for used in unit.uses}
    reached += [unit for unit in units if unit.of_import and used_by_any.isdisjoint(unit.names)]
    names: set[str] = set()
    pending = list(reached)
    while pending:
        names |= {*pending.pop().uses}
        found = [
            unit
            for unit in units
            if not any(unit is one for one in reached) and not names.isdisjoint({*unit.names, *unit.hooks, *_globals(unit.node)})
        ]
        reached += found
        pending += found
    if not names.isdisjoint(_DYNAMIC):
        return tree.body
    if method and any(top in unit.uses for unit in reached):  # somebody makes, or takes, the whole class
        return [whole.node if unit is own[0] else unit.node for unit in units if any(unit is one for one in reached)]
    return [unit.node for unit in units if any(unit is one for one in reached)]


def _split(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yields a statement; splits an import of several names."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        yield node
        return
    for alias in node.names:
        one = copy(node)
        one.names = [alias]
        yield one


def _unit(node: ast.stmt, harmless: Collection[str]) -> _Unit:
    uses = frozenset(_names(node))
    if isinstance(node, _DEFINITIONS):
        outside = [*node.decorator_list, *(node.bases if isinstance(node, ast.ClassDef) else ())]
        hooks = {name for one in outside for name in _names(one)} - {*harmless}
        return _Unit(node, {node.name}, hooks, uses=uses - {node.name})
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        always = "*" in names or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        return _Unit(node, () if always else names, of_import=not always)
    if isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if all(isinstance(target, ast.Name) for target in targets) and _is_literal(node.value):
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            return _Unit(node, names, uses=uses - names)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
        return _Unit(node, {"__doc__"})
    return _Unit(node, uses=uses)


def _sliced(node: ast.stmt, method: str) -> ast.stmt | None:
    """Returns a class without the methods that a method does not reach; None if a method is defined twice, or not at all."""
    assert isinstance(node, ast.ClassDef), "it is a method"
    defined = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = {one.name for one in defined}
    if method not in methods or len(methods) != len(defined):
        return None
    kept = {method, "setup"} | {name for name in methods if name.startswith("__") and name != "__call__"}
    while True:
        nodes = [one for one in node.body if one not in defined or one.name in kept]
        inner = [part for one in nodes for part in ast.walk(one)]
        if any(isinstance(part, ast.Name) and part.id in ("getattr", "type") for part in inner):
            return node
        more = {part.attr for part in inner if isinstance(part, ast.Attribute)} & methods - kept
        if not more:
            sliced = copy(node)
            sliced.body = nodes
            return sliced
        kept |= more


def _harmless(tree: ast.Module) -> Collection[str]:
    """Returns the names by which a module has imported volstream and the standard library: their decorators and bases lead to
    nothing."""
    found: set[str] = {"staticmethod", "classmethod", "property"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules: Iterable[tuple[str, str]] = [(alias.name, alias.asname or alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [(node.module or "", alias.asname or alias.name) for alias in node.names]
        else:
            continue
        known = {OWN, *sys.stdlib_module_names}
        found |= {name.partition(".")[0] for module, name in modules if module.partition(".")[0] in known}
    return found


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute) and part.attr in _DYNAMIC:  # sys.modules
            yield part.attr
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():  # an annotation
            yield part.value


def _globals(node: ast.AST) -> Collection[str]:
    """Returns the global names that a definition sets."""
    return {name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names}


def _is_literal(node: ast.expr | None) -> bool:
    if node is None:
        return True
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
