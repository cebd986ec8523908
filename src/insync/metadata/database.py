"""The SQLite file: its schema, reading it, and making one step as one statement.

No Python code runs in a transaction, so that a process that is stopped in Python does not hold the
write lock. The operations are first put into a temporary table, which belongs to the connection and
locks nothing. Then one `INSERT INTO attempt` fires a trigger that checks and changes everything:
one call into SQLite, in which the transaction begins and ends.

Everything here blocks, so it is called from threads, never from an event loop.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from insync.metadata.errors import (
    Conflict,
    SessionEnded,
    StoreCorrupt,
    StoreTooNew,
    StoreUnusable,
    StoreWentBack,
    Unavailable,
)
from insync.metadata.store import (
    Check,
    CheckAbsent,
    Create,
    Delete,
    Entry,
    Operation,
    Write,
    expectation,
)
from insync.metadata.view import NodesAfter, Steps

APPLICATION_ID = 0x494E5359  # "INSY": marks a SQLite file as Insync's
SCHEMA_VERSION = 1
# Rows of the change log: some minutes of a busy cluster. A reader further behind than that
# compares whole trees, which is correct too, but slower.
CHANGE_LOG_ROWS_MAX = 20_000
SHARED_MEMORY_WRITE_LOCK_BYTE = 120  # where SQLite's WAL index keeps its write lock

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    revision INTEGER NOT NULL,     -- the newest step
    trimmed INTEGER NOT NULL,      -- steps up to this one are no longer in `changes`
    incarnation INTEGER NOT NULL   -- the newest session's
);
INSERT OR IGNORE INTO head VALUES (1, 0, 0, 0);
CREATE TABLE IF NOT EXISTS nodes (
    path TEXT PRIMARY KEY,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    session INTEGER
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS nodes_by_session ON nodes (session) WHERE session IS NOT NULL;
-- Nodes after each step that changed them: a row without a version is a deleted node.
CREATE TABLE IF NOT EXISTS changes (
    number INTEGER PRIMARY KEY,
    revision INTEGER NOT NULL,
    path TEXT NOT NULL,
    value BLOB,
    version INTEGER,
    session INTEGER
);
CREATE INDEX IF NOT EXISTS changes_by_revision ON changes (revision);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""  # noqa: S608 - made of constants

_TRIM_AND_ANSWER = """
    UPDATE head SET trimmed = coalesce(
        (SELECT revision FROM changes
         WHERE number <= (SELECT max(number) FROM changes) - NEW.log_rows_max
         ORDER BY number DESC LIMIT 1),
        trimmed);
    DELETE FROM changes WHERE revision <= (SELECT trimmed FROM head);
    INSERT INTO answer (number) SELECT revision FROM head;
"""

# Temporary objects of the writer's connection. Each trigger is a procedure: an insert into its view
# calls it, the inserted row holds its arguments, and `answer` its result.
_PROCEDURES = f"""
CREATE TEMP TABLE operation (
    position INTEGER PRIMARY KEY, kind TEXT, path TEXT, value BLOB, version INTEGER,
    session INTEGER
);
CREATE TEMP TABLE answer (
    number INTEGER, failed INTEGER, found_version INTEGER, session_ended INTEGER
);
CREATE TEMP VIEW attempt AS SELECT 0 AS log_rows_max;
CREATE TEMP VIEW ending AS SELECT 0 AS session, 0 AS log_rows_max;
CREATE TEMP VIEW numbering AS SELECT 0 AS unused;

CREATE TEMP TRIGGER attempt_step INSTEAD OF INSERT ON attempt BEGIN
    DELETE FROM answer;
    INSERT INTO answer (failed, found_version, session_ended)
        SELECT position, version, session_ended FROM (
            SELECT o.position, n.version,
                CASE
                    WHEN o.kind IN ('create', 'absent') THEN n.path IS NOT NULL
                    ELSE n.path IS NULL OR n.version <> coalesce(o.version, n.version)
                END AS conflict,
                o.session IS NOT NULL AND o.path <> '/sessions/' || o.session
                    AND NOT EXISTS (SELECT 1 FROM nodes WHERE path = '/sessions/' || o.session)
                    AS session_ended
            FROM operation o LEFT JOIN nodes n ON n.path = o.path
        )
        WHERE conflict OR session_ended ORDER BY position LIMIT 1;
    SELECT RAISE(IGNORE) FROM answer;
    UPDATE head SET revision = revision + 1;
    INSERT INTO changes (revision, path, value, version, session)
        SELECT head.revision, o.path, o.value,
            CASE o.kind WHEN 'create' THEN 0 WHEN 'write' THEN n.version + 1 END,
            CASE o.kind WHEN 'create' THEN o.session WHEN 'write' THEN n.session END
        FROM head, operation o LEFT JOIN nodes n ON n.path = o.path
        WHERE o.kind IN ('create', 'write', 'delete') ORDER BY o.position;
    DELETE FROM nodes WHERE path IN (SELECT path FROM operation WHERE kind = 'delete');
    INSERT OR REPLACE INTO nodes (path, value, version, session)
        SELECT path, value, version, session FROM changes
        WHERE revision = (SELECT revision FROM head) AND version IS NOT NULL;
    {_TRIM_AND_ANSWER}
END;

CREATE TEMP TRIGGER ending_step INSTEAD OF INSERT ON ending BEGIN
    DELETE FROM answer;
    SELECT RAISE(IGNORE)
        WHERE NOT EXISTS (SELECT 1 FROM nodes WHERE path = '/sessions/' || NEW.session);
    UPDATE head SET revision = revision + 1;
    INSERT INTO changes (revision, path)
        SELECT head.revision, nodes.path FROM head, nodes
        WHERE nodes.session = NEW.session ORDER BY nodes.path;
    DELETE FROM nodes WHERE session = NEW.session;
    {_TRIM_AND_ANSWER}
END;

CREATE TEMP TRIGGER numbering_step INSTEAD OF INSERT ON numbering BEGIN
    DELETE FROM answer;
    UPDATE head SET incarnation = incarnation + 1;
    INSERT INTO answer (number) SELECT incarnation FROM head;
END;
"""  # noqa: S608 - made of constants


@dataclass(frozen=True, slots=True)
class Tree:
    """The whole tree, for a reader that starts or fell behind the change log."""

    revision: int
    entries: Sequence[Entry]


def connect(path: Path, *, synchronous: str) -> sqlite3.Connection:
    """Open the store, and create it if it does not exist; a busy file raises `sqlite3` errors."""
    assert synchronous in {"NORMAL", "FULL"}, synchronous
    # No timeout: Insync retries itself, with a limit and a warning. The
    # connection is opened by one thread and used by another, never by two at once.
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        _check_kind(connection, path)
        if connection.execute("PRAGMA journal_mode = WAL").fetchall() != [("wal",)]:
            raise StoreUnusable(f"{path}: SQLite cannot use a write-ahead log there")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA temp_store = MEMORY")
        if connection.execute("PRAGMA user_version").fetchall() == [(0,)]:
            _create_schema(connection)
        # If another process created the schema just now, this connection may still have the
        # empty one it read first. A statement that names a table reads it again; a trigger
        # that names one does not, and would fail with "no such table" for ever.
        connection.execute("SELECT revision FROM head").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _check_kind(connection: sqlite3.Connection, path: Path) -> None:
    # One statement, so one snapshot: another process may be creating the file now.
    [(version, application, tables)] = connection.execute(
        "SELECT user_version, application_id, (SELECT count(*) FROM sqlite_master)"
        " FROM pragma_user_version, pragma_application_id"
    ).fetchall()
    if application == APPLICATION_ID and version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"{path}: written by a newer Insync (schema {version}, this one knows"
            f" {SCHEMA_VERSION}); upgrade Insync"
        )
    if application != APPLICATION_ID and (tables or application or version):
        raise StoreCorrupt(f"{path}: an SQLite database, but not an Insync metadata store")


def _create_schema(connection: sqlite3.Connection) -> None:
    # The only transaction of several calls: once, when a store is created.
    try:
        connection.executescript(_SCHEMA)
    except BaseException:
        if connection.in_transaction:
            connection.rollback()
        raise


def is_busy(error: sqlite3.Error) -> bool:
    return _primary_code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def refusal(error: sqlite3.Error, path: Path) -> Exception:
    """The refusal for an error of SQLite."""
    match _primary_code(error):
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return StoreCorrupt(f"{path}: not an Insync metadata store, or damaged ({error})")
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return StoreUnusable(f"{path}: cannot be opened for writing ({error})")
        case sqlite3.SQLITE_FULL:
            return Unavailable(f"{path}: the disk is full, nothing was changed")
        case _:
            return Unavailable(f"{path}: {error}; nothing was changed")


def _primary_code(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF  # the upper bytes are SQLite's extended code


class Writer:
    """The connection that writes, used by one thread. If busy, nothing was changed: call again."""

    def __init__(self, connection: sqlite3.Connection, *, log_rows_max: int) -> None:
        self._connection = connection
        self._log_rows_max = log_rows_max
        connection.executescript(_PROCEDURES)

    def load(self, operations: Sequence[Operation], session: int | None) -> None:
        """Load the operations that `step` will make. Locks nothing."""
        rows = [
            (position, *_row(operation, session)) for position, operation in enumerate(operations)
        ]
        self._connection.execute("BEGIN")  # on the temporary table alone: one instead of many
        with self._connection:
            self._connection.execute("DELETE FROM operation")
            self._connection.executemany("INSERT INTO operation VALUES (?, ?, ?, ?, ?, ?)", rows)

    def step(self, operations: Sequence[Operation]) -> int:
        """Make the step that was loaded; return its revision."""
        self._call("INSERT INTO attempt VALUES (?)", self._log_rows_max)
        [(revision, failed, found_version, session_ended)] = self._answer()
        if failed is None:
            return int(revision)
        operation = operations[failed]
        if session_ended:
            raise SessionEnded(f"{operation.path}: the session it should belong to has ended")
        raise Conflict(
            operation.path,
            index=failed,
            expected=expectation(operation),
            found_version=found_version,
        )

    def end_session(self, incarnation: int) -> bool:
        """End a session with its nodes; False if it had ended already."""
        self._call("INSERT INTO ending VALUES (?, ?)", incarnation, self._log_rows_max)
        return bool(self._answer())

    def next_incarnation(self) -> int:
        self._call("INSERT INTO numbering VALUES (0)")
        [(incarnation, *_)] = self._answer()
        return int(incarnation)

    def close(self) -> None:
        self._connection.close()

    def _call(self, sql: str, *arguments: int) -> None:
        # With isolation_level None this is its own transaction, which ends when execute returns.
        self._connection.execute(sql, arguments)

    def _answer(self) -> list[tuple[Any, ...]]:
        return self._connection.execute("SELECT * FROM answer").fetchall()


def _row(
    operation: Operation, session: int | None
) -> tuple[str, str, bytes | None, int | None, int | None]:
    match operation:
        case Create(path, value, ephemeral):
            return "create", path, value, None, session if ephemeral else None
        case Write(path, value, version):
            return "write", path, value, version, None
        case Delete(path, version):
            return "delete", path, None, version, None
        case Check(path, version):
            return "check", path, None, version, None
        case CheckAbsent(path):
            return "absent", path, None, None, None


class Reader:
    """The connection that reads. With a write-ahead log a reader never waits for a writer."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def data_version(self) -> int:
        """A number that differs when another connection has committed something."""
        [(number,)] = self._connection.execute("PRAGMA data_version").fetchall()
        return int(number)

    def tree(self) -> Tree:
        rows = self._connection.execute(
            "SELECT head.revision, path, value, version, session FROM head LEFT JOIN nodes"
        ).fetchall()
        return Tree(rows[0][0], [_entry(*row[1:]) for row in rows if row[1] is not None])

    def after(self, revision: int) -> Steps | Tree:
        """Every step after `revision`, or the whole tree if the log no longer has them all."""
        # One statement reads one snapshot of the database.
        rows = self._connection.execute(
            "SELECT head.revision, head.trimmed, c.revision, c.path, c.value, c.version, c.session"
            " FROM head LEFT JOIN changes c ON c.revision > ? ORDER BY c.number",
            (revision,),
        ).fetchall()
        newest, trimmed = rows[0][:2]
        if newest < revision:
            raise StoreWentBack(f"it is at revision {newest}, and revision {revision} was read")
        if trimmed > revision:
            return self.tree()
        # A step that only checks has no row, but it has a revision.
        steps: dict[int, list[tuple[str, Entry | None]]] = {
            number: [] for number in range(revision + 1, newest + 1)
        }
        for _, _, number, path, value, version, session in rows:
            if number is not None:
                after = None if version is None else _entry(path, value, version, session)
                steps[number].append((path, after))
        return list(steps.items())

    def step(self, revision: int) -> NodesAfter | None:
        """The nodes after one earlier step; None if the log no longer has it."""
        rows = self._connection.execute(
            "SELECT head.revision, head.trimmed, c.path, c.value, c.version, c.session"
            " FROM head LEFT JOIN changes c ON c.revision = ? ORDER BY c.number",
            (revision,),
        ).fetchall()
        newest, trimmed = rows[0][:2]
        if not trimmed < revision <= newest:
            return None
        return [
            (path, None if version is None else _entry(path, value, version, session))
            for _, _, path, value, version, session in rows
            if path is not None
        ]

    def close(self) -> None:
        self._connection.close()


def _entry(path: str, value: bytes, version: int, session: int | None) -> Entry:
    return Entry(path, value, version, None if session is None else str(session))


def write_lock_holders(path: Path) -> list[int]:
    """Ids of the processes that hold the store's write lock, from /proc/locks; may be empty."""
    # Never open the -shm file: closing it would drop SQLite's own locks in this process.
    try:
        inode = Path(f"{path}-shm").stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    return sorted(_holders(lines, inode))


def _holders(lines: Iterable[str], inode: int) -> set[int]:
    pids = set()
    for line in lines:
        match line.split():
            case [_, "POSIX", _, "WRITE", pid, file, first, last]:  # a waiting lock has a `->`
                reaches = last == "EOF" or int(last) >= SHARED_MEMORY_WRITE_LOCK_BYTE
                covers = int(first) <= SHARED_MEMORY_WRITE_LOCK_BYTE and reaches
                if file.endswith(f":{inode}") and covers:
                    pids.add(int(pid))
            case _:
                pass
    return pids
