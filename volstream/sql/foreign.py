"""Words of other platforms, and what volstream has in their place. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot.tokenizer_core import TokenType

from volstream.errors import SqlError
from volstream.sql.names import tokenize


@dataclass(frozen=True)
class Foreign:
    """Something that is written elsewhere.

    Attributes:
        words: what to call it in messages.
        pattern: of a statement in upper case, with one space between tokens and empty texts.
        remedy: what to write here.
        example: a statement that has it.
        ours: a statement of volstream's that does the same; None: it is no statement of its own.
    """

    words: str
    pattern: str
    remedy: str
    example: str
    ours: str | None = None


FOREIGN: Sequence[Foreign] = (
    Foreign(
        "COPY INTO",
        r"^COPY INTO\b",
        "Load a volume's files: CREATE JOB j ON VOLUME v LOAD (FORMAT 'csv') INTO TABLE t, or volstream load v --into t.",
        "COPY INTO t FROM @stage FILE_FORMAT = (TYPE = CSV)",
        "CREATE JOB j ON VOLUME v LOAD (FORMAT 'csv') INTO TABLE t",
    ),
    Foreign(
        "read_files",
        r"(?<!\. )\bREAD_FILES \(",
        "Load a volume's files: CREATE JOB j ON VOLUME v LOAD INTO TABLE t. For one query: SELECT * FROM csv.`/path`.",
        "SELECT * FROM read_files('/data', format => 'csv')",
        "CREATE JOB j ON VOLUME v LOAD INTO TABLE t",
    ),
    Foreign(
        "PIPE",
        r"^(CREATE|ALTER|DROP|DESC|DESCRIBE) (OR REPLACE )?PIPE\b|^SHOW PIPES\b",
        "A job loads files as they arrive: CREATE JOB j ON VOLUME v LOAD INTO TABLE t ON CHANGE.",
        "CREATE PIPE p AUTO_INGEST = TRUE AS COPY INTO t FROM @s",
        "CREATE JOB j ON VOLUME v LOAD INTO TABLE t ON CHANGE",
    ),
    Foreign(
        "TASK",
        r"^(CREATE|ALTER|DROP|DESC|DESCRIBE|EXECUTE) (OR REPLACE )?TASK\b|^SHOW TASKS\b",
        "A job runs a statement when its stream has data: CREATE JOB j EVERY '5m' AS INSERT INTO t SELECT * FROM s.",
        "CREATE TASK x SCHEDULE = '5 MINUTE' AS INSERT INTO t SELECT * FROM s",
        "CREATE JOB j EVERY '5m' AS INSERT INTO t SELECT * FROM s",
    ),
    Foreign(
        "STAGE",
        r"^(CREATE|ALTER|DROP|DESC|DESCRIBE) (OR REPLACE )?(TEMPORARY )?STAGE\b|^SHOW STAGES\b|\b(FROM|JOIN) @",
        "A volume is a location of files: CREATE VOLUME v LOCATION 's3://bucket/prefix'.",
        "CREATE STAGE s URL = 's3://bucket/prefix'",
        "CREATE VOLUME v LOCATION 's3://bucket/prefix'",
    ),
    Foreign(
        "SYSTEM$STREAM_HAS_DATA",
        r"\bSYSTEM ?\$ ?STREAM_HAS_DATA\b",
        "Jobs run only if their stream has data. To look: SHOW STREAMS, column has_data, or session.streams.has_data('s').",
        "SELECT SYSTEM$STREAM_HAS_DATA('s')",
        "SHOW STREAMS",
    ),
    Foreign(
        "METADATA$",
        r"\bMETADATA ?\$ ?(ACTION|ISUPDATE|ROW_ID)\b",
        "A stream has __change_type (INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE), __commit_version and __commit_timestamp.",
        "SELECT * FROM s WHERE METADATA$ACTION = 'INSERT'",
    ),
    Foreign(
        "APPEND_ONLY =",
        r"^CREATE (OR REPLACE )?(TABLE )?STREAM .*\b(APPEND_ONLY|INSERT_ONLY) =",
        "Write WITH PROPERTIES ('TABLE_STREAM_MODE' = 'APPEND_ONLY').",
        "CREATE STREAM s ON TABLE t APPEND_ONLY = TRUE",
        "CREATE STREAM s ON TABLE t WITH PROPERTIES ('TABLE_STREAM_MODE' = 'APPEND_ONLY')",
    ),
    Foreign(
        "SHOW_INITIAL_ROWS =",
        r"^CREATE (OR REPLACE )?(TABLE )?STREAM .*\bSHOW_INITIAL_ROWS =",
        "Write WITH PROPERTIES ('SHOW_INITIAL_ROWS' = 'TRUE').",
        "CREATE STREAM s ON TABLE t SHOW_INITIAL_ROWS = TRUE",
        "CREATE STREAM s ON TABLE t WITH PROPERTIES ('SHOW_INITIAL_ROWS' = 'TRUE')",
    ),
    Foreign(
        "AT(...)",
        r"\b(AT|BEFORE) \( (TIMESTAMP|OFFSET|STATEMENT|STREAM|VERSION) = ?>",
        "Write TIMESTAMP AS OF '2026-01-01 12:00:00' after the name of the table, or VERSION AS OF 3 in a query.",
        "CREATE STREAM s ON TABLE t AT (TIMESTAMP => '2026-01-01')",
        "CREATE STREAM s ON TABLE t TIMESTAMP AS OF '2026-01-01'",
    ),
    Foreign(
        "CLONE",
        r"^CREATE (OR REPLACE )?(TABLE|SCHEMA|DATABASE) (IF NOT EXISTS )?\S+( \. \S+)* (DEEP )?CLONE ",
        "Copy the rows: CREATE TABLE a AS SELECT * FROM b.",
        "CREATE TABLE a CLONE b",
    ),
    Foreign(
        "PUT",
        r"^PUT\b|^(GET|REMOVE|RM) @",
        "Copy files to the volume's location by any means; volstream sees them by itself, or with: ALTER VOLUME v REFRESH.",
        "PUT file:///tmp/a.csv @stage",
        "ALTER VOLUME v REFRESH",
    ),
    Foreign(
        "LIST @",
        r"^(LIST|LS) @",
        "Write SHOW VOLUME DIRECTORY v, or SELECT * FROM DIRECTORY(VOLUME v).",
        "LIST @stage",
        "SHOW VOLUME DIRECTORY v",
    ),
    Foreign(
        "DIRECTORY(@v)",
        r"\bDIRECTORY \( @",
        "Write DIRECTORY(VOLUME v).",
        "SELECT * FROM DIRECTORY(@v)",
        "SHOW VOLUME DIRECTORY v",
    ),
    Foreign(
        "GET_PRESIGNED_URL",
        r"(?<!\. )\b(GET_PRESIGNED_URL|BUILD_STAGE_FILE_URL|BUILD_SCOPED_FILE_URL) \(",
        "DIRECTORY(VOLUME v) has the column url; a job's function reads a file's content by itself.",
        "SELECT GET_PRESIGNED_URL(@s, relative_path) FROM DIRECTORY(VOLUME v)",
    ),
    Foreign(
        "AUTO_REFRESH",
        r"^CREATE .*\bAUTO_REFRESH =",
        "Leave it out: the daemon keeps directory tables up to date, by NOTIFICATION = (QUEUE_TYPE = ..., QUEUE_NAME = ...).",
        "CREATE VOLUME v LOCATION 's3://b/p' DIRECTORY = (ENABLE = TRUE AUTO_REFRESH = TRUE)",
        "CREATE VOLUME v LOCATION 's3://b/p' NOTIFICATION = (QUEUE_TYPE = 'AWS_SQS', QUEUE_NAME = 'q')",
    ),
    Foreign(
        "ON EXTERNAL TABLE",
        r"^CREATE (OR REPLACE )?(TABLE )?STREAM .*\bON (EXTERNAL TABLE|STAGE|DIRECTORY|VIEW|EVENT TABLE)\b",
        "A stream is on files or on a table: ON VOLUME v, or ON TABLE t. Of a view, make a dynamic table first.",
        "CREATE STREAM s ON EXTERNAL TABLE t",
        "CREATE STREAM s ON VOLUME v",
    ),
    Foreign(
        "TARGET_LAG",
        r"^CREATE .*\bTARGET_LAG =",
        "Write REFRESH EVERY '1m', or REFRESH ON CHANGE.",
        "CREATE DYNAMIC TABLE d TARGET_LAG = '1 minute' AS SELECT * FROM t",
        "CREATE DYNAMIC TABLE d REFRESH EVERY '1m' AS SELECT * FROM t",
    ),
    Foreign(
        "SHOW ... WHERE",
        r"^SHOW (?!COLUMNS|PARTITIONS|FUNCTIONS|CREATE).*\bWHERE\b",
        "SHOW takes IN schema and LIKE 'a%'; for conditions: session.sql('SHOW STREAMS').where(\"has_data = 'true'\").",
        "SHOW STREAMS WHERE has_data = 'true'",
        "SHOW STREAMS LIKE 'a%'",
    ),
)


def found_in(statement: str) -> Foreign | None:
    """Returns what of another platform a statement has, or None. Raises SqlError if it cannot be split into tokens."""
    tokens = tokenize(statement)
    text = " ".join("''" if token.token_type is TokenType.STRING else token.text.upper() for token in tokens)
    return next((one for one in FOREIGN if re.search(one.pattern, text)), None)


def check(statement: str) -> None:
    """Raises SqlError with what to write instead if a statement has words of another platform."""
    one = found_in(statement)
    if one is not None:
        raise SqlError(f"volstream has no {one.words}.", one.remedy)
