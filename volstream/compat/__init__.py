"""The snake_case API of hosted platforms' sessions, for programs that were written for one. Opt in by importing it::

    from volstream.compat import Session, functions as F

    session = Session.builder.configs({"home": "data", "schema": "public"}).create()
    changes = session.table("orders_stream").filter(F.col("__change_type") != "UPDATE_BEFORE")
    changes.show()  # moves no offset
    changes.write.mode("append").save_as_table("orders_changes")  # moves it, with the commit of that table

A frame of :meth:`Session.table` on a stream, and every frame derived from it, knows its streams. Each of its
actions reads the streams' current changes. Its ``save_as_table`` consumes them: their offsets move with the
table's commit, exactly once, and if it fails nothing is written or consumed. Showing, collecting and counting
consume nothing (docs/streams.md, R-9), nor does anything else: writing a frame of :meth:`Session.sql` does
not move the offsets of streams that its query reads. DML in SQL consumes, as everywhere.

A frame of a table can also change it: ``update``, ``delete`` and ``merge`` with :class:`when_matched` and
:class:`when_not_matched`. Names in camelCase, such as ``groupBy``, mean the same as in snake_case.

Settings that name an account elsewhere (``username``, ``password``, ``service``, ...) are accepted and
ignored, and so are ``hints``. Everything else is in the underlying :class:`volstream.Session`,
``session.native``.
"""

from __future__ import annotations

from pyspark.sql.connect import functions

from volstream.compat.frame import DataFrame, GroupedData, Table, Writer, when_matched, when_not_matched
from volstream.compat.session import Session

__all__ = ["DataFrame", "GroupedData", "Session", "Table", "Writer", "functions", "when_matched", "when_not_matched"]
