"""The local copy of the tree: what a broker reads from, and what tells it of changes."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from insync.metadata.store import Change, Entry, Watcher

Steps = Sequence[tuple[int, Sequence[tuple[str, Entry | None]]]]  # (revision, what it left)


class View:
    """The tree as of `revision`. Steps are applied in order; a repeated one is passed over."""

    def __init__(self) -> None:
        self.revision = 0
        self.is_telling = False
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
        # Gathered before the first is handed out: the caller may await between two of them.
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
        """Follow the steps that are new; between two of them the watchers are told."""
        for revision, left in steps:
            if revision <= self.revision:
                continue
            assert revision == self.revision + 1, f"step {revision} after {self.revision}"
            self.revision = revision
            self._tell([self._put(path, after) for path, after in left])

    def become(self, revision: int, entries: Iterable[Entry]) -> None:
        """Jump to a whole tree, telling the watchers the difference as one step."""
        if revision <= self.revision:
            return
        target = {entry.path: entry for entry in entries}
        self.revision = revision
        different = sorted(
            path
            for path in self._entries.keys() | target.keys()
            if self._entries.get(path) != target.get(path)
        )
        self._tell([self._put(path, target.get(path)) for path in different])

    def _tell(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        assert not self.is_telling, "a step is told whole before the next"
        self.is_telling = True
        try:
            self._tell_all(changes)
        finally:
            self.is_telling = False

    def _tell_all(self, changes: Sequence[Change]) -> None:
        for key, callback in list(self._watchers.items()):
            if key not in self._watchers:
                continue  # an earlier callback unsubscribed it
            try:
                callback(changes)
            except Exception as error:
                # One watcher's bug must not keep the change from the others, nor stop the view.
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "a metadata watcher failed", "exception": error}
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
