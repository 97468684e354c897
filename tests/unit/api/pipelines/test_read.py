"""Files of a pipeline, read: values, references, profiles, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from volstream.api.pipelines.definitions import CODE, Kind
from volstream.api.pipelines.read import read
from volstream.base.model.names import Name
from volstream.errors import FunctionLoadError, InvalidValueError, NotFoundError, VolstreamError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file into the pipeline's folder, beside ``f.py`` with two functions; returns the folder."""
    (tmp_path / "f.py").write_text("def f(file): ...\ndef g(value): ...\n")

    def call(text: str, name: str = "pipeline.toml") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path

    return call


def values(path: Path, kind: Kind, name: str, profile: str | None = None) -> Mapping[str, Any]:
    (found,) = [one for one in read(path, profile) if one.kind is kind and str(one.name) == name]
    return found.values


def refused(path: Path, profile: str | None = None, error: type[VolstreamError] = InvalidValueError) -> str:
    """What reading says, with its remedy."""
    with pytest.raises(error) as caught:
        read(path, profile)
    return str(caught.value)


def test_paths_are_relative_to_the_file_that_has_them(write: Write, tmp_path: Path) -> None:
    folder = write('[volumes.v]\nlocation = "in"\n[jobs.j]\nvolume = "v"\nfunction = "f.py:f"\ninto = "t"\n')
    assert values(folder, Kind.VOLUME, "v")["location"] == f"file://{tmp_path}/in"
    job = values(folder, Kind.JOB, "j")
    assert job["function"] == f"{tmp_path}/f.py:f"
    assert len(job[CODE]) == 64


def test_values_have_one_spelling(write: Write) -> None:
    folder = write(
        '[jobs."Silver.J"]\nstream = "S"\nfunction = "f.py:f"\nreturns = "n int,`a b` string"\ninto = "Silver.T"\n'
        'every = 60\ntimeout = "90s"\nmax_bytes = "1024 MiB"\narguments.deep = true\narguments.n = 3\n'
        '[volumes.v]\nlocation = "s3a://bkt/x/"\npatterns = "*.txt"\n'
        '[connections.c]\ntype = "s3"\nendpoint = "minio:9000"\n'
        '[sources.e]\nkind = "events"\nretention_policy = "2 weeks"\n'
        '[functions.h]\nfunction = "f.py:g"\nreturns = "array<varchar>"\n'
        '[sources."k.Orders"]\nkind = "kafka"\nbrokers = ["b:1"]\n'
    )
    job = values(folder, Kind.JOB, "silver.j")
    wanted = {"returns": "n INT, `a b` STRING", "every": 60.0, "timeout": 90.0, "max_bytes": 1 << 30, "retries": 3}
    assert {key: job[key] for key in wanted} == wanted
    assert (job["stream"], job["into"]) == (Name.parse("s"), Name.parse("silver.t"))
    assert job["arguments"] == {"deep": "true", "n": "3"}
    volume = values(folder, Kind.VOLUME, "v")
    assert (volume["location"], volume["patterns"], volume["queue_type"]) == ("s3://bkt/x", ("*.txt",), "poll")
    assert values(folder, Kind.CONNECTION, "c")["endpoint"] == "https://minio:9000"
    assert values(folder, Kind.SOURCE, "e")["retention_policy"] == 14 * 86400
    assert values(folder, Kind.FUNCTION, "h")["returns"] == "ARRAY<STRING>"
    topic = values(folder, Kind.SOURCE, "k.orders")
    assert (topic["topic"], topic["format"]) == ("Orders", "json")


def test_a_profile_gives_variables_their_values(write: Write) -> None:
    folder = write(
        '[variables]\ndepth = true\nroot = "/none"\n'
        '[profile.laptop]\nroot = "/data"\n[profile.prod]\nroot = "s3://bkt"\ndepth = false\n'
        '[volumes.v]\nlocation = "${var:root}/in"\nrecursive = "${var:depth}"\n'
    )
    assert values(folder, Kind.VOLUME, "v")["location"] == "file:///none/in"
    laptop, prod = (values(folder, Kind.VOLUME, "v", profile) for profile in ("laptop", "prod"))
    assert (laptop["location"], laptop["recursive"]) == ("file:///data/in", True)
    assert (prod["location"], prod["recursive"]) == ("s3://bkt/in", False)
    assert "There is no profile 'prd'. Did you mean 'prod'?" in refused(folder, "prd")


def test_variables_without_a_value_are_errors_that_say_where_there_is_one(write: Write) -> None:
    volume = '[volumes.v]\nlocation = "${var:root}"\n'
    assert "The variable root has no value." in refused(write(volume))
    assert "Did you mean 'roots'?" in refused(write(f'[variables]\nroots = "x"\n{volume}'))
    assert "Choose one: --profile a." in refused(write(f'[profile.a]\nroot = "x"\n{volume}'))
    said = refused(write(f'[profile.a]\nroot = "x"\n[profile.b]\n{volume}'), "b")
    assert "no value in the profile b" in said
    assert "refers to another one, x" in refused(write(f'[variables]\nroot = "${{var:x}}"\n{volume}'))


def test_the_environment_can_be_referred_to(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write('[volumes.v]\nlocation = "s3://${env:BUCKET}/in"\ncomment = "$${env:BUCKET} and ${other}"\n')
    assert "The environment variable BUCKET is not set. Set it" in refused(folder)
    monkeypatch.setenv("BUCKET", "bkt")
    volume = values(folder, Kind.VOLUME, "v")
    assert (volume["location"], volume["comment"]) == ("s3://bkt/in", "${env:BUCKET} and ${other}")


def test_files_of_a_folder_belong_together_except_for_settings(write: Write) -> None:
    write('[variables]\nroot = "/data"\n', "a.toml")
    write("http_port = 1\n", "volstream.toml")
    folder = write('[volumes.v]\nlocation = "${var:root}"\n', "b.toml")
    assert [one.file for one in read(folder)] == ["b.toml"]
    write('[volumes.V]\nlocation = "x"\n', "c.toml")
    assert "c.toml: volume v is defined in b.toml already." in refused(folder)
    write('[variables]\nroot = "/other"\n', "c.toml")
    assert "c.toml: variables.root is set by another file as well." in refused(folder)


def test_no_file_is_an_error(tmp_path: Path) -> None:
    assert "There is no file *.toml in" in refused(tmp_path, error=NotFoundError)
    assert "There is no file" in refused(tmp_path / "x.toml", error=NotFoundError)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[volumes.v", "pipeline.toml cannot be read: "),
        ("[volume.v]\n", "there is no table [volume]. Did you mean 'volumes'?"),
        ('[volumes]\nv = "/x"\n', "'v' stands in [volumes] itself. Write [volumes.NAME] above it."),
        ('volumes = "v"\n', "volumes is not a table."),
        ("profile = 3\n", "profile is not a table. Write [profile.NAME]."),
        (f"variables.x = 0x{'f' * 5000}\n", "cannot be read: an integer has more than 64 bits."),
        ('[functions.f]\nfunction = "\\u0000.py:f"\nreturns = "INT"\n', "function: The value has a NUL character."),
        ('[volumes.v]\nlocation = "/x"\npattern = []\n', "volume v: There is no key 'pattern'. Did you mean 'patterns'?"),
        ('[volumes.a.b]\nlocation = "/x"\n', 'For an object of a schema write [volumes."a.b"].'),
        ("[volumes.v]\n", "volume v: It needs the key 'location'."),
        ("[volumes.v]\nlocation = 1\n", "volume v: location: 1 is not text."),
        ('[volumes.v]\nlocation = "ftp://x"\n', "volume v: "),
        ('[volumes.v]\nlocation = "/x"\nrecursive = "yes"\n', "recursive: 'yes' is not true or false."),
        ('[volumes.v]\nlocation = "/x"\npatterns = [1]\n', "patterns: [1] is not a list of text."),
        (
            '[volumes.v]\nlocation = "/x"\nqueue_type = "sns"\n',
            "queue_type: 'sns' is not an allowed value. Did you mean 'sqs'? Give one of",
        ),
        ('[volumes.v]\nlocation = "/x"\nqueue_type = "sqs"\n', "cannot use the queue type sqs"),
        ('[volumes."a/b"]\nlocation = "/x"\n', "'a/b' is not a name."),
        ('[streams.s]\nmode = "standard"\n', "stream s: A stream is on a volume or on a table."),
        ('[streams.s]\nvolume = "v"\nat_timestamp = "soon"\n', "at_timestamp: 'soon' is not a time."),
        ('[jobs.j]\nstream = "s"\ninto = "t"\n', "job j: A job has a function, a statement or load."),
        ('[jobs.j]\nstatement = "INSERT INTO t SELECT 1"\nwhere = "size > 1"\n', "A job with statement has no where."),
        ('[jobs.j]\nvolume = "v"\ninto = "t"\nload = {}\nreturns = "n INT"\n', "A job with load has no returns."),
        ('[jobs.j]\ninto = "t"\nload = {}\n', "A job that loads needs volume and into."),
        ('[jobs.j]\nvolume = "v"\ninto = "t"\nload = { form = "csv" }\n', "There is no load option 'form'."),
        ('[jobs.j]\nvolume = "v"\ninto = "t"\nload = { delimiter = "ab" }\n', "The delimiter cannot be 'ab'."),
        (
            '[jobs.j]\nstream = "s"\nfunction = "f.py:f"\ninto = "t"\nevery = "1m"\non_change = true\n',
            "on_change, every and cron are mutually exclusive.",
        ),
        ('[jobs.j]\nstream = "s"\nfunction = "f.py:f"\nevery = "soon"\n', "every: 'soon' is not a duration."),
        ('[jobs.j]\nstream = "s"\nfunction = "f.py:f"\nmax_bytes = "many"\n', "max_bytes: 'many' is not a size."),
        ('[jobs.j]\nstream = "s"\nfunction = "f.py:f"\nretries = 1.5\n', "retries: 1.5 is not a whole number."),
        ('[tables.t]\ncolumns = "id"\n', "The columns 'id' cannot be parsed."),
        ('[tables.t]\ncolumns = "id INT, ID INT"\n', "The column 'ID' is declared twice."),
        ('[tables.t]\ncolumns = "id INT PRIMARY KEY"\n', 'Write a primary key as primary_key = ["COLUMN"].'),
        ('[tables.t]\ncolumns = "id INT"\nprimary_key = ["x"]\n', "primary_key names a column 'x', which the table lacks."),
        ('[tables.t]\ncolumns = "id INT"\nproperties.change_tracking = "on"\n', "change_tracking cannot be 'on'."),
        ('[functions.f]\nfunction = "f.py:g"\nreturns = "nonsense"\n', "function f: RETURNS 'nonsense' is not a SQL type."),
        ('[sources.s]\nkind = "items"\n', "source s: A source of items needs a primary_key."),
        ('[sources.s]\nkind = "events"\nbrokers = []\n', "A source of events has no key 'brokers'."),
        ('[sources.s]\nkind = "events"\nretention_policy = "long"\n', "retention_policy: 'long' is not a duration."),
    ],
)
def test_mistakes_name_file_object_and_key(write: Write, text: str, said: str) -> None:
    found = refused(write(text))
    assert "pipeline.toml" in found
    assert said in found


def test_missing_code_is_found_when_the_file_is_read(write: Write) -> None:
    folder = write('[jobs.j]\nstream = "s"\nfunction = "gone.py:f"\ninto = "t"\n')
    assert "pipeline.toml: job j: There is no file" in refused(folder, error=FunctionLoadError)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[volumes.v]\nlocation = "s3://bkt"\ncomment = "AKIAIOSFODNN7EXAMPLE"\n', "comment: The value contains a secret."),
        ('[volumes.v]\nlocation = "s3://bkt"\nqueue_name = "https://u:p@q"\n', "queue_name: The value contains a secret."),
        ('[variables]\ndb_password = "x"\n', "variables.db_password is a secret. Write ${env:NAME} where it is used."),
        ('[variables]\ndb_password = "${env:HIDDEN}"\n', "variables.db_password is a secret."),
        (
            '[volumes.v]\nlocation = "s3://bkt"\ncomment = "uses ${env:SOME_SECRET}"\n',
            "comment: SOME_SECRET is a secret, and the catalog stores this value",
        ),
        (
            '[variables]\nx = "${env:SOME_SECRET}"\n[volumes.v]\nlocation = "s3://bkt"\ncomment = "uses ${var:x}"\n',
            "comment: SOME_SECRET is a secret",
        ),
        ('[volumes.v]\nlocation = "s3://bkt"\ncomment = "uses ${env:HIDDEN}"\n', "comment: The value contains a secret."),
        (
            '[jobs.j]\nstream = "s"\nfunction = "f.py:f"\ninto = "t"\narguments.api_token = "${env:TOKEN}"\n',
            "arguments: api_token is a secret, and the catalog stores arguments in plain text.",
        ),
    ],
)
def test_secrets_are_refused_and_not_repeated(write: Write, text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "s3cret")
    monkeypatch.setenv("HIDDEN", "AKIAABCDEFGHIJKLMNOP")
    found = refused(write(text))
    assert said in found
    assert "s3cret" not in found
    assert "AKIA" not in found
    assert "u:p" not in found


@pytest.mark.parametrize("levels", [60, 900, 3000])
@pytest.mark.parametrize("text", ["{} = 1\n", "[{}]\nb = 1\n", "[jobs.j]\narguments.{} = 1\n"])
def test_keys_that_are_nested_too_deeply_are_refused(write: Write, text: str, levels: int) -> None:
    assert "its values are nested too deeply" in refused(write(text.format(".".join(["a"] * levels))))


def test_secrets_of_topics_stay_references(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER_NAME", "me")
    folder = write(
        '[sources.k]\nkind = "kafka"\nbrokers = ["b:1"]\nproperties."sasl.username" = "${env:USER_NAME}"\n'
        'properties."sasl.password" = "${env:NOT_SET_HERE}"\n'
    )
    assert values(folder, Kind.SOURCE, "k")["properties"] == {"sasl.username": "me", "sasl.password": "${env:NOT_SET_HERE}"}


def test_secrets_of_queues_stay_references(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER", "b:1")
    folder = write(
        '[volumes.v]\nlocation = "."\nqueue_type = "kafka"\nqueue_name = "t"\n'
        'queue_properties."bootstrap.servers" = "${env:BROKER}"\nqueue_properties."sasl.password" = "${env:NOT_SET_HERE}"\n'
    )
    assert values(folder, Kind.VOLUME, "v")["queue_properties"] == {
        "bootstrap.servers": "b:1",
        "sasl.password": "${env:NOT_SET_HERE}",
    }
