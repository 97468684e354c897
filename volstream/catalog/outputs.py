"""The ledger of output files: the paths in target volumes that rows of result tables name or may name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, delete, insert, or_, select, update
from sqlalchemy import Connection as Transaction

from volstream.base.model.work import groups
from volstream.catalog.database import MAX_BOUND, Database
from volstream.catalog.tables import digest, from_row, intents, outputs
from volstream.errors import FencedError


class OutputState(StrEnum):
    """``PENDING``: its attempt has not ended. ``LIVE``: a committed row names it. ``DEAD``: to be removed.

    ``LOADING`` and ``LOADED`` are not outputs, but files that a job removes from its volume once their rows
    are committed: not yet, or already.
    """

    PENDING = "pending"
    LIVE = "live"
    DEAD = "dead"
    LOADING = "loading"
    LOADED = "loaded"


@dataclass(frozen=True, kw_only=True)
class Output:
    """An output file of a result table's rows, or a loaded file.

    For a loaded file, ``etag`` is its version and ``staged`` its destination.

    Attributes:
        id: None if not stored yet.
        table: the result table.
        source: path of the file whose rows name it.
        attempt: the attempt that wrote it.
        staged: where its content waits in the volume. None if it is at ``path``.
    """

    id: int | None = None
    table: str
    volume_id: str
    path: str
    source: str
    attempt: str
    size: int
    etag: str
    staged: str | None
    state: OutputState = OutputState.PENDING


class Outputs:
    """Rows of ``outputs``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def at(self, volume_id: str, paths: Iterable[str]) -> Mapping[str, Output]:
        """Returns the live outputs at these paths of a volume, by path."""
        live = _OUTPUTS.where(outputs.c.volume_id == volume_id, _is(OutputState.LIVE))
        rows = self._database.rows_in(live, outputs.c.path_digest, map(digest, paths))
        return {row.path: from_row(Output, row._mapping) for row in rows}

    def of_sources(self, table: str, sources: Iterable[str]) -> Sequence[Output]:
        """Returns the live outputs of a table's rows of these files."""
        live = _OUTPUTS.where(outputs.c.table_name == table, _is(OutputState.LIVE))
        rows = self._database.rows_in(live, outputs.c.source_digest, map(digest, sources))
        return [from_row(Output, row._mapping) for row in rows]

    def note(self, table: str, attempt: str, new: Iterable[Output], replaced: Iterable[str]) -> None:
        """Records an attempt's changes before it is committed: its outputs, and the files whose rows it
        replaces.

        Raises:
            FencedError: another process considered this one dead and ended the attempt.
        """
        open_attempt = select(intents.c.attempt).where(intents.c.attempt == attempt, intents.c.state == "intent")
        with self._database.transaction() as transaction:
            # Locked, so that another process ends the attempt either before this check or after these rows.
            if transaction.execute(open_attempt.with_for_update()).first() is None:
                raise FencedError("The attempt was already ended by another process.")
            for chunk in groups(replaced, MAX_BOUND):
                ended = update(outputs).where(_of(table, chunk), _is(OutputState.LIVE))
                transaction.execute(ended.values(replaced_by=attempt))
            for part in groups(new, MAX_BOUND):
                transaction.execute(insert(outputs), [_columns(output) for output in part])

    def placed(self, pairs: Sequence[tuple[Output, str]]) -> None:
        """Records that outputs are at their paths, with their etags there."""
        with self._database.transaction() as transaction:
            for chunk in groups(pairs, MAX_BOUND):
                ids = [output.id for output, _ in chunk]
                transaction.execute(update(outputs).where(outputs.c.id.in_(ids)).values(staged=None))
            for output, etag in pairs:
                if etag != output.etag:
                    transaction.execute(update(outputs).where(outputs.c.id == output.id).values(etag=etag))

    def forget(self, removed: Iterable[Output]) -> None:
        """Deletes rows of outputs that were removed."""
        with self._database.transaction() as transaction:
            for chunk in groups(removed, MAX_BOUND):
                transaction.execute(delete(outputs).where(outputs.c.id.in_([output.id for output in chunk])))

    def of_attempt(self, attempt: str) -> Sequence[Output]:
        """Returns the outputs of an open attempt."""
        query = _OUTPUTS.where(outputs.c.attempt == attempt, _is(OutputState.PENDING)).order_by(outputs.c.id)
        return self._database.all(query, Output)

    def resolve_attempts(self, table: str) -> None:
        """Applies the records of ended attempts: outputs of committed attempts become live, others dead.

        An attempt that the catalog no longer knows, because its job was dropped by force, may have been
        committed. All of its outputs stay, and so do the outputs that it would replace.
        """
        with self._database.transaction() as transaction:
            recorded = select(outputs.c.attempt).where(outputs.c.table_name == table, _is_open())
            replacing = select(outputs.c.replaced_by).where(outputs.c.table_name == table, outputs.c.replaced_by.is_not(None))
            attempts = {*transaction.execute(recorded).scalars(), *transaction.execute(replacing).scalars()}
            for attempt in sorted(attempts):
                ended = select(intents.c.state).where(intents.c.attempt == attempt)
                match {*transaction.execute(ended).scalars()}:
                    case states if "intent" in states:
                        continue
                    case states if "committed" in states:
                        _commit(transaction, attempt)
                    case states:
                        _abort(transaction, attempt, OutputState.DEAD if states else OutputState.LIVE)

    def unfinished(self, table: str) -> Sequence[Output]:
        """Returns a table's outputs that are still to be moved to their paths or removed, live ones first."""
        waiting = or_(_is(OutputState.DEAD), _is(OutputState.LOADED), _is(OutputState.LIVE) & outputs.c.staged.is_not(None))
        query = _OUTPUTS.where(outputs.c.table_name == table, waiting)
        return self._database.all(query.order_by(outputs.c.state.desc(), outputs.c.id), Output)

    def unfinished_tables(self) -> Sequence[str]:
        """Returns the tables with outputs of open attempts, or with outputs to move or remove."""
        waiting = or_(outputs.c.state != OutputState.LIVE, outputs.c.staged.is_not(None), outputs.c.replaced_by.is_not(None))
        query = select(outputs.c.table_name).where(waiting).distinct().order_by(outputs.c.table_name)
        return [row.table_name for row in self._database.rows(query)]

    def live(self, table: str) -> Sequence[Output]:
        """Returns all live outputs of a table, by path."""
        query = _OUTPUTS.where(outputs.c.table_name == table, _is(OutputState.LIVE)).order_by(outputs.c.path)
        return self._database.all(query, Output)

    def staged(self, table: str) -> set[str]:
        """Returns the staging paths of a table's outputs that may still be needed: live ones and those of
        open attempts."""
        query = select(outputs.c.staged).where(
            outputs.c.table_name == table, outputs.c.staged.is_not(None), ~_is(OutputState.DEAD)
        )
        return {row.staged for row in self._database.rows(query)}

    def end(self, table: str) -> None:
        """Marks all live outputs of a table as dead, because its rows will name none."""
        with self._database.transaction() as transaction:
            live = update(outputs).where(outputs.c.table_name == table, _is(OutputState.LIVE))
            transaction.execute(live.values(state=OutputState.DEAD))


def _commit(transaction: Transaction, attempt: str) -> None:
    pending = (outputs.c.attempt == attempt) & _is(OutputState.PENDING)
    replaced = outputs.c.replaced_by == attempt
    # Their paths now belong to the new outputs.
    other = (_other.c.attempt == attempt) & (_other.c.state == OutputState.PENDING)
    transaction.execute(delete(outputs).where(replaced, _has(other)))
    transaction.execute(update(outputs).where(replaced).values(state=OutputState.DEAD, replaced_by=None))
    transaction.execute(update(outputs).where(pending).values(state=OutputState.LIVE))
    loaded = (outputs.c.attempt == attempt) & _is(OutputState.LOADING)
    transaction.execute(update(outputs).where(loaded).values(state=OutputState.LOADED))


def _abort(transaction: Transaction, attempt: str, state: OutputState) -> None:
    pending = (outputs.c.attempt == attempt) & _is(OutputState.PENDING)
    transaction.execute(delete(outputs).where(pending, _has(_other.c.state == OutputState.LIVE)))
    transaction.execute(update(outputs).where(pending).values(state=state))
    transaction.execute(update(outputs).where(outputs.c.replaced_by == attempt).values(replaced_by=None))
    transaction.execute(delete(outputs).where(outputs.c.attempt == attempt, _is(OutputState.LOADING)))


#: Columns named like the attributes of :class:`Output`.
_OUTPUTS = select(outputs, outputs.c.table_name.label("table"))

_other = outputs.alias("other")


def _has(other: ColumnElement[bool]) -> ColumnElement[bool]:
    """Selects outputs that share their path with another output that meets a condition."""
    same = (_other.c.volume_id == outputs.c.volume_id) & (_other.c.path_digest == outputs.c.path_digest)
    return select(_other.c.id).where(same, _other.c.id != outputs.c.id, other).exists()


def _is_open() -> ColumnElement[bool]:
    return outputs.c.state.in_([OutputState.PENDING, OutputState.LOADING])


def _is(state: OutputState) -> ColumnElement[bool]:
    return outputs.c.state == state


def _of(table: str, sources: Sequence[str]) -> ColumnElement[bool]:
    of_table: ColumnElement[bool] = outputs.c.table_name == table
    return of_table & outputs.c.source_digest.in_(list(map(digest, sources)))


def _columns(output: Output) -> dict[str, Any]:
    columns = {name: value for name, value in vars(output).items() if name not in ("id", "table")}
    return {**columns, "table_name": output.table, "path_digest": digest(output.path), "source_digest": digest(output.source)}
