"""What a metadata store guarantees.

The tree is small, so every broker holds all of it. It reads from a local `View`, which change
notifications keep current. It writes in steps: several operations on several nodes, all or
nothing, each with the version it builds on.

- All operations of a step see the tree as it was before the step, and a step changes a path
  at most once, so their order decides only which one a `Conflict` names.
- A node's version is 0 when it is created and grows by one with each write. A node deleted and
  created again starts at 0 again.
- Parents need not exist: `/a/b` may be created without `/a`, and deleting `/a` leaves `/a/b`.
- `revision` grows by one with each committed step. Every store sees the same steps in the same
  order, each exactly once, whole.
- A store that goes back (its file is replaced, or lost its newest steps) is not applied: it counts
  as unreadable, and the session of a broker that finds it so is lost.
- A broker is live while its session is. The session's id is its incarnation, a number that is
  never used twice and grows. Its ephemeral nodes, among them `/sessions/<incarnation>`, are
  deleted in one step when it ends. A step that must not outlive a session checks that node.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from insync.metadata import paths

VALUE_BYTES_MAX = 1 << 20  # as ZooKeeper's: a small value that every broker keeps in memory
PATH_CHARACTERS_MAX = 1024
# A step over every partition of a broker, with checks, for some thousands of partitions. More
# is several steps: the write lock of the whole cluster is held while one is made.
OPERATIONS_MAX = 20_000
STATES_PER_STEP_MAX = 5_000  # of partitions: the store's lock is held meanwhile


@dataclass(frozen=True, slots=True)
class Entry:
    """One node. `session` is the incarnation, in digits, of the session it is deleted with."""

    path: str
    value: bytes
    version: int
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A node before and after a step: `before` is None if it is new, `after` if it was deleted."""

    path: str
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node that does not exist; an ephemeral one belongs to the store's own session."""

    path: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """Write a node that exists at this version."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node that exists at this version or (None) at any."""

    path: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Require that a node exists at this version or (None) at any."""

    path: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class CheckAbsent:
    """Require that a node does not exist."""

    path: str


Operation = Create | Write | Delete | Check | CheckAbsent
Watcher = Callable[[Sequence[Change]], None]


class MetadataStore(Protocol):
    """One broker's connection to the tree. Used from one event loop only."""

    @property
    def revision(self) -> int:
        """The newest step that the local view includes."""

    @property
    def latest_step(self) -> tuple[int, str]:
        """Revision and fingerprint of the newest step that the local view includes and that
        changed a node. The fingerprint is empty if the view began with a later tree.
        """

    async def fingerprint_of(self, revision: int) -> str | None:
        """The fingerprint of an earlier step; None if the change log no longer has it.

        Raises Unavailable if the store cannot be read.
        """

    def get(self, path: str) -> Entry | None: ...

    def children(self, path: str) -> list[str]:
        """Sorted names, not paths, of what is directly below `path`. A node implies its parents."""

    def under(self, prefix: str) -> Iterator[Entry]:
        """Every node below `prefix`, without `prefix` itself, sorted by path."""

    def snapshot(self) -> Mapping[str, Entry]:
        """The whole tree at `revision`; later changes do not show in it."""

    async def commit(self, *operations: Operation) -> int:
        """Make one step and return its revision; the local view includes it by then.

        Raises Conflict for the first operation that fails, SessionEnded for an ephemeral node
        without a live session, Unavailable. After a Conflict the local view is at least as new
        as the tree that refused, so the caller may read and try again. A cancelled commit may still
        be made.
        """

    def catch_up(self) -> None:
        """Apply every step made before now, at once, and notify the watchers: after a pause.

        Never waits. If the store cannot be read, the view stays as it is. Called by a watcher, it
        does so once all watchers are notified of the current step.
        """

    def watch(self, callback: Watcher) -> Callable[[], None]:
        """Call back with the changes of each step from now on, in order; returns `unsubscribe`.

        The local view is at exactly that step during the call. A reader that fell behind the
        change log gets the difference as one step.
        """

    async def open_session(self, name: str) -> int:
        """Begin a session and return its incarnation; `name` is for operators, not unique."""

    async def close_session(self) -> None:
        """End this store's session, if there is one, with its ephemeral nodes."""

    @property
    def session(self) -> str | None:
        """This store's session as in `Entry.session`; None if there is none or it is lost."""

    @property
    def session_lost(self) -> asyncio.Event:
        """Set when the session ended without `close_session`; cleared by a new session."""

    def is_alive(self, now_ms: int) -> bool:
        """Whether this broker may still act for its session. Once False, False until a new one.

        False no later than other brokers may end the session: check it before acknowledging.
        """

    def is_frozen(self, incarnation: int) -> bool:
        """Whether another broker's session ended because its heartbeat stopped, not its process.

        False if that is not known, and once so many sessions have ended since.
        """

    async def start(self) -> None: ...

    async def close(self) -> None:
        """End the session and release all resources."""


def check_step(operations: Sequence[Operation]) -> None:
    """Assert what every caller must respect: a violation is a bug of Insync."""
    assert 0 < len(operations) <= OPERATIONS_MAX, f"a step of {len(operations)} operations"
    changed: set[str] = set()
    for operation in operations:
        check_path(operation.path)
        match operation:
            case Create(path) | Write(path) | Delete(path):
                assert path not in changed, f"a step changes {path} twice"
                assert paths.session_of(path) is None, f"only the store changes {path}"
                changed.add(path)
            case Check() | CheckAbsent():
                pass
        match operation:
            case Create(path, value) | Write(path, value):
                assert len(value) <= VALUE_BYTES_MAX, f"{path}: {len(value)} bytes are too many"
            case Delete() | Check() | CheckAbsent():
                pass


def check_path(path: str) -> None:
    assert path.startswith("/"), f"a path begins with a slash: {path!r}"
    assert "//" not in path, f"a path has no empty part: {path!r}"
    assert len(path) > 1, "the root is not a node"
    assert not path.endswith("/"), f"a path does not end with a slash: {path!r}"
    assert "\0" not in path, f"a path has no NUL: {path!r}"
    assert len(path) <= PATH_CHARACTERS_MAX, f"a path of {len(path)} characters"


def expectation(operation: Operation) -> str:
    """The condition of the operation, for the message of a Conflict."""
    match operation:
        case Create() | CheckAbsent():
            return "nothing"
        case Write(version=version):
            return f"version {version}"
        case Delete(version=version) | Check(version=version):
            return "a node" if version is None else f"version {version}"
