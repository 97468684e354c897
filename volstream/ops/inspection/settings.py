"""The settings of a home for people to see: secrets masked, each with its meaning."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, SecretStr

from volstream.base.config import Settings
from volstream.base.model.code import parsed

#: What stands for a value that may have a secret in it.
MASK = "********"


@dataclass(frozen=True)
class ShownSetting:
    """A setting: its value, whether it is the default, and its meaning."""

    setting: str
    value: Any
    default: bool
    meaning: str


def shown_settings(settings: Settings, catalog: str) -> list[ShownSetting]:
    """Returns all settings without secrets.

    Args:
        catalog: the catalog's URL without its password.
    """
    described = setting_descriptions()
    return [
        ShownSetting(
            setting=name,
            value=catalog if name == "catalog_url" else _masked(getattr(settings, name), hidden=not field.repr),
            default=name != "home" and getattr(settings, name) == field.default,
            meaning=described.get(name, "The folder of the home." if name == "home" else ""),
        )
        for name, field in Settings.model_fields.items()
    ]


@functools.cache
def setting_descriptions() -> Mapping[str, str]:
    """Returns what stands below each setting in the source, on one line."""
    (tree,) = parsed(inspect.getsource(Settings)).body
    assert isinstance(tree, ast.ClassDef), "it is a class"
    return dict(_pairs(tree))


def _pairs(tree: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        named = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if named and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            assert isinstance(statement, ast.AnnAssign), "see above"
            assert isinstance(statement.target, ast.Name), "see above"
            yield statement.target.id, " ".join(str(following.value.value).split()).replace("``", "`")


def _masked(value: Any, *, hidden: bool) -> Any:
    """Returns a value without secrets: names of a mapping stay, its values may be anything."""
    if isinstance(value, SecretStr):
        return MASK
    if isinstance(value, BaseModel):
        return {name: _masked(getattr(value, name), hidden=not field.repr) for name, field in type(value).model_fields.items()}
    if isinstance(value, Mapping):
        return {key: MASK if hidden else _masked(item, hidden=False) for key, item in value.items()}
    if hidden and value:
        return MASK
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    return [str(item) for item in value] if isinstance(value, tuple | list) else str(value)
