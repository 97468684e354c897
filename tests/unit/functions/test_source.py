"""Finding, shipping and importing per-file functions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from volstream.errors import FunctionLoadError, InvalidValueError
from volstream.functions.finding import absolute, find
from volstream.functions.pickled import archive_of
from volstream.functions.signature import function
from volstream.functions.source import FunctionSource, own_folder


@pytest.fixture(autouse=True)
def no_traces() -> Iterator[None]:
    """Forgets what a test imports, and restores the import path and the standard library."""
    modules, path = dict(sys.modules), list(sys.path)
    yield
    assert sys.path == path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]
    assert all(sys.modules[name] is module for name, module in modules.items())


def write(folder: Path, **files: str) -> Path:
    """Writes the files, whose names come without ``.py``."""
    for name, text in files.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def elsewhere(source: FunctionSource, tmp_path: Path) -> FunctionSource:
    """The source on a machine that does not have the original files."""
    return replace(source, root=str(tmp_path / "not here"))


def test_a_function_in_a_file_is_found_and_called(tmp_path: Path) -> None:
    write(tmp_path, code="def f(x): return x + 1")
    source = find(f"{tmp_path}/code.py:f")
    assert (source.module, source.attribute, source.root) == ("code", "f", str(tmp_path))
    assert source.load()(1) == 2


@pytest.mark.parametrize("how", ["{}/code.py:f", "package.part:f"])
def test_the_lock_of_an_editor_in_a_package_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    write(tmp_path, code="import package\ndef f(): ...", **{"package/__init__": "", "package/part": "def f(): ..."})
    (tmp_path / "package" / ".#part.py").symlink_to("user@host.4711:1")
    monkeypatch.syspath_prepend(tmp_path)
    assert "package/part.py" in find(how.format(tmp_path)).files


def test_a_module_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, **{"package/__init__": "", "package/part": "def f(): ..."})
    monkeypatch.syspath_prepend(tmp_path)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(FunctionLoadError, match=r"__init__\.py cannot be read: Permission denied"):
        find("package.part:f")


def test_a_file_of_a_user_that_there_is_not_is_not_found() -> None:
    with pytest.raises(FunctionLoadError, match="There is no file ~nobody"):
        find("~nobody-of-that-name/code.py:f")


def test_neighbouring_modules_that_a_file_imports_travel_with_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        code="import one\nfrom package.part import NAME\ndef f(): return one.two.VALUE + NAME",
        one="import two",
        two="VALUE = 'v'",
        unrelated="raise RuntimeError",
        **{"package/__init__": "", "package/part": "NAME = 'n'"},
    )
    source = find(f"{tmp_path}/code.py:f")
    assert sorted(source.files) == ["code.py", "one.py", "package/__init__.py", "package/part.py", "two.py"]
    shipped = elsewhere(source, tmp_path)
    shutil.rmtree(tmp_path / "package")
    assert shipped.load()() == "vn"


@pytest.mark.parametrize(
    ("code", "other"),
    [
        ("import importlib\ndef f(): return importlib.import_module('rules').V", "rules"),
        ("def f(): return __import__('rules').V", "rules"),
        ("from lib.rules import V\ndef f(): return V", "lib/rules"),
        ("from lib import rules\ndef f(): return rules.V", "lib/rules"),
        ("import lib.deep.rules as rules\ndef f(): return rules.V", "lib/deep/rules"),
        ("import lib.main\ndef f(): return lib.main.V", "lib/rules"),
        (
            "import os, sys\nsys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))\n"
            "import rules\nsys.path.pop(0)\ndef f(): return rules.V",
            "lib/rules",
        ),
        (
            "import pathlib, sys\nsys.path.append(str(pathlib.Path(__file__).parent / 'lib' / 'deep'))\n"
            "import rules\nsys.path.pop()\ndef f(): return rules.V",
            "lib/deep/rules",
        ),
        *(
            (
                f"import os, sys\nHERE = os.path.dirname(__file__)\nLIB = {lib}\n{put}\nimport rules\ndef f(): return rules.V",
                "lib/rules",
            )
            for lib, put in (
                ("None", "sys.path.insert(0, HERE + '/lib')"),
                ("None", "sys.path.append(f'{HERE}/lib')"),
                ("os.path.join(HERE, 'lib')", "sys.path.insert(0, LIB)"),
            )
        ),
    ],
)
def test_a_module_that_is_imported_in_another_way_travels_and_its_change_is_seen(tmp_path: Path, code: str, other: str) -> None:
    write(tmp_path, code=code, unrelated="V = 0", **{other: "V = 1", "lib/main": "from .rules import V", "lib/other": "V = 0"})
    first = find(f"{tmp_path}/code.py:f")
    assert {"unrelated.py", "lib/other.py"}.isdisjoint(first.files)
    function = first.load()
    with first.importable():
        assert function() == 1
    write(tmp_path, **{other: "V = 2"})
    second = find(f"{tmp_path}/code.py:f")
    assert second.behaviour != first.behaviour
    for source in (second, elsewhere(second, tmp_path)):
        function = source.load()
        with source.importable():
            assert function() == 2


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.path.append('..')\nimport rules",
        "import sys\nsys.path.append('{0}')\nimport rules",
        "from .. import rules",
        "import importlib\nimportlib.import_module('../rules')",
        "import importlib\nimportlib.import_module('{0}/rules')",
    ],
)
def test_a_module_outside_of_the_codes_own_folder_does_not_travel(tmp_path: Path, code: str) -> None:
    write(tmp_path, rules="V = 1", **{"own/code": code.format(tmp_path)})
    assert sorted(find(f"{tmp_path}/own/code.py:f").files) == ["code.py"]


def test_an_import_inside_the_function_finds_neighbouring_modules(tmp_path: Path) -> None:
    write(tmp_path, late_code="def f():\n    import late_helper\n    return late_helper.VALUE", late_helper="VALUE = 7")
    for source in (find(f"{tmp_path}/late_code.py:f"), elsewhere(find(f"{tmp_path}/late_code.py:f"), tmp_path)):
        function = source.load()
        with source.importable():
            assert function() == 7


def test_an_edit_changes_the_fingerprint_and_the_next_load_runs_it(tmp_path: Path) -> None:
    write(tmp_path, edited="import beside_edited\ndef f(): return beside_edited.VALUE", beside_edited="VALUE = 1")
    first = find(f"{tmp_path}/edited.py:f")
    assert first.load()() == 1
    write(tmp_path, beside_edited="VALUE = 2")
    second = find(f"{tmp_path}/edited.py:f")
    assert second.fingerprint != first.fingerprint
    assert second.load()() == 2
    # A batch that was sent before the edit still runs what was sent.
    assert first.load()() == 1
    write(tmp_path, unrelated="X = 1")
    assert find(f"{tmp_path}/edited.py:f").fingerprint == second.fingerprint


def test_a_module_that_is_saved_while_the_function_is_imported_is_imported_as_it_was_found(tmp_path: Path) -> None:
    write(tmp_path, helper="V = 'found'", late="V = 'found'")
    saves = "import pathlib\nfor name in ('helper', 'late'):\n    pathlib.Path(__file__).with_name(name + '.py').write_text('V = 1')\n"
    write(tmp_path, code=saves + "import helper\ndef f():\n    import late\n    return helper.V, late.V")
    source = find(f"{tmp_path}/code.py:f")
    function = source.load()
    with source.importable():
        assert function() == ("found", "found")
    write(tmp_path, code="import helper\ndef f(): return helper.V")
    assert find(f"{tmp_path}/code.py:f").load()() == 1


def test_two_functions_with_neighbouring_modules_of_the_same_name_do_not_clash(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / str(number), main="import same\ndef f(): return same.VALUE", same=f"VALUE = {number}")
    one, two = find(f"{tmp_path}/1/main.py:f"), find(f"{tmp_path}/2/main.py:f")
    functions = [one.load(), two.load(), one.load()]
    assert [function() for function in functions] == [1, 2, 1]


@pytest.mark.parametrize("put", ["sys.path.insert(0, LIB)", "sys.path.append(LIB)", "LIB in sys.path or sys.path.insert(0, LIB)"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_folder_that_code_puts_on_the_path_is_on_it_for_this_function_alone(tmp_path: Path, put: str, inside: bool) -> None:
    """Or another function of the process would import from it, also in place of a library's module."""
    start, sources, before = "import os, sys\nLIB = os.path.dirname(__file__) + '/lib'\n", [], list(sys.path)
    for number in (1, 2):
        code = (
            f"{put}\nimport rules\ndef f(): return rules.V"
            if not inside
            else f"def f():\n    {put}\n    import rules\n    return rules.V"
        )
        sources.append(find(f"{write(tmp_path / str(number), job=start + code, **{'lib/rules': f'V = {number}'})}/job.py:f"))
    for _ in range(2):
        for number, source in enumerate(sources, 1):
            function = source.load()
            with source.importable():
                assert function() == number
            assert sys.path == before


def test_a_file_named_like_a_standard_library_module_does_no_harm(tmp_path: Path) -> None:
    # With a file beside it, so that modules of the same names are looked at.
    write(tmp_path, json="import json, beside_json\ndef f(): return json.dumps([beside_json.ONE])", beside_json="ONE = 1")
    assert find(f"{tmp_path}/json.py:f").load()() == "[1]"
    assert sys.modules["json"] is json


def test_a_file_named_like_one_of_our_modules_does_not_shadow_it(tmp_path: Path) -> None:
    ours = sys.modules["volstream"]
    write(tmp_path, volstream="import beside_ours\ndef f(): return 1", beside_ours="")
    assert find(f"{tmp_path}/volstream.py:f").load()() == 1
    assert sys.modules["volstream"] is ours


def test_data_files_are_found_next_to_the_code(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat")
    write(
        tmp_path, data="from pathlib import Path\nTEXT = (Path(__file__).parent / 'labels.txt').read_text()\ndef f(): return TEXT"
    )
    assert find(f"{tmp_path}/data.py:f").load()() == "cat"


def test_processes_that_a_function_starts_afresh_find_its_module(tmp_path: Path) -> None:
    write(
        tmp_path,
        pools="""
import concurrent.futures, multiprocessing, pooled

def square(number):
    return number * number + pooled.ONE, __file__

def f():
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(square, [1, 2]))
""",
        pooled="ONE = 1",
    )
    for source in (find(f"{tmp_path}/pools.py:f"), elsewhere(find(f"{tmp_path}/pools.py:f"), tmp_path)):
        function = source.load()
        with source.importable():
            assert [number for number, _ in function()] == [2, 5]


def test_an_uninstalled_module_is_found_on_the_search_path_and_shipped(tmp_path: Path) -> None:
    package = {
        "mypack/__init__": "",
        "mypack/sub/__init__": "",
        "mypack/sub/code": "from mypack.other import V\ndef f(): return V",
        "mypack/other": "V = 'other'",
    }
    write(tmp_path, **package)
    with pytest.raises(FunctionLoadError, match=r"There is no module mypack\.sub\.code"):
        find("mypack.sub.code:f")
    source = find("mypack.sub.code:f", str(tmp_path))
    assert source.root == str(tmp_path)
    assert "mypack/other.py" in source.files
    assert elsewhere(source, tmp_path).load()() == "other"


def test_a_single_module_on_the_search_path_ships_its_neighbours(tmp_path: Path) -> None:
    write(tmp_path, single="import neighbour\ndef f(): return neighbour.V", neighbour="V = 3")
    source = find("single:f", str(tmp_path))
    assert sorted(source.files) == ["neighbour.py", "single.py"]
    assert elsewhere(source, tmp_path).load()() == 3


def test_an_installed_module_is_not_shipped(tmp_path: Path) -> None:
    source = find("json.decoder:JSONDecoder")
    assert (source.root, source.files) == (None, {})
    assert source.load() is json.JSONDecoder


def test_shipped_code_is_unpacked_once_and_shared_by_a_second_worker(tmp_path: Path) -> None:
    write(tmp_path, shipped="def f(): return __file__")
    source = elsewhere(find(f"{tmp_path}/shipped.py:f"), tmp_path)
    first = source.load()()
    for name in [name for name in sys.modules if name.startswith("_volstream_shipped")]:
        del sys.modules[name]
    assert source.load()() == first
    assert source.fingerprint in first


@pytest.mark.parametrize("damage", [lambda file: file.write_text(""), lambda file: file.unlink()])
def test_shipped_code_that_was_damaged_is_unpacked_again(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    write(tmp_path, damaged="import beside\ndef f(): return beside.__file__", beside="")
    source = elsewhere(find(f"{tmp_path}/damaged.py:f"), tmp_path)
    first = source.load()()
    damage(Path(first).with_name("damaged.py"))
    assert source.load()() == first
    assert Path(first).with_name("damaged.py").read_bytes() == source.files["damaged.py"]


@pytest.mark.parametrize("text", ["code.py", "code.py:", ":f", "code.py:not a name", "a b:f", "dir/mod:f"])
def test_invalid_function_names_are_rejected(text: str) -> None:
    with pytest.raises(FunctionLoadError):
        find(text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FunctionLoadError, match=r"no file .*gone\.py"):
        find(f"{tmp_path}/gone.py:f")


def test_a_syntax_error_is_reported_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, broken="x = 1\ndef f(:\n")
    with pytest.raises(FunctionLoadError, match=r"broken\.py.*line 2"):
        find(f"{tmp_path}/broken.py:f")


def test_a_module_that_raises_is_reported_with_its_line(tmp_path: Path) -> None:
    write(tmp_path, raising="x = 1\nraise KeyError('no')\ndef f(): pass")
    with pytest.raises(FunctionLoadError, match=r"KeyError: 'no' \(line 2 of .*raising\.py\)"):
        find(f"{tmp_path}/raising.py:f").load()


def test_a_module_that_exits_ends_neither_command_nor_daemon(tmp_path: Path) -> None:
    write(tmp_path, exiting="import sys\nsys.exit(3)\ndef f(): pass")
    with pytest.raises(FunctionLoadError, match=r"SystemExit: 3 \(line 2 of .*exiting\.py\)"):
        find(f"{tmp_path}/exiting.py:f").load()


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    write(tmp_path, lacking="import not_installed_anywhere\ndef f(): pass")
    with pytest.raises(FunctionLoadError, match="Install not_installed_anywhere"):
        find(f"{tmp_path}/lacking.py:f").load()


def test_a_missing_name_lists_the_functions_that_exist_and_an_uncallable_one_is_rejected(tmp_path: Path) -> None:
    write(tmp_path, names="from os import getcwd\nf = 3\ndef good(): pass\ndef _hidden(): pass")
    with pytest.raises(FunctionLoadError, match=r"has no 'missing'\. It defines: good\.$"):
        find(f"{tmp_path}/names.py:missing").load()
    with pytest.raises(FunctionLoadError, match="has no callable"):
        find(f"{tmp_path}/names.py:f").load()


def test_file_names_become_absolute_and_module_names_stay(tmp_path: Path) -> None:
    assert absolute("code.py:f", tmp_path) == f"{tmp_path}/code.py:f"
    assert absolute("../code.py:f", tmp_path / "sub") == f"{tmp_path}/code.py:f"
    assert absolute("pkg.mod:f", tmp_path) == "pkg.mod:f"


def test_a_link_to_a_file_finds_the_neighbours_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "real", linked="import beside_linked\ndef f(): return beside_linked.V", beside_linked="V = 1")
    os.symlink(tmp_path / "real" / "linked.py", tmp_path / "link.py")
    assert find(f"{tmp_path}/link.py:f").load()() == 1


def test_no_code_is_run_from_a_folder_that_others_can_write_to(tmp_path: Path) -> None:
    folder = tmp_path / "guessed"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(FunctionLoadError, match="others can write to it"):
        own_folder(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can make a folder of another user.")
def test_no_code_is_run_from_a_folder_of_another_user(tmp_path: Path) -> None:
    folder = tmp_path / "guessed"
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, -1)
    with pytest.raises(FunctionLoadError, match="another user"):
        own_folder(folder)


def test_no_code_is_run_from_a_link_planted_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "guessed").symlink_to("elsewhere")
    with pytest.raises(FunctionLoadError, match="another user"):
        own_folder(tmp_path / "guessed")


def test_the_folder_of_functions_is_private_to_the_user(tmp_path: Path) -> None:
    own_folder(tmp_path / "guessed")
    own_folder(tmp_path / "guessed")
    assert (tmp_path / "guessed").stat().st_mode & 0o777 == 0o700


def test_code_that_was_not_used_for_a_month_is_removed(tmp_path: Path) -> None:
    shipped = tmp_path / f"volstream-functions-{os.getuid()}"
    for name, days in (("old", 31), ("half-written", 40), ("used", 1)):
        folder = shipped / name
        folder.mkdir(parents=True)
        (folder / "f.py").touch()
        then = time.time() - days * 86400
        os.utime(folder, (then, then))
    code = "from volstream.functions.source import forget_unused; forget_unused()"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True, timeout=30)
    assert [one.name for one in shipped.iterdir()] == ["used"]


def test_a_file_without_a_function_is_answered_with_those_it_defines(tmp_path: Path) -> None:
    file = write(tmp_path, words="1 / 0\ndef count(file): ...\ndef _own(): ...\nclass Model: ...\n") / "words.py"
    with pytest.raises(FunctionLoadError, match=r"words.py:FUNCTION. It defines: count, Model\."):
        find(str(file))


@pytest.mark.parametrize(
    "opening",
    ["Session.builder.config('home', 'h').create()", "Session.builder.config('home', 'h').getOrCreate()", "connect('h')"],
    ids=["create", "getOrCreate", "connect"],
)
def test_a_program_that_opens_a_session_when_it_is_imported_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opening: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, program=f"import volstream\ndef f(file): ...\nvolstream.{opening}\n") / "program.py"
    with pytest.raises(FunctionLoadError, match=r"program.py opens a session when it is imported"):
        find(f"{file}:f").load()
    assert not Path("h").exists()
    file.write_text(f"import volstream\ndef f(file): ...\nif __name__ == '__main__':\n    volstream.{opening}\n")
    find(f"{file}:f").load()


BESIDE = "from pathlib import Path\nWHO = Path(__file__).with_name('who.txt').read_text()\ndef f(): return WHO\n"
LATER = "def f():\n    from lib.who import WHO\n    return WHO\n"
DYNAMIC = "import importlib\ndef f(): return importlib.import_module('who').WHO\n"


@pytest.mark.parametrize("code", [BESIDE, LATER, DYNAMIC, "from lib.who import WHO\ndef f(): return WHO\n"])
def test_equal_functions_of_two_folders_use_what_is_beside_them(tmp_path: Path, code: str) -> None:
    for name in "ab":
        folder = write(tmp_path / name, code=code, who=f"WHO = {name!r}", **{"lib/who": f"WHO = {name!r}"})
        (folder / "who.txt").write_text(name)
    for name in "abab":
        source = find(f"{tmp_path}/{name}/code.py:f")
        function = source.load()
        with source.importable():
            assert function() == name


def test_a_process_whose_folder_is_gone_calls_functions_and_stays_in_one_that_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = find(f"{write(tmp_path, code='def f(x): return x')}/code.py:f")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    with source.folder():
        assert Path.cwd() == tmp_path
        gone.rmdir()
    assert Path.cwd().is_dir()
    monkeypatch.chdir(tmp_path)
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    with elsewhere(source, tmp_path).folder():
        assert Path.cwd().is_dir()
    assert Path.cwd().is_dir()


def reading(reads: str) -> str:
    return f"import volstream\nfrom pathlib import Path\nHERE = Path(__file__).parent\n\n@volstream.function(reads={reads})\n"


BODY = "def f(x): return (HERE / 'prompts' / 'a.txt').read_text() + (HERE / 'words').read_text()\n"


@pytest.mark.parametrize("reads", ["['prompts/*.txt', 'words']", "('prompts/a.txt', 'w*')", "['**/*']"])
def test_files_that_a_function_says_it_reads_travel_and_their_change_is_a_new_version(tmp_path: Path, reads: str) -> None:
    folder = write(tmp_path / "code", code=reading(reads) + BODY)
    (folder / "prompts").mkdir()
    (folder / "prompts" / "a.txt").write_text("# one\n")
    (folder / "words").write_text("two")
    found = find(f"{folder}/code.py:f")
    assert {"code.py", "prompts/a.txt", "words"} <= found.files.keys()
    assert find(f"{folder}/code.py:f").fingerprint == found.fingerprint
    away = elsewhere(found, tmp_path)
    assert away.load()(0) == "# one\ntwo"
    (folder / "prompts" / "a.txt").write_text("# two\n")  # no comment of Python
    changed = find(f"{folder}/code.py:f")
    assert changed.behaviour != found.behaviour
    assert away.load()(0) == "# one\ntwo"
    assert elsewhere(changed, tmp_path).load()(0) == "# two\ntwo"


def test_a_function_of_a_package_reads_files_beside_its_module(tmp_path: Path) -> None:
    write(tmp_path, **{"pack/__init__": "", "pack/code": reading("'data/*'") + "class f:\n    def __call__(self, x): ...\n"})
    (tmp_path / "pack" / "data").mkdir()
    (tmp_path / "pack" / "data" / "a").write_text("x")
    before = find("pack.code:f", str(tmp_path))
    assert before.files["pack/data/a"] == b"x"
    (tmp_path / "pack" / "data" / "a").write_text("y")
    assert find("pack.code:f", str(tmp_path)).behaviour != before.behaviour


@pytest.mark.parametrize(
    ("reads", "message"),
    [
        ("['missing*']", "matches no file"),
        ("['../x']", "leaves the folder"),
        ("['/etc/passwd']", "leaves the folder"),
        ("[name]", "is computed"),
        ("'large'", "more than 16.0 MiB"),
    ],
)
def test_what_a_function_says_it_reads_has_to_be_there_and_small(tmp_path: Path, reads: str, message: str) -> None:
    write(tmp_path, code=reading(reads) + BODY)
    with (tmp_path / "large").open("wb") as large:
        large.truncate((16 << 20) + 1)
    with pytest.raises(FunctionLoadError, match=message):
        find(f"{tmp_path}/code.py:f")


def test_a_function_that_is_in_no_file_reads_no_files_beside_it() -> None:
    with pytest.raises(InvalidValueError, match="Move it into a file"):
        archive_of(function(reads="words")(lambda file: None))


@pytest.mark.parametrize(
    "code",
    [
        "from impl import f\n",
        "from impl import g\nf = g\n",
        "import volstream\nif True:\n    @volstream.function(reads='words')\n    def f(x): ...\n",
        "import impl\nclass f(impl.c): ...\n",
    ],
)
def test_a_declaration_that_is_not_read_from_the_source_is_an_error(tmp_path: Path, code: str) -> None:
    declared = "import volstream\n@volstream.function(reads='words')\n"
    write(tmp_path, code=code, impl=f"{declared}def f(x): ...\ng = f\n{declared}class c:\n    def __call__(self, x): ...\n")
    (tmp_path / "words").write_text("x")
    with pytest.raises(FunctionLoadError, match="does not define it at its top"):
        find(f"{tmp_path}/code.py:f").load()
    assert callable(find(f"{tmp_path}/impl.py:f").load())


def test_a_missing_module_is_answered_with_the_package_that_has_it(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("import fitz\n\ndef f(file): ...\n")
    with pytest.raises(FunctionLoadError, match="Install pymupdf into volstream's environment"):
        find(f"{tmp_path}/f.py:f").load()
