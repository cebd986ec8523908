"""Commands of a broker with faults, as one line of JSON each.

{"do": "slow-reads", "delay_ms": 500, "topic": "orders", "partition": 0}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import Any, Final, get_args, get_type_hints

from insync.rules.refusals import Refusal

LINE_BYTES_MAX: Final = 4 << 10

DAY_MS: Final = 24 * 60 * 60 * 1_000
PARTITION_MAX: Final = 2**31 - 1
BYTES_MAX: Final = 2**63 - 1
PORT_MAX: Final = 65_535
ERRORS: Final = ("EIO", "ENOSPC")


class BadCommand(Refusal):
    """A line that is not a command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowReads:
    delay_ms: int
    topic: str | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailReads:
    error: str = "EIO"
    topic: str | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailWrites:
    error: str = "ENOSPC"
    after_bytes: int = 0
    topic: str | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CutBroker:
    broker: int
    port: int
    sends: bool = True
    receives: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CutClients:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class MendBroker:
    broker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftWallClock:
    by_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal:
    pass


Command = (
    SlowReads | FailReads | FailWrites | CutBroker | CutClients | MendBroker | ShiftWallClock | Heal
)

NAMES: Final[dict[str, type[Command]]] = {
    "slow-reads": SlowReads,
    "fail-reads": FailReads,
    "fail-writes": FailWrites,
    "cut-broker": CutBroker,
    "cut-clients": CutClients,
    "mend-broker": MendBroker,
    "shift-wall-clock": ShiftWallClock,
    "heal": Heal,
}

BOUNDS: Final = {
    "delay_ms": (0, DAY_MS),
    "partition": (0, PARTITION_MAX),
    "after_bytes": (0, BYTES_MAX),
    "broker": (0, PARTITION_MAX),
    "port": (1, PORT_MAX),
    "by_ms": (-36_500 * DAY_MS, 36_500 * DAY_MS),
}


def encode(command: Command) -> bytes:
    (name,) = (name for name, kind in NAMES.items() if isinstance(command, kind))
    return json.dumps({"do": name, **asdict(command)}).encode() + b"\n"


def parse(line: bytes) -> Command:
    """The command in a line; raises BadCommand with the reason."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise BadCommand("not a line of JSON") from None
    if not isinstance(values, dict):
        raise BadCommand('a command is an object: {"do": ...}')
    name = values.pop("do", None)
    if not isinstance(name, str) or name not in NAMES:
        raise BadCommand(f'"do" is one of {", ".join(NAMES)}')
    kind = NAMES[name]
    types = get_type_hints(kind)
    for key, value in values.items():
        if key not in types:
            raise BadCommand(f"{name} has no {key[:40]!r}; it has {', '.join(types) or 'nothing'}")
        _check(key, value, types[key])
    try:
        command = kind(**values)
    except TypeError:
        missing = [each.name for each in fields(kind) if each.name not in values]
        raise BadCommand(f"{name} lacks one of {', '.join(missing)}") from None
    if values.get("partition") is not None and values.get("topic") is None:
        raise BadCommand("a partition needs a topic; name it too")
    return command


def _check(key: str, value: Any, annotation: Any) -> None:
    kinds = get_args(annotation) or (annotation,)
    if type(value) not in kinds:  # bool is a subclass of int, but no number here
        names = " or ".join("null" if kind is NoneType else kind.__name__ for kind in kinds)
        raise BadCommand(f"{key} must be {names}")
    if key == "error" and value not in ERRORS:
        raise BadCommand(f"error is one of {', '.join(ERRORS)}")
    low, high = BOUNDS.get(key, (None, None))
    if isinstance(value, int) and low is not None and high is not None and not low <= value <= high:
        raise BadCommand(f"{key} must be between {low} and {high}")
