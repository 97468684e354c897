"""Pictures in a folder or a bucket, kept as a table: `make demo`, `make demo-s3`, `make demo-oss`.

Prints every command it runs; takes about a minute. Uses .demo/ of the checkout, which is re-created each time and kept
afterwards. Buckets are in memory, and end with the demo. What does not belong here: the places of files (``places.py``).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from places import CHECKOUT, S3, Azure, Folder, Gs, Oss, Place

DEMO = CHECKOUT / ".demo"
HOME = DEMO / "home"
LOG = DEMO / "daemon.log"
TABLE = HOME / "warehouse" / "tables" / "public" / "pictures"
VOLSTREAM = Path(sys.executable).parent / "volstream"

PLACES: dict[str, Callable[[], Place]] = {
    "folder": lambda: Folder(DEMO / "pictures"),
    "s3": S3,
    "oss": Oss,
    "gcs": Gs,
    "azure": Azure,
}

#: Time limit of a step.
LIMIT_SECONDS = 60.0
#: Interval of checks if nothing else indicates a change.
ASK_SECONDS = 5.0

#: Shipped inside the wheel of scikit-image, so that nothing is downloaded.
NAMES = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "cell.png",
    "chelsea.png",
    "clock_motion.png",
    "coffee.png",
    "coins.png",
    "color.png",
    "grass.png",
    "gravel.png",
    "horse.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "page.png",
    "retina.jpg",
    "rocket.jpg",
)
#: These are added while the daemon runs.
LATER = ("hubble_deep_field.jpg", "retina.jpg", "rocket.jpg")


class DemoError(Exception):
    """A step failed; the message is for the user."""


def main() -> int:
    """Runs the demo; returns 0 if every step succeeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("place", nargs="?", choices=PLACES, default="folder", help="place of the pictures")
    make = PLACES[parser.parse_args().place]
    os.chdir(CHECKOUT)
    os.environ["VOLSTREAM_HOME"] = str(HOME)
    try:
        end_earlier()
        source = picture_folder()
        DEMO.mkdir()
        place = make()
        say(f"A {place.kind} of {len(NAMES) - len(LATER)} pictures: {place.volume[0]}")
        for name in NAMES:
            if name not in LATER:
                place.put(source / name, name)
        say(f"The {place.kind} becomes a volume, and a job runs a function on each of its files, now and when they change.")
        if place.connection:
            run(*place.connection)
        run("create-volume", "pictures", *place.volume, "--pattern", "*.png", "--pattern", "*.jpg")
        run(
            "create-job",
            "describe",
            "--volume",
            "pictures",
            "--function",
            "examples/pictures/pictures.py:describe",
            "--into",
            "pictures",
            "--on-change",
        )
        say(f"The daemon {place.heard} and runs the job.")
        with daemon() as process:
            story(place, source)
            stop(process)
    except DemoError as error:
        print(f"\nThe demo failed: {error}\nSee {LOG.relative_to(CHECKOUT)}.", file=sys.stderr)
        return 1
    farewell(place)
    return 0


def story(place: Place, source: Path) -> None:
    """Runs the steps that happen while the daemon runs."""
    first = {name for name in NAMES if name not in LATER}
    seconds = follow("every picture has its row", lambda: {row["_file_path"] for row in rows()} == first)
    say(f"{len(first)} pictures were processed {seconds:.1f} s after the daemon was ready.")
    run("sql", "SELECT _file_path, width, height, red, green, blue, hash FROM pictures ORDER BY _file_path")

    say(f"{len(LATER)} pictures come in.")
    for name in LATER:
        place.put(source / name, name)
    told(follow("the new pictures have rows", lambda: {row["_file_path"] for row in rows()} == set(NAMES)))

    say("One is replaced: moon.png by the coins. Its row gets their size and hash.")
    place.put(source / "coins.png", "moon.png")
    told(follow("its row is the new one's", lambda: same("moon.png", "coins.png")))

    say("One is deleted.")
    place.delete("brick.png")
    left = set(NAMES) - {"brick.png"}
    told(follow("its row is gone", lambda: {row["_file_path"] for row in rows()} == left))
    run("sql", "SELECT _file_path, width, height, red, green, blue, hash FROM pictures ORDER BY _file_path")

    say("One is not a picture. It is recorded as a failure and retried later; nothing else waits for it.")
    print("$ echo 'not a picture' > broken.png")
    (DEMO / "broken.png").write_text("not a picture\n", encoding="utf-8")
    place.put(DEMO / "broken.png", "broken.png")
    told(follow("it is listed as failed", lambda: bool(ask("list", "failures"))))
    run("list", "failures")
    run("explain-file", "pictures", "broken.png")
    say("The status:")
    run("status")


def rows() -> list[dict[str, Any]]:
    """Returns the current rows of the result table; empty before it exists."""
    if not commits():
        return []
    found: list[dict[str, Any]] = ask("sql", "SELECT * FROM pictures")
    return found


def same(one: str, other: str) -> bool:
    """Returns whether two files have the same hash."""
    hashes = {row["_file_path"]: row["hash"] for row in rows()}
    return hashes[one] == hashes[other]


def follow(what: str, check: Callable[[], bool]) -> float:
    """Waits until ``check()`` holds; returns the seconds.

    It checks when the table has a new version, and now and then in between: each check is a separate process, which
    competes for the processor.
    """
    began = asked = time.monotonic()
    version = commits()
    while not check():
        asked = time.monotonic()
        while commits() == version and time.monotonic() - asked < ASK_SECONDS:
            if asked - began > LIMIT_SECONDS:
                raise DemoError(f"not reached within {LIMIT_SECONDS:g} s: {what}.")
            time.sleep(0.1)
        version = commits()
    return time.monotonic() - began


def commits() -> int:
    """Returns the number of versions of the result table."""
    return len(list(TABLE.glob("_delta_log/*.json")))


def told(seconds: float) -> None:
    """Prints how long the table took to follow, including the checks, each of which is a new process."""
    print(f"  followed after {seconds:.1f} s, including the checks")


def say(text: str) -> None:
    """Prints a line of explanation."""
    print(f"\n# {text}")


def run(*arguments: str) -> None:
    """Runs a command and shows its output."""
    print(f"$ volstream {shlex.join(arguments)}", flush=True)
    try:
        subprocess.run([VOLSTREAM, *arguments], check=True, timeout=LIMIT_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise DemoError(str(error)) from None


def ask(*arguments: str) -> Any:
    """Runs a command silently and returns its JSON."""
    command = [VOLSTREAM, *arguments, "--format", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise DemoError(str(error)) from None
    if done.returncode:
        raise DemoError(f"volstream {shlex.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


@contextlib.contextmanager
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    """Runs a daemon, which is ready and never outlives the demo."""
    print("$ volstream daemon --http-port 0 2> .demo/daemon.log &", flush=True)
    with LOG.open("wb") as log:
        process = subprocess.Popen([VOLSTREAM, "daemon", "--http-port", "0"], stdout=log, stderr=log)
    try:
        began = time.monotonic()
        while not ready():
            if process.poll() is not None:
                raise DemoError(f"the daemon ended with {process.returncode}:\n{LOG.read_text(encoding='utf-8')}")
            if time.monotonic() - began > LIMIT_SECONDS:
                raise DemoError(f"the daemon was not ready within {LIMIT_SECONDS:g} s.")
            time.sleep(0.2)
        print(f"  ready after {time.monotonic() - began:.1f} s")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def ready() -> bool:
    """Returns whether the daemon answers /readyz; its port is in the engine's status."""
    status = ask("engine", "status")
    if not status or not status["http_port"]:
        return False
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{status['http_port']}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stops the daemon like a service manager."""
    say("SIGTERM stops the daemon; it finishes its work in progress.")
    print(f"$ kill -TERM {process.pid}", flush=True)
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise DemoError("the daemon did not end.") from None
    if code:
        raise DemoError(f"the daemon ended with {code}.")


def end_earlier() -> None:
    """Stops processes of an earlier demo, and removes its folder."""
    if not DEMO.exists():
        return
    if HOME.exists():
        status = ask("engine", "status")
        if status and status["kind"] == "daemon":
            with contextlib.suppress(ProcessLookupError):
                os.kill(status["pid"], signal.SIGTERM)
            follow("the earlier demo's daemon has ended", lambda: ask("engine", "status") is None)
        else:
            ask("engine", "stop", "--now")
    shutil.rmtree(DEMO)


def picture_folder() -> Path:
    """Returns the folder of scikit-image's pictures."""
    package = importlib.util.find_spec("skimage")
    if package is None or package.origin is None:
        raise DemoError("the package scikit-image is not installed; run: make setup")
    folder = Path(package.origin).parent / "data"
    missing = [name for name in NAMES if not (folder / name).is_file()]
    if missing:
        raise DemoError(f"this scikit-image has no {', '.join(missing)} in its data folder.")
    return folder


def farewell(place: Place) -> None:
    """Prints what to try next."""
    executable = shlex.quote(re.sub(f"^{re.escape(str(CHECKOUT))}/", "", str(VOLSTREAM)))
    print(f"""
# Done. The home is kept; the first command starts its own engine, which ends when idle.
export VOLSTREAM_HOME=.demo/home
{executable} sql "SELECT _file_path, width * height AS pixels FROM pictures ORDER BY pixels DESC"
{executable} sql "SELECT * FROM DIRECTORY(VOLUME pictures)"
{executable} list batches""")
    if place.stays:
        print(f"rm .demo/pictures/broken.png && {executable} refresh pictures && {executable} run-job describe")
    print(f"{executable} daemon &  # and {executable} console, which opens its pages in a browser")
    print(f"{executable} engine stop")


if __name__ == "__main__":
    # With a pipe, this script's output would be buffered, and out of order with that of the commands.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a TextIOWrapper
    sys.exit(main())
