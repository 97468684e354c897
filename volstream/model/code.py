"""Python source as a syntax tree."""

from __future__ import annotations

import ast
import threading

#: Python before 3.13 counts the depth of the tree for all threads together, and takes two at once for an error of its own.
_parsing = threading.Lock()


def parsed(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """Returns the syntax tree of source, for any thread. Raises SyntaxError."""
    with _parsing:
        return ast.parse(source, filename=filename)
