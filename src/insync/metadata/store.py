"""What a metadata store promises.

The tree is small, so every broker holds all of it: reading is a look into a local `View`, kept
current by change notice. Writing is a step: several operations over several nodes, all or
nothing, each naming the version it builds on.

- All operations of a step look at the tree as it was before the step, and a step changes a path
  at most once, so their order decides only which one a `Conflict` names.
- A node's version is 0 when it is created and grows by one with each write. A node deleted and
  created again starts at 0 again.
- Parents need not exist: `/a/b` may be created without `/a`, and deleting `/a` leaves `/a/b`.
- `revision` grows by one with each committed step. Every store sees the same steps in the same
  order, each exactly once, whole.
- A session is a broker's life as the others see it. Its id is its incarnation, a number that is
  never given twice and grows. Its ephemeral nodes, among them `/sessions/<incarnation>`,
  vanish in one step when it ends. A step that must not outlive a session checks that node.
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
    """One node. `session` is the incarnation, in digits, of the session it will end with."""

    path: str
    value: bytes
    version: int
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What one step did to one node: `before` is None if it made it, `after` if it deleted it."""

    path: str
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, slots=True)
class Create:
    """The node is not there yet; an ephemeral one belongs to the session of the committer."""

    path: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """The node is there at this version."""

    path: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """The node is there, at this version or (None) at any."""

    path: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """The node is there, at this version or (None) at any; it stays as it is."""

    path: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class CheckAbsent:
    """The node is not there."""

    path: str


Operation = Create | Write | Delete | Check | CheckAbsent
Watcher = Callable[[Sequence[Change]], None]


class MetadataStore(Protocol):
    """One broker's handle on the tree. All of it belongs to one event loop."""

    @property
    def revision(self) -> int:
        """The newest step that the local view includes."""

    def get(self, path: str) -> Entry | None: ...

    def children(self, path: str) -> list[str]:
        """Names, not paths, of what is directly below; sorted. A node implies its parents."""

    def under(self, prefix: str) -> Iterator[Entry]:
        """Every node below `prefix`, itself not included, sorted by path."""

    def snapshot(self) -> Mapping[str, Entry]:
        """The whole tree at `revision`; later changes do not show in it."""

    async def commit(self, *operations: Operation) -> int:
        """Make one step and return its revision; the local view includes it by then.

        Raises Conflict for the first operation that fails, SessionEnded for an ephemeral node
        without a living session, Unavailable. After a Conflict the local view is at least as new
        as what refused, so the caller may read and try again. A cancelled commit may still happen.
        """

    def catch_up(self) -> None:
        """Include every step made before now, at once, telling the watchers: for who was away.

        Does not wait for anybody; where the store cannot be read the view stays as it is. Asked
        by a watcher, it does so as soon as the step that is being told is told to all.
        """

    def watch(self, callback: Watcher) -> Callable[[], None]:
        """Call back with the changes of each step from now on, in order; returns the way out.

        The local view is at exactly that step during the call. A reader who fell behind the
        change log gets the difference as one step.
        """

    async def open_session(self, name: str) -> int:
        """Begin a session and return its incarnation; `name` is for people, not unique."""

    async def close_session(self) -> None:
        """End the own session, if there is one, with its ephemeral nodes."""

    @property
    def session(self) -> str | None:
        """The own session as `Entry.session` has it; None when there is none or it is lost."""

    @property
    def session_lost(self) -> asyncio.Event:
        """Set when the own session ended and it was not `close_session`; cleared by a new one."""

    def is_alive(self, now_ms: int) -> bool:
        """May this broker still speak for its session? Once no, no until it opens a new one.

        No later than the others give it up: ask before acknowledging anything.
        """

    async def start(self) -> None: ...

    async def close(self) -> None:
        """End the session and let go of everything."""


def check_step(operations: Sequence[Operation]) -> None:
    """Assert what no caller may get wrong: these are our bugs, not the world's."""
    assert 0 < len(operations) <= OPERATIONS_MAX, f"a step of {len(operations)} operations"
    changed: set[str] = set()
    for operation in operations:
        check_path(operation.path)
        match operation:
            case Create(path) | Write(path) | Delete(path):
                assert path not in changed, f"a step changes {path} twice"
                assert paths.session_of(path) is None, f"{path} is the store's to change"
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
    """What the operation wanted to find, for the message of a Conflict."""
    match operation:
        case Create() | CheckAbsent():
            return "nothing"
        case Write(version=version):
            return f"version {version}"
        case Delete(version=version) | Check(version=version):
            return "a node" if version is None else f"version {version}"
