"""Parses rates, network bandwidths, durations and percentages, as people write them."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from insync.rules.refusals import BadSetting

RATE_MAX: Final = 2**63 - 1
_NUMBER = r"([0-9]{1,19}(?:\.[0-9]{1,9})?)"
_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_BITS: Final = {
    f"{prefix}{unit}": factor
    for prefix, factor in (("", 1), ("k", 1_000), ("m", 1_000_000), ("g", 1_000_000_000))
    for unit in ("bit", "bps")
}
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def rate(text: str, *, flag: str) -> int:
    """Bytes per second, as `1000000`, `10MB` or `10MB/s`; above zero."""
    match = re.fullmatch(rf"{_NUMBER} ?([a-z]*?)(?:/s)?", text.strip().lower())
    factor = None if match is None else _BYTES.get(match[2])
    if match is None or factor is None:
        raise BadSetting(
            f"{flag}: {text!r} is no rate; write bytes per second above 0, as 10000000 or 10MB"
        )
    return _whole(Fraction(match[1]) * factor, text, flag)


def network(text: str, *, flag: str) -> int:
    """Bytes per second of `1Gbit`, or of a rate in bytes."""
    match = re.fullmatch(rf"{_NUMBER} ?([a-z]+?)(?:/s)?", text.strip().lower())
    factor = None if match is None else _BITS.get(match[2])
    if match is None or factor is None:
        try:
            return rate(text, flag=flag)
        except BadSetting:
            raise BadSetting(f"{flag}: {text!r} is no network; write it as 1Gbit") from None
    return _whole(Fraction(match[1]) * factor / 8, text, flag)


def seconds(text: str, *, flag: str) -> int:
    """`30m`, `2h`, `90s`, `1h30m`; above zero."""
    parts = re.findall(r"([0-9]{1,9})([smhd])", text.strip().lower())
    total = sum(int(number) * _SECONDS[unit] for number, unit in parts)
    if "".join(f"{number}{unit}" for number, unit in parts) != text.strip().lower() or not total:
        raise BadSetting(f"{flag}: {text!r} is no span of time; write it as 30m, 2h or 1h30m")
    return total


def fraction(text: str, *, flag: str) -> Fraction:
    """`30%`: above 0, at most the whole."""
    match = re.fullmatch(rf"{_NUMBER} ?%", text.strip())
    share = Fraction(0) if match is None else Fraction(match[1]) / 100
    if not 0 < share <= 1:
        raise BadSetting(f"{flag}: {text!r} is no fraction of the network; write it as 30%")
    return share


def milliseconds(text: str, *, flag: str) -> int:
    is_number = re.fullmatch(r"[0-9]{1,10}", text) is not None
    if not is_number or not 0 < int(text) < 2**31:
        raise BadSetting(f"{flag}: {text!r} is no time; write milliseconds above 0")
    return int(text)


def _whole(value: Fraction, text: str, flag: str) -> int:
    if not 1 <= value <= RATE_MAX:
        raise BadSetting(f"{flag}: {text!r} must be at least 1 B/s and at most {RATE_MAX}")
    return int(value)
