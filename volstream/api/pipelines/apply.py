"""Makes a home what files say: reads, compares, rehearses, and then carries out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from volstream.api.objects.all import Objects
from volstream.api.pipelines.existing import existing
from volstream.api.pipelines.make import ActionExecutor, schemas_of
from volstream.api.pipelines.model import Kind, PipelinePlan, PlanStep, Verb
from volstream.api.pipelines.plan import check, compare
from volstream.api.pipelines.read import located, read
from volstream.api.pipelines.rehearse import rehearse
from volstream.base.model.names import DEFAULT_SCHEMA
from volstream.base.model.text import counted
from volstream.errors import VolstreamError
from volstream.jobs.rules.definitions import check_no_plan


def plan_of(objects: Objects, path: Path, profile: str | None = None, *, prune: bool = False) -> PipelinePlan:
    """Returns what makes a home what the files at ``path`` say; changes nothing, starts no Spark, contacts no store.

    Args:
        profile: whose variables apply.
        prune: drop what the files lack; tables and sources stay.

    Raises:
        InvalidValueError, NotFoundError, FunctionLoadError, SqlError: the files are wrong; the message names the place.
    """
    wanted = read(path, profile)
    tables = [table.name for table in wanted if table.kind is Kind.TABLE]
    try:
        return compare(wanted, existing(objects.home, tables), prune=prune)
    except VolstreamError as error:
        raise located(error, str(path)) from None


def check_plan(objects: Objects, plan: PipelinePlan, *, contact: bool = True) -> None:
    """Raises the error that :func:`carry_out` would end with, if it can be detected beforehand.

    Args:
        contact: contact the stores and queues of volumes that are created or altered.

    Raises:
        InvalidStateError: an object has something that cannot be altered.
        StreamBusyError: a run depends on what is to be changed.
        VolstreamError: an operation is not possible.
    """
    check(plan)
    for action in plan.changes:
        if action.definition.kind is Kind.JOB and action.verb is Verb.ALTER:
            check_no_plan(objects.home.catalog, objects.jobs.get(str(action.definition.name)), action.changed)
    if plan.changes:
        rehearse(objects.home, plan, contact=contact)


def carry_out(objects: Objects, plan: PipelinePlan, done: Callable[[PlanStep], None]) -> None:
    """Carries out a plan that was checked.

    Args:
        done: is called after each action.

    Raises:
        VolstreamError: an action failed; the message says which were carried out before.
    """
    maker, finished = ActionExecutor(objects), 0
    for action in plan.actions:
        try:
            if action.verb in (Verb.CREATE, Verb.ALTER):
                _make_schemas(objects, action)
            maker.carry_out(action)
        except VolstreamError as error:
            failure = located(error, action.definition.where)
            failure.message += f"\n{_left(finished, len(plan.changes))}"
            raise failure from error
        finished += action.verb is not Verb.KEEP
        done(action)


def apply(objects: Objects, path: Path, profile: str | None = None, *, prune: bool = False) -> PipelinePlan:
    """Makes a home what the files at ``path`` say; returns what was done. See :func:`plan_of`."""
    plan = plan_of(objects, path, profile, prune=prune)
    check_plan(objects, plan)
    carry_out(objects, plan, lambda _: None)
    return plan


def _make_schemas(objects: Objects, action: PlanStep) -> None:
    """Makes the folders of schemas, as CREATE SCHEMA does; object stores have none."""
    from volstream.tables.delta.places import make_folder

    for schema in schemas_of(action.definition):
        if schema != DEFAULT_SCHEMA:
            make_folder(f"{objects.home.warehouse}/tables/{schema}")


def _left(finished: int, total: int) -> str:
    if not finished:
        return "Nothing was changed."
    were = "was created and remains" if finished == 1 else "were created and remain"
    return f"{counted(finished, 'change')} of {total} {were}. Fix the error and apply again: completed changes are skipped."
