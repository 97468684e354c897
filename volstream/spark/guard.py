"""Statements and expressions that may read certain relations only.

To find a relation's columns Spark opens its files, so a look at the plan comes too late. The guard is text that the engine's
parser (``jvm/extension/GuardedParser.java``) removes and checks before Spark analyses the rest: the last line of its words, if
only names follow. A server without that parser takes it for a syntax error, so nothing runs unguarded.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from volstream.base.model.names import DEFAULT_SCHEMA, Name
from volstream.spark.jvm.jars import EXTENSION_CLASS

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

#: Sessions, and whether their servers have the parser.
_guarding: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def guarded(text: str, tables: Iterable[Name] = (), views: Iterable[str] = ()) -> str:
    """Returns a query, SHOW, DESCRIBE or expression that Spark refuses unless it reads only these relations.

    Args:
        tables: in Spark's catalog; those of the default schema may be named without it.
        views: temporary views. Whatever they read passes.
    """
    names = [table.qualified for table in tables]
    short = [name.removeprefix(f"`{DEFAULT_SCHEMA}`.") for name in names]
    return "\n".join([text, "VOLSTREAM READS", *names, *short, *views, ""])


def computing(session: SparkSession, text: str) -> str:
    """Returns an expression that Spark refuses if it does anything besides computing with columns.

    On a server that others started, without volstream's extension, the text is returned as it is.
    """
    return guarded(text) if is_guarding(session) else text


def is_guarding(session: SparkSession) -> bool:
    """True if the session's server has the parser."""
    if session not in _guarding:
        _guarding[session] = EXTENSION_CLASS in (session.conf.get("spark.sql.extensions", None) or "")
    return _guarding[session]
