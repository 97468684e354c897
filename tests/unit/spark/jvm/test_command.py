"""The command line, properties and environment of the engine's JVM."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volstream.base import config
from volstream.base.config import Settings
from volstream.spark.jvm import command
from volstream.spark.jvm.command import Files, properties_text
from volstream.spark.jvm.install import EXTENSION, EXTENSION_CLASS, LOG_STORE_CLASS, Java

JAVA = Java(Path("/usr/bin/java"), 17, "")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return config.load(tmp_path / "my home")


def java_reads(line: str) -> tuple[str, str]:
    """One line of a properties file as ``java.util.Properties`` reads it."""
    parts: list[str] = []
    current, characters = "", iter(line)
    for character in characters:
        if character == "\\":
            after = next(characters)
            if after == "u":
                current += chr(int("".join(next(characters) for _ in range(4)), 16))
            else:
                current += {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}.get(after, after)
        elif character in "=: " and not parts:
            parts.append(current)
            current = ""
        else:
            current += character
    # Java's characters are UTF-16 units.
    key, value = (text.encode("utf-16", "surrogatepass").decode("utf-16") for text in (*parts, current))
    return key, value


@given(st.text(min_size=1), st.text())
def test_java_reads_the_written_properties(key: str, value: str) -> None:
    (line,) = properties_text({key: value}).removesuffix("\n").split("\n")
    assert line.isascii()
    assert java_reads(line) == (key, value)


def test_the_token_is_in_the_properties_and_not_on_the_command_line(settings: Settings) -> None:
    files = Files.of(settings)
    values = command.properties(settings, files, cores=2, port=1234, token="s3cret")
    line = command.java_command(JAVA, settings, files, [Path("/a.jar")], [])
    assert values["spark.connect.authenticate.token"] == "s3cret"
    assert not any("s3cret" in word for word in line)


def test_the_users_spark_settings_win(settings: Settings) -> None:
    settings = settings.model_copy(update={"spark_conf": {"spark.sql.shuffle.partitions": "64", "spark.extra": "x"}})
    values = command.properties(settings, Files.of(settings), cores=2, port=1, token="")
    assert (values["spark.sql.shuffle.partitions"], values["spark.extra"]) == ("64", "x")
    assert (values["spark.master"], values["spark.default.parallelism"]) == ("local[6]", "2"), "and slots for tasks that wait"


def test_no_spark_setting_changes_how_statements_are_read(settings: Settings) -> None:
    settings = settings.model_copy(update={"spark_conf": dict.fromkeys(command.LEXING, "true")})
    values = command.properties(settings, Files.of(settings), cores=2, port=1, token="")
    assert {values.get(key, "false") for key in command.LEXING} == {"false"}


def test_the_heap_and_the_users_jvm_options_are_on_the_command_line(settings: Settings) -> None:
    settings = settings.model_copy(update={"driver_memory": 3 << 30, "jvm_options": "-XX:+UseG1GC '-Da=b c'"})
    line = command.java_command(JAVA, settings, Files.of(settings), [], [])
    assert f"-Xmx{3 << 30}" in line
    assert line.index("-Da=b c") > line.index("-XX:+UseG1GC")


def test_delta_keeps_as_many_tables_as_the_heap_has_room_for(settings: Settings) -> None:
    def kept(memory: int) -> int:
        files = Files.of(settings)
        values = command.properties(settings.model_copy(update={"driver_memory": memory}), files, cores=2, port=1, token="")
        return int(values["spark.databricks.delta.delta.log.cacheSize"])

    assert (kept(2 << 30), kept(64 << 30)) == (64, 2048)
    assert kept(100 << 20) == 16, "a query may read several tables"


def test_newer_permissions_are_given_only_to_a_java_that_knows_them(settings: Settings) -> None:
    def allowed(major: int) -> bool:
        java = Java(JAVA.executable, major, "")
        return "--sun-misc-unsafe-memory-access=allow" in command.java_command(java, settings, Files.of(settings), [], [])

    assert [allowed(major) for major in (17, 21, 25)] == [False, False, True]


def test_other_spark_installations_in_the_users_shell_do_not_affect_the_engine(tmp_path: Path) -> None:
    shell = {"SPARK_LOCAL_DIRS": "/x", "SPARK_REMOTE": "sc://y", "PYSPARK_PYTHON": "python2", "HOME": "/home/me"}
    environment = command.environment(shell, tmp_path, tmp_path)
    assert environment["PYSPARK_PYTHON"] == sys.executable
    assert environment["SPARK_HOME"] == str(tmp_path)
    assert environment["HOME"] == "/home/me"
    assert not {"SPARK_LOCAL_DIRS", "SPARK_REMOTE"} & environment.keys()


def test_relative_module_paths_still_resolve_in_the_working_directory_of_the_engine(tmp_path: Path) -> None:
    environment = command.environment({"PYTHONPATH": f"src{os.pathsep}/abs"}, tmp_path, tmp_path)
    assert environment["PYTHONPATH"] == f"{Path.cwd() / 'src'}{os.pathsep}/abs"


def test_settings_of_volstream_which_may_contain_keys_do_not_reach_the_functions(tmp_path: Path) -> None:
    shell = {"VOLSTREAM_CREDENTIALS": "{...}", "volstream_catalog_url": "postgresql://u:p@h/d", "AWS_REGION": "eu-west-1"}
    environment = command.environment(shell, tmp_path, tmp_path)
    assert not {"VOLSTREAM_CREDENTIALS", "volstream_catalog_url"} & environment.keys()
    assert environment["AWS_REGION"] == "eu-west-1"


def test_temporary_files_of_workers_are_in_the_home(tmp_path: Path) -> None:
    assert command.environment({"TMPDIR": "/tmp"}, tmp_path, tmp_path / "scratch")["TMPDIR"] == str(tmp_path / "scratch")


@pytest.mark.parametrize(
    ("master", "wanted"), [(None, "true"), ("local[8]", "true"), ("local-cluster[2,1,1024]", None), ("spark://h:7077", None)]
)
def test_the_ports_of_an_engine_in_one_jvm_are_not_open_to_strangers(
    settings: Settings, master: str | None, wanted: str | None
) -> None:
    conf = {} if master is None else {"spark.master": master}
    settings = settings.model_copy(update={"spark_conf": conf})
    values = command.properties(settings, Files.of(settings), cores=2, port=1, token="")
    assert values.get("spark.authenticate") == wanted
    assert "spark.authenticate.secret" not in values


def test_settings_of_a_user_do_not_remove_the_extension_without_reflection(tmp_path: Path) -> None:
    for extensions, wanted in {
        None: f"io.delta.sql.DeltaSparkSessionExtension,{EXTENSION_CLASS}",
        "": EXTENSION_CLASS,
        "org.x.Mine": f"org.x.Mine,{EXTENSION_CLASS}",
    }.items():
        conf = {} if extensions is None else {"spark.sql.extensions": extensions}
        settings = config.load(tmp_path, spark_conf=conf)
        values = command.properties(settings, Files.of(settings), cores=2, port=1, token="t")
        assert values["spark.sql.extensions"] == wanted


@pytest.mark.parametrize("name", [EXTENSION_CLASS, LOG_STORE_CLASS])
def test_what_is_in_the_jar_was_compiled_from_its_source(name: str) -> None:
    with zipfile.ZipFile(EXTENSION) as jar:
        path = name.replace(".", "/")
        assert f"{path}.class" in jar.namelist()
        source = EXTENSION.with_name(f"{name.partition('.')[2]}.java")
        assert jar.read(f"{path}.java") == source.read_bytes(), "run: python -m tests.extension"
