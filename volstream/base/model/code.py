"""Python source as a syntax tree."""

from __future__ import annotations

import ast
import threading

#: Python before 3.13 counts the tree's depth across all threads, and reports two parsers at once as an error.
_parsing = threading.Lock()


def parsed(source: str | bytes, filename: str = "<unknown>") -> ast.Module:
    """Parses source to a syntax tree, in any thread. Raises SyntaxError."""
    with _parsing:
        return ast.parse(source, filename=filename)
