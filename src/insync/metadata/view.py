"""The local copy of the tree: a broker reads from it, and it notifies watchers of changes."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import Final

from insync.metadata.store import Change, Entry, Watcher

FINGERPRINT_CHARACTERS: Final = 32

NodesAfter = Sequence[tuple[str, Entry | None]]
Step = tuple[int, NodesAfter]  # the revision, and the nodes after it
Steps = Sequence[Step]


def fingerprint(nodes: NodesAfter) -> str:
    """Tells a step from another that made the same revision of a store that went back.

    Empty for a step that changes nothing.
    """
    if not nodes:
        return ""
    digest = sha256()
    for path, after in nodes:
        node = None if after is None else (after.value, after.version, after.session)
        digest.update(repr((path, node)).encode())
    return digest.hexdigest()[:FINGERPRINT_CHARACTERS]


class View:
    """The tree as of `revision`. Steps are applied in order; a repeated one is skipped."""

    def __init__(self) -> None:
        self.revision = 0
        self.latest_step: Step | None = None
        """The newest step that changed nodes; None if the view began with a later tree."""
        self.is_notifying = False
        self._entries: dict[str, Entry] = {}
        # For each path that has something below it: names of children, each with how many
        # entries are at or below it. Reading children does not look at the rest of the tree.
        self._children: dict[str, dict[str, int]] = {}
        self._watchers: dict[int, Watcher] = {}
        self._watchers_ever = 0

    def get(self, path: str) -> Entry | None:
        return self._entries.get(path)

    def children(self, path: str) -> list[str]:
        return sorted(self._children.get(path.rstrip("/"), ()))

    def under(self, prefix: str) -> Iterator[Entry]:
        # Collected before the first is returned: the caller may await between two of them.
        return iter(sorted(self._below(prefix.rstrip("/")), key=lambda entry: entry.path))

    def snapshot(self) -> Mapping[str, Entry]:
        return MappingProxyType(dict(self._entries))

    def watch(self, callback: Watcher) -> Callable[[], None]:
        self._watchers_ever += 1
        key = self._watchers_ever
        self._watchers[key] = callback

        def unsubscribe() -> None:
            self._watchers.pop(key, None)

        return unsubscribe

    def apply(self, steps: Steps) -> None:
        """Apply the steps that are new, and notify the watchers after each."""
        for revision, nodes in steps:
            if revision <= self.revision:
                continue
            assert revision == self.revision + 1, f"step {revision} after {self.revision}"
            self.revision = revision
            if nodes:
                self.latest_step = (revision, nodes)
            self._notify([self._put(path, after) for path, after in nodes])

    def reset_to(self, revision: int, entries: Iterable[Entry]) -> None:
        """Replace the whole tree, and notify the watchers of the difference as one step."""
        if revision <= self.revision:
            return
        target = {entry.path: entry for entry in entries}
        self.revision, self.latest_step = revision, None
        different = sorted(
            path
            for path in self._entries.keys() | target.keys()
            if self._entries.get(path) != target.get(path)
        )
        self._notify([self._put(path, target.get(path)) for path in different])

    def _notify(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        assert not self.is_notifying, "all watchers get a step before the next"
        self.is_notifying = True
        try:
            self._call_watchers(changes)
        finally:
            self.is_notifying = False

    def _call_watchers(self, changes: Sequence[Change]) -> None:
        for key, callback in list(self._watchers.items()):
            if key not in self._watchers:
                continue  # an earlier callback unsubscribed it
            try:
                callback(changes)
            except Exception as error:
                # A bug of one watcher must not stop the view or the other watchers.
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "metadata: a watcher failed", "exception": error}
                )

    def _put(self, path: str, after: Entry | None) -> Change:
        before = self._entries.get(path)
        if after is None:
            self._entries.pop(path, None)
        else:
            self._entries[path] = after
        growth = (after is not None) - (before is not None)
        if growth:
            self._count(path, growth)
        return Change(path, before, after)

    def _count(self, path: str, growth: int) -> None:
        while path:
            parent, _, name = path.rpartition("/")
            names = self._children.setdefault(parent, {})
            names[name] = names.get(name, 0) + growth
            if not names[name]:
                del names[name]
            if not names:
                del self._children[parent]
            path = parent

    def _below(self, prefix: str) -> Iterator[Entry]:
        for name in self._children.get(prefix, ()):
            path = f"{prefix}/{name}"
            entry = self._entries.get(path)
            if entry is not None:
                yield entry
            yield from self._below(path)


class ReadsFromView:
    """The reading half of a `MetadataStore`: every read and every watcher is its view's."""

    _view: View

    @property
    def revision(self) -> int:
        return self._view.revision

    @property
    def latest_step(self) -> tuple[int, str]:
        step = self._view.latest_step
        return (self.revision, "") if step is None else (step[0], fingerprint(step[1]))

    def get(self, path: str) -> Entry | None:
        return self._view.get(path)

    def children(self, path: str) -> list[str]:
        return self._view.children(path)

    def under(self, prefix: str) -> Iterator[Entry]:
        return self._view.under(prefix)

    def snapshot(self) -> Mapping[str, Entry]:
        return self._view.snapshot()

    def watch(self, callback: Watcher) -> Callable[[], None]:
        return self._view.watch(callback)
