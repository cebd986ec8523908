"""A broker with the replication quota's path taken out: what an unused throttle is compared with.

`python -m bench.without_quotas --config FILE` is `python -m insync.node` after the statements below
were cut from the source of the modules that carry data. Nothing in the product knows of it, and a
cut that no longer fits what the source says is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path

from insync.rules.refusals import Refusal

Cut = tuple[str, str]  # what the source says, and what it says without quotas


class StaleCut(Refusal):
    """The source has changed since the cut was written."""


SESSIONS: Sequence[Cut] = (
    (
        """\
            if self.is_held_back or self in self.reader.limited:
                replica.watchers[self] = None  # it waits for the quota, not for records
                return
        else:
            self.reader.limited.pop(self, None)  # whether it is limited may have changed
""",
        """\
            pass
""",
    ),
    ("if self.reading is None and not self.is_held_back:", "if self.reading is None:"),
    ("ready, limited = self.reader.ready, self.reader.limited", "ready = self.reader.ready"),
    (
        """\
        if self.is_limited and self.is_behind:
            if not self.is_held_back:
                limited.pop(self, None)  # it got something: the others come first now
            limited[self] = None
            return
        limited.pop(self, None)
""",
        "",
    ),
)
FETCH: Sequence[Cut] = (
    ("    passage: Passage | None  # through the quota, if there is one\n", ""),
    (
        """\
            if found.passage is not None:
                found.passage.leaves()
""",
        "",
    ),
    (
        """\
        passage = None if reader.follower is None else self._fetch.quota.passage(reader)
""",
        "",
    ),
    ("self._in_order(passage)", "self._in_order()"),
    ("def _in_order(self, passage: Passage | None)", "def _in_order(self)"),
    (
        """\
        for interest in list(reader.limited):
            if passage is not None and not passage.is_open:
                break
            yield interest
""",
        "",
    ),
    ("interest, found, left, passage, min_one_batch=", "interest, found, left, min_one_batch="),
    (
        "return Look(parts, size_bytes, must_answer, passage)",
        "return Look(parts, size_bytes, must_answer)",
    ),
    ("        left: int,\n        passage: Passage | None,\n", "        left: int,\n"),
    (
        """\
        treated = _treated(interest, found, passage)
        if interest.is_limited and passage is not None and interest.is_behind:
            left, min_one_batch = passage.room_bytes(left), passage.is_open
            interest.is_held_back = left == 0
""",
        "",
    ),
    (
        """\
        if data is not None and passage is not None and treated is not Treatment.FREE:
            data = _through(passage, interest, data)
""",
        "",
    ),
    ("return None if interest.is_held_back else interest.ahead[1]", "return interest.ahead[1]"),
    ("            is_held_back=interest.is_held_back,\n", ""),
)
FETCHERS: Sequence[Cut] = (
    (
        """\
            if not self._sent:
                self._take_turns()
            if not (self._listed""",
        """\
            if not (self._listed""",
    ),
    (
        """\
        if self._reserved and not self._sent:
            self._end_reservations()
        if self._sent and not self._reserved and (self._to_list or self._held_back):
""",
        """\
        if self._sent and self._to_list:
""",
    ),
    (
        """\
        if part.records and self._quota.is_set:
            self._count(place, replica, len(part.records))
""",
        "",
    ),
    (
        """\
        self._take_turns()
        if self._to_list or self._to_forget:
""",
        """\
        if self._to_list or self._to_forget:
""",
    ),
)
CUTS: Mapping[str, Sequence[Cut]] = {
    "insync.broker.fetch_sessions": SESSIONS,
    "insync.broker.fetch": FETCH,
    "insync.broker.follower_fetch": FETCHERS,
}


def _spec(module: str) -> ModuleSpec:
    found = find_spec(module)
    assert found is not None, f"{module} is ours"
    return found


def source_without(module: str) -> str:
    source = Path(_spec(module).origin or "").read_text()
    for there, instead in CUTS[module]:
        if source.count(there) != 1:
            first = there.strip().splitlines()[0]
            raise StaleCut(f"{module} does not say once: {first}")
        source = source.replace(there, instead)
    return source


def load_without(module: str) -> None:
    """Put the cut module where everybody who imports it finds it."""
    assert module not in sys.modules, f"{module} is imported too early to be cut"
    spec = _spec(module)
    code = compile(source_without(module), spec.origin or module, "exec")
    made = module_from_spec(spec)
    sys.modules[module] = made
    exec(code, made.__dict__)  # noqa: S102 - our own source, less a few lines
    parent, _, name = module.rpartition(".")
    setattr(sys.modules[parent], name, made)


def main(arguments: list[str]) -> int:
    try:
        for module in CUTS:
            load_without(module)
    except StaleCut as refusal:
        sys.stderr.write(f"bench: {refusal}\n")
        return 1
    from insync.node.__main__ import main as run_broker  # noqa: PLC0415 - what it imports is cut

    return run_broker(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
