"""A tree whose steps the SQLite store makes: its statements, and its file when the power fails.

The store's threads, polling and session files are not simulated: they use real time, and have tests
of their own.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Final

from insync.metadata import database, paths
from insync.metadata.errors import SessionEnded
from insync.metadata.memory import CHANGE_LOG_STEPS_MAX, MemoryTree, no_delay
from insync.metadata.store import Create, Operation

NAME: Final = "metadata.db"
FOLDERS: Final = "insync-sim-"
TORN_BYTES_MAX: Final = 20_000


class SqliteTree(MemoryTree):
    def __init__(
        self,
        *,
        delay_ms: Callable[[], int] = no_delay,
        change_log_steps_max: int = CHANGE_LOG_STEPS_MAX,
    ) -> None:
        super().__init__(delay_ms=delay_ms, change_log_steps_max=change_log_steps_max)
        self._open(mkdtemp(prefix=FOLDERS))

    def _open(self, folder: str) -> None:
        self._folder = folder
        # Also for a run that fails, or a test that does not close it.
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / NAME
        rows_max = database.CHANGE_LOG_ROWS_MAX
        writing = database.connect(path, synchronous="FULL")
        self._writer = database.Writer(writing, log_rows_max=rows_max)
        self._reader = database.Reader(database.connect(path, synchronous="FULL"))

    def step(self, operations: Sequence[Operation], session: str | None) -> int:
        for each in operations:
            if session is None and isinstance(each, Create) and each.ephemeral:
                raise SessionEnded(f"{each.path}: there is no session it could belong to")
        self._writer.load(operations, None if session is None else int(session))
        self._writer.step(operations)
        return self._read_steps()

    def begin_session(self, name: str) -> int:
        self._incarnation = incarnation = self._writer.next_incarnation()
        operations = (Create(paths.session(incarnation), name.encode(), ephemeral=True),)
        self._writer.load(operations, incarnation)
        self._writer.step(operations)
        self._read_steps()
        return incarnation

    def end_session(self, session: int | str) -> None:
        self._writer.end_session(int(session))
        self._read_steps()

    def _read_steps(self) -> int:
        """Apply what the file has and this tree has not, as a broker's store does."""
        steps = self._reader.after(self.revision)
        assert not isinstance(steps, database.Tree), "the change log has every step of a run"
        for revision, nodes in steps:
            assert self._commit(list(nodes)) == revision
        return self.revision

    def lose_power(self, random: Random) -> None:
        """Go on with what is on disk: the file and its log, perhaps with a step half written."""
        before = Path(self._folder) / NAME
        folder = mkdtemp(prefix=FOLDERS)
        after = Path(folder) / NAME
        shutil.copy(before, after)
        write_ahead_log = Path(f"{before}-wal").read_bytes()
        torn = random.choice(
            (b"", random.randbytes(random.randint(1, TORN_BYTES_MAX)), write_ahead_log[-4_200:-60])
        )
        Path(f"{after}-wal").write_bytes(write_ahead_log + torn)
        self.close()
        self._open(folder)
        tree = self._reader.tree()
        entries = {entry.path: entry for entry in tree.entries}
        assert (tree.revision, entries) == (self.revision, self.entries), "the store lost steps"

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
        self._remove_folder()
