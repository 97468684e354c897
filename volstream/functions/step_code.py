"""Hashes the code of a step: everything that its value can depend on.

For a function that is the step, the definitions of its module that it reaches, the statements at module level, and
the whole files of the modules that these import. For a method it is the whole files of its class and of the base
classes, with their imports. Where a step may reach more than names show, the whole file counts. An edit of other
code computes no value again.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import symtable
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volstream.base.model.code import parsed
from volstream.errors import InvalidValueError
from volstream.functions.finding import collect_imported, hash_of, imported_by, meaning_of, put_on_path
from volstream.functions.source import OWN, FunctionSource, folder_of, is_installed, named_like

#: Names by which code finds definitions without naming them.
_DYNAMIC = frozenset(["globals", "locals", "vars", "eval", "exec", "compile", "__import__", "importlib", "_getframe"])

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def code_of(source: FunctionSource, step: Any, receiver: type | None) -> str:
    """Returns the hash of the code of a step of a function.

    Args:
        source: the function's.
        receiver: the class of a method's object; None: the step is a function.

    Raises:
        InvalidValueError: the code cannot be told, because the step is not a definition at the top of a file.
    """
    environment = source.environment and (source.environment.python, source.environment.archive)
    is_method = "." in step.name
    if step.pickled_code:  # no file shows what else a method depends on
        code = source.behaviour if is_method else step.pickled_code
        return _digest(code, environment, {name: meaning_of(content) for name, content in source.files.items()})
    _check_name(step)
    classes = [cls for cls in (receiver.__mro__ if receiver is not None else ()) if cls is not object]
    places = {owner: _file_of(source, owner) for owner in (step.function, *classes)}
    files = _outside([owner.__module__ for owner, name in places.items() if name is None], ())
    if names := {name for name in places.values() if name is not None}:
        files |= _files(source, names, None if is_method else step.name)
    others = {path: content for path, content in source.files.items() if not path.endswith(".py")}  # what it reads
    owners = [(name or owner.__module__, owner.__qualname__) for owner, name in places.items()]
    return _digest(repr(owners), environment, {**{path: meaning_of(content) for path, content in files.items()}, **others})


def _digest(name: str, environment: object, files: Mapping[str, bytes]) -> str:
    return hashlib.sha256(repr((name, environment, hash_of(files))).encode()).hexdigest()


def _check_name(step: Any) -> None:
    """Raises InvalidValueError if the module's name for the step leads to anything else."""
    found = named_like(step.function)
    found = getattr(found, "__func__", found)
    while found is not None and found is not step:
        found = getattr(found, "__wrapped__", None)
    if found is None:
        raise InvalidValueError(
            f"The code of the step {step.name} cannot be told: no def at the top of a file, or in a class there, has its name.",
            "Write @volstream.step above such a def.",
        )


def _file_of(source: FunctionSource, owner: Any) -> str | None:
    """Returns the file of a function or class, by its path below the folder of the source; None: it is elsewhere."""
    file = getattr(sys.modules.get(owner.__module__), "__file__", None)
    folder = folder_of(source)
    name = None if file is None or folder is None else os.path.relpath(file, folder)
    return name if name in source.files else None


def _outside(modules: Iterable[str], known: Collection[str]) -> dict[str, bytes]:
    """Returns modules and whole packages that are neither installed nor in a known file, with those that they import: of a
    folder that is put on the path, or of a project that is installed to be edited."""
    files: dict[str, bytes] = {}
    passed = {OWN, *sys.stdlib_module_names, *(part.removesuffix(".py") for path in known for part in path.split("/"))}
    pending = {module.partition(".")[0] for module in modules if not module.startswith(".")}
    while pending := pending - passed:
        top = pending.pop()
        passed.add(top)
        for path in _paths_of(top):
            files[str(path)] = path.read_bytes()
            with suppress(SyntaxError):  # a template, or a file for another Python
                imported = imported_by(parsed(files[str(path)], str(path)))
                pending |= {module.partition(".")[0] for module in imported} - {""}
    return files


def _paths_of(top: str) -> Iterator[Path]:
    """Yields the source files of a top-level module or package, unless it is installed or missing."""
    spec = None
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(top)
    for place in map(Path, [] if spec is None else spec.submodule_search_locations or [spec.origin or ""]):
        if is_installed(place / "__init__.py"):
            continue
        if place.is_dir() and place != Path():
            yield from sorted(place.rglob("*.py"))
        elif place.suffix == ".py":
            yield place


def _files(source: FunctionSource, names: Collection[str], function: str | None) -> dict[str, bytes]:
    """Returns the code that counts, by file, and what all other files of the job run when they are imported.

    Args:
        names: the files of a method's classes, which count whole; or the file of a function.
        function: the function, of which the statements that it reaches count.
    """
    known = {path: content for path, content in source.files.items() if path.endswith(".py")}
    trees = {path: parsed(content, path) for path, content in known.items()}
    places = [""]
    for path, tree in trees.items():
        places += (os.path.normpath(os.path.join(os.path.dirname(path), place)) for place in put_on_path(tree))
    roots = {name: trees[name] for name in names}
    for name in names if function is not None else ():
        if (reached := _reached(trees[name], known[name], function)) is not None:
            roots[name] = ast.Module(reached, [])
    files: dict[str, bytes] = {}
    for name, root in sorted(roots.items()):
        collect_imported(Path(str(folder_of(source))), name, trees[name], {*imported_by(root)}, files, places, known)
    if any(map(_is_dynamic, (*roots.values(), *(trees[path] for path in files)))):
        return known
    modules = {module for tree in (*roots.values(), *(trees[path] for path in files)) for module in imported_by(tree)}
    for path in known.keys() - {*files, *names}:
        run = _reached(trees[path], known[path], None)
        files |= {path: known[path] if run is None else _unparsed(run)} if run != [] else {}
    for name, root in roots.items():
        # What the step imports may import the step's own file, which is among the files then.
        files[name] = files.get(name) or (known[name] if root is trees[name] else _unparsed(root.body))
    return {**files, **_outside(modules, known)}


def _unparsed(nodes: list[ast.stmt]) -> bytes:
    return ast.unparse(ast.Module(nodes, [])).encode("utf-8", "surrogatepass")


@dataclass(frozen=True, eq=False)
class _Unit:
    """A statement at module level.

    Attributes:
        names: what it defines, if it counts only when it is reached; none: it always counts.
        uses: the global names that it uses.
    """

    node: ast.stmt
    names: Collection[str]
    uses: Collection[str]


def _reached(tree: ast.Module, content: bytes, name: str | None) -> list[ast.stmt] | None:
    """Returns the statements that a function reaches, itself included, in their order; None: all of the file counts.

    Args:
        name: of the function; None: only what runs when the file is imported.
    """
    text = content.decode("utf-8", "surrogateescape")
    tables = {(table.get_name(), table.get_lineno()): table for table in _tables(symtable.symtable(text, "code", "exec"))}
    harmless = _harmless(tree)
    units = [_unit(node, tables, harmless) for statement in tree.body for node in _split(statement)]
    pending = [unit for unit in units if not unit.names]
    if name is not None:
        own = [unit for unit in units if getattr(unit.node, "name", None) == name]
        if len(own) != 1 or not isinstance(own[0].node, _FUNCTIONS):
            return None
        used_by_any = {used for unit in units for used in unit.uses}
        unused = [unit for unit in units if isinstance(unit.node, _IMPORTS) and used_by_any.isdisjoint(unit.names)]
        pending = [*{*pending, *own, *unused}]
    reached = {*pending}
    names: set[str] = set()
    while pending:
        names |= {*pending.pop().uses}
        found = [unit for unit in units if unit not in reached and not names.isdisjoint({*unit.names, *_globals(unit.node)})]
        reached |= {*found}
        pending += found
    nodes = [unit.node for unit in units if unit in reached]
    return None if _is_dynamic(ast.Module(nodes, [])) else nodes


_IMPORTS = (ast.Import, ast.ImportFrom)


def _unit(node: ast.stmt, tables: Mapping[tuple[str, int], symtable.SymbolTable], harmless: Mapping[str, bool]) -> _Unit:
    uses = frozenset(_names(node, tables))
    names: Collection[str] = ()
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() if _is_quiet(node, harmless):
            names = [node.name]
        case ast.ClassDef(keywords=[]) if all(_is_quiet(one, harmless) for one in node.body):
            names = [node.name] if _are_harmless([*node.bases, *node.decorator_list], harmless) else ()
        case ast.Import() | ast.ImportFrom():
            if node.names[0].name != "*" and getattr(node, "module", None) != "__future__":
                names = [(node.names[0].asname or node.names[0].name).partition(".")[0]]
        case ast.Assign() | ast.AnnAssign() if _is_literal(node.value):
            names = _assigned(node)
        case ast.If(test=ast.Compare(ast.Name("__name__"), [ast.Eq()], [ast.Constant("__main__")]), orelse=[]):
            names = ["__main__"]
        case _ if _is_text(node):
            names = ["__doc__"]
    return _Unit(node, names, uses - {*names})


def _split(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yields a statement; splits an import of several names."""
    if not isinstance(node, _IMPORTS):
        yield node
        return
    for alias in node.names:
        one = copy(node)
        one.names = [alias]
        yield one


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _tables(child)


def _names(node: ast.AST, tables: Mapping[tuple[str, int], symtable.SymbolTable]) -> Iterator[str]:
    """Yields the global names that a statement uses; texts in annotations count as names."""
    parts: Iterable[ast.AST] = ast.walk(node)
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and (table := tables.get((node.name, node.lineno))) is not None:
        for scope in [table, *_tables(table)]:
            is_class = scope.get_type() == "class"
            yield from (one.get_name() for one in scope.get_symbols() if one.is_global() or (is_class and one.is_referenced()))
        # The rest belongs to the scope around it.
        outside = [*node.decorator_list, getattr(node, "args", None), *getattr(node, "bases", ()), *getattr(node, "keywords", ())]
        parts = (part for one in outside if one is not None for part in ast.walk(one))
    yield from (part.id for part in parts if isinstance(part, ast.Name))
    for annotation in (part for one in ast.walk(node) for part in _annotations(one)):
        if isinstance(annotation, ast.Name):
            yield annotation.id
        elif isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            yield from re.findall(r"\w+", annotation.value)


def _annotations(node: ast.AST) -> Iterator[ast.AST]:
    for name in ("annotation", "returns"):
        if (annotation := getattr(node, name, None)) is not None:
            yield from ast.walk(annotation)


def _is_dynamic(tree: ast.AST) -> bool:
    """True if code may use definitions that it does not name."""
    for part in ast.walk(tree):
        match part:
            case ast.Name(id=name) if name in _DYNAMIC:
                return True
            case ast.Attribute(value=ast.Name(id="sys" | "importlib"), attr="modules" | "_getframe" | "import_module"):
                return True
            case ast.alias(name=name) if name in (*_DYNAMIC, "import_module"):
                return True
    return False


def _harmless(tree: ast.Module) -> Mapping[str, bool]:
    """Returns the names by which the top of a file has the standard library's modules, and volstream: True. Their
    decorators and bases register nothing."""
    found = dict.fromkeys(("staticmethod", "classmethod", "property", "object", "Exception", "ValueError", "str", "int"), False)
    for node in tree.body:
        for alias in node.names if isinstance(node, _IMPORTS) else ():
            name = alias.asname or alias.name.partition(".")[0]
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            found.pop(name, None)
            if not getattr(node, "level", 0) and module.partition(".")[0] in {OWN, *sys.stdlib_module_names}:
                found[name] = module.partition(".")[0] == OWN
    assigned = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    defined = {node.name for node in tree.body if isinstance(node, (*_FUNCTIONS, ast.ClassDef))}
    return {name: is_own for name, is_own in found.items() if name not in assigned | defined}


def _are_harmless(expressions: Iterable[ast.expr], harmless: Mapping[str, bool]) -> bool:
    """True if decorators, bases or calls only name what is harmless: with literals as arguments, volstream's with names."""
    for expression in expressions:
        arguments: list[ast.expr] = []
        if isinstance(expression, ast.Call):
            arguments = [*expression.args, *(keyword.value for keyword in expression.keywords)]
            expression = expression.func
        while isinstance(expression, ast.Attribute | ast.Subscript):
            expression = expression.value
        if not isinstance(expression, ast.Name) or expression.id not in harmless:
            return False
        if not all(_is_literal(one) or (harmless[expression.id] and isinstance(one, ast.Name)) for one in arguments):
            return False
    return True


def _is_quiet(node: ast.stmt, harmless: Mapping[str, bool]) -> bool:
    """True if a statement in a class does nothing but define."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            return _are_harmless(node.decorator_list, harmless) and all(map(_is_literal, defaults))
        case ast.Assign() | ast.AnnAssign():
            is_call = isinstance(node.value, ast.Call) and _are_harmless([node.value], harmless)
            return bool(_assigned(node)) and (is_call or _is_literal(node.value))
        case _:
            return isinstance(node, ast.Pass) or _is_text(node)


def _assigned(node: ast.Assign | ast.AnnAssign) -> list[str]:
    """Returns the names that an assignment defines; empty if it also changes an attribute or an item."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names if len(names) == len(targets) else []


def _globals(node: ast.AST) -> Collection[str]:
    """Returns the global names that a definition sets."""
    return {name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names}


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_literal(node: ast.expr | None) -> bool:
    if node is None:
        return True
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
