"""A client of a daemon over HTTP, for programs elsewhere: schedulers, notebooks, services. The daemon's console answers it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote

import httpx2

from volstream import errors
from volstream.base.model.paths import without_secrets
from volstream.errors import DependencyError, InterruptedByUserError, InvalidValueError, VolstreamError

#: Intervals at which a task is asked how far it is: the first, the growth, the longest.
_FIRST_SECONDS, _GROWTH, _LONGEST_SECONDS = 0.1, 1.5, 5.0

#: How long a daemon that is waited for may be away.
_AWAY_SECONDS = 30.0


class Client:
    """Asks the daemon of one home, and makes it work. Thread-safe.

    Errors of the daemon are raised as its own classes: NotFoundError, InvalidStateError and so on; DependencyError if it does
    not answer. Answers are the documents that ``/openapi.json`` describes.

    Args:
        url: where the console listens; by default the variable ``VOLSTREAM_URL``, else ``http://127.0.0.1:8642``.
        token: content of the home's file ``console.token``; by default the variable ``VOLSTREAM_TOKEN``.
        seconds: limit for one answer, not for the work.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, seconds: float = 60.0) -> None:
        self._url = (url or os.environ.get("VOLSTREAM_URL") or "http://127.0.0.1:8642").rstrip("/")
        self._shown = without_secrets(self._url)
        token = (token or os.environ.get("VOLSTREAM_TOKEN") or "").strip()
        if not token or not token.isascii():
            raise InvalidValueError("The token is missing or invalid.", "Give token=, or set VOLSTREAM_TOKEN.")
        logging.getLogger("httpx2").setLevel(logging.WARNING)  # it logs each request
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        self._client = httpx2.Client(headers=headers, timeout=seconds, trust_env=False)  # a proxy would get the token

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections. Idempotent."""
        self._client.close()

    def status(self) -> dict[str, Any]:
        """Returns the state of all volumes, streams, jobs, tables and sources, and ``problems``."""
        return self.get("/")

    def job(self, name: str) -> dict[str, Any]:
        """Returns the state of a job, its newest batches, and its failures by cause."""
        return self.get(_path("jobs", name))

    def volume(self, name: str) -> dict[str, Any]:
        """Returns the state of a volume, and the first entries of its directory."""
        return self.get(_path("volumes", name))

    def run(self, job: str, *, seconds: float | None = None) -> dict[str, Any]:
        """Runs a job once, and waits for its end; returns what was done: ``processed``, ``failed``, ``rows`` and more.

        Args:
            seconds: how long to wait; the run goes on after that.

        Raises:
            VolstreamError: the run failed; files that fail are no error, but counted.
            TimeoutError: it has not ended in time.
        """
        return self._done("jobs", job, "run", seconds)

    def replay(self, job: str, where: str | None = None, *, seconds: float | None = None) -> dict[str, Any]:
        """Processes files of a job again, those that satisfy ``where``, and waits as :meth:`run`."""
        return self._done("jobs", job, "replay", seconds, where=where)

    def verify(self, job: str, *, fix: bool = False, outputs: bool = False, seconds: float | None = None) -> dict[str, Any]:
        """Compares a job's table with its files, and waits as :meth:`run`; returns what was found: ``wrong`` has the number of
        files by kind, ``report`` the text.

        Args:
            fix: process the wrong files again; ``fixed`` in the result is their number.
            outputs: also check that the output files are in their volume.
        """
        return self._done("jobs", job, "verify", seconds, fix="1" if fix else None, outputs="1" if outputs else None)

    def refresh(self, volume: str, subdirectory: str | None = None, *, seconds: float | None = None) -> str:
        """Lists a volume, or what is below one of its folders, and waits as :meth:`run`; returns what changed, in a sentence."""
        begun = self.post(_path("volumes", volume, "refresh"), subdirectory=subdirectory)
        return str(self.wait(begun["audit"], seconds=seconds)["task"]["result"])

    def retry(self, job: str, paths: Sequence[str] | None = None) -> str:
        """Retries failed files, all by default, at the job's next run; returns how many, in a sentence."""
        return str(self.post(_path("jobs", job, "retry"), path=paths, all="1" if paths is None else None)["result"])

    def pause(self, job: str) -> None:
        """Pauses a job: nothing runs it until it is resumed. A run in progress goes on to its end."""
        self.post(_path("jobs", job, "pause"))

    def resume(self, job: str) -> None:
        """Resumes a paused job."""
        self.post(_path("jobs", job, "resume"))

    def wait(self, task: int, *, seconds: float | None = None) -> dict[str, Any]:
        """Waits until a task ends; returns its ``task`` and ``outcome``.

        Args:
            task: the number that :meth:`post` returned as ``audit``.
            seconds: how long to wait; the task goes on after that. None: as long as it takes.

        Raises:
            VolstreamError: it failed. InterruptedByUserError: it was cancelled. NotFoundError: there is no such task.
            DependencyError: the daemon has not answered for half a minute.
            TimeoutError: it has not ended in time.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        pause, answered = _FIRST_SECONDS, time.monotonic()
        while True:
            try:
                answer, answered = self.get(_path("tasks", str(task))), time.monotonic()
            except DependencyError:  # it may be restarting
                if time.monotonic() - answered > _AWAY_SECONDS:
                    raise
                time.sleep(pause)
                continue
            match answer["task"]["state"]:
                case "finished":
                    return answer
                case "failed":
                    raise _error(answer["task"]["error"], answer["task"]["result"], answer["task"]["remedy"])
                case "cancelled":
                    raise InterruptedByUserError(answer["task"]["result"], answer["task"]["remedy"])
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"The task {task} has not ended after {seconds:g} s; it goes on.")
            time.sleep(pause)
            pause = min(_LONGEST_SECONDS, pause * _GROWTH)

    def get(self, path: str, /, **query: str | int | None) -> dict[str, Any]:
        """Returns a page of the console as a document, such as ``/jobs/NAME``. Raises as the class says."""
        return self._answer("GET", path, params={key: value for key, value in query.items() if value is not None})

    def post(self, path: str, /, **form: str | Sequence[str] | None) -> dict[str, Any]:
        """Requests an action of the console, such as ``/jobs/NAME/run``; returns the answer, with the number of a queued task as
        ``audit``. Raises as the class says."""
        return self._answer("POST", path, data={key: value for key, value in form.items() if value is not None})

    def _done(self, kind: str, name: str, verb: str, seconds: float | None, **form: str | None) -> dict[str, Any]:
        begun = self.post(_path(kind, name, verb), **form)
        outcome: dict[str, Any] = self.wait(begun["audit"], seconds=seconds)["outcome"]
        return outcome

    def _answer(self, method: str, path: str, **content: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = self._client.request(method, f"{self._url}{path}", **content)  # type: ignore[arg-type]
            document = answer.json()
        except httpx2.InvalidURL:
            raise InvalidValueError(f"{self._shown!r} is not the URL of a daemon.", "Write http://host:8642.") from None
        except httpx2.HTTPError as error:
            raise DependencyError(
                f"The daemon at {self._shown} did not answer: {error}", "Is it running, and its console reachable?"
            ) from error
        except (ValueError, RecursionError):
            document = None
        if isinstance(document, dict) and document:
            if answer.is_success:
                return document
            if isinstance(said := document.get("error"), dict):
                raise _error(said.get("type"), str(said.get("message")), str(said.get("remedy")))
        raise DependencyError(f"{self._shown} is not a volstream daemon.")


def _error(kind: object, message: str, remedy: str) -> VolstreamError:
    """Returns an error of the class that the daemon names."""
    named = getattr(errors, kind, None) if isinstance(kind, str) else None
    if isinstance(named, type) and issubclass(named, VolstreamError):
        return named(message, remedy)
    return VolstreamError(message, remedy)


def _path(*parts: str) -> str:
    """Returns the path of an object's page. Raises InvalidValueError for a name that would lead elsewhere."""
    if odd := [part for part in parts if part in ("", ".", "..")]:
        raise InvalidValueError(f"{odd[0]!r} is not a name.")
    return "/" + "/".join(quote(part, safe="") for part in parts)
