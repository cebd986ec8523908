"""Properties as Java reads them, so that files for Kafka's own tools work unchanged.

Unlike a broker's file, a client's holds PEM texts over many lines and quoted passwords, so that
continuation lines and escapes are supported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from insync.rules.refusals import BadSetting

_BLANKS: Final = " \t\f"
_ENTRY: Final = re.compile(
    r"(?P<key>(?:\\.|[^\\=: \t\f])+)(?:[ \t\f]*[=:][ \t\f]*|[ \t\f]+)(?P<value>.*)", re.DOTALL
)
_ESCAPE: Final = re.compile(r"\\(u(?P<hex>[0-9A-Fa-f]{4})|(?P<bad>u)|(?P<letter>.)|$)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_java_properties(text: str) -> dict[str, str]:
    """The last value of a key wins; a line without a value is refused (Java reads it as "")."""
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            raise BadSetting(f"line {number}: {line[:40]!r} is not of the form key=value")
        properties[_unescaped(entry["key"], number)] = _unescaped(entry["value"], number).rstrip()
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines, joined where a backslash continues one; each with the number it begins at."""
    parts: list[str] = []
    begins_at = 0
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        line = raw.lstrip(_BLANKS)
        if not parts:
            if not line or line[0] in "#!":
                continue
            begins_at = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        yield begins_at, "".join([*parts, line])
        parts = []
    if parts:
        yield begins_at, "".join(parts)


def _unescaped(text: str, number: int) -> str:
    def unescape(escape: re.Match[str]) -> str:
        if escape["bad"]:
            raise BadSetting(f"line {number}: \\u needs four hexadecimal digits")
        if escape["hex"]:
            return chr(int(escape["hex"], 16))
        letter = escape["letter"] or ""
        return _LETTERS.get(letter, letter)

    # \uD83D\uDE00 is how Java writes one character beyond the first 65536.
    return _ESCAPE.sub(unescape, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
