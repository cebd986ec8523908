"""`sasl.jaas.config`: one login module and its options, as Kafka's clients read it.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";

Words are bare or in quotes, where a backslash escapes; comments are Java's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from insync.rules.refusals import BadSetting

CONTROL_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})

_TOKEN: Final = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/
      | "(?P<double>(?:\\.|[^"\\])*)" | '(?P<single>(?:\\.|[^'\\])*)'
      | (?P<mark>[=;]) | (?P<word>[^\s=;"']+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(?P<octal>[0-3]?[0-7]{1,2})|\\(?P<letter>.)", re.DOTALL)
_LETTERS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LoginModule:
    class_name: str
    options: Mapping[str, str]

    @property
    def name(self) -> str:
        """Without its package, which differs between the shaded copies of Kafka's client."""
        return self.class_name.rpartition(".")[2]


def parse_jaas(text: str) -> LoginModule:
    """No error message has a part of `text`: it holds passwords."""
    tokens = _tokens(text)
    if len(tokens) < 2 or "" in (tokens[0][0], tokens[1][0]):  # noqa: PLR2004 - module and flag
        raise BadSetting("sasl.jaas.config names no login module and control flag")
    (module, _), (flag, _), *rest = tokens
    if flag.lower() not in CONTROL_FLAGS:
        known = ", ".join(sorted(CONTROL_FLAGS))
        raise BadSetting(f"sasl.jaas.config: after the login module comes one of {known}")
    if not rest or rest[-1] != (";", True):
        raise BadSetting("sasl.jaas.config does not end with a semicolon")
    if (";", True) in rest[:-1]:
        raise BadSetting("sasl.jaas.config holds more than one login module")
    return LoginModule(class_name=module, options=_options(rest[:-1]))


_Token = tuple[str, bool]  # the text, and whether it is a mark


def _options(tokens: list[_Token]) -> dict[str, str]:
    options = {}
    for at in range(0, len(tokens), 3):
        match tokens[at : at + 3]:
            case [(name, False), ("=", True), (value, False)]:
                options[name] = value
            case [(name, False), *_]:
                raise BadSetting(f"sasl.jaas.config: {name[:40]!r} is not followed by =VALUE")
            case _:
                raise BadSetting("sasl.jaas.config: an option has no name")
    return options


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise BadSetting("sasl.jaas.config: a quote is not closed")
        at = token.end()
        if token["mark"]:
            tokens.append((token["mark"], True))
        elif token["word"] is not None:
            tokens.append((token["word"], False))
        elif token["double"] is not None or token["single"] is not None:
            quoted = token["double"] if token["single"] is None else token["single"]
            tokens.append((_ESCAPE.sub(_unescape, quoted), False))
    return tokens


def _unescape(escape: re.Match[str]) -> str:
    if escape["octal"]:
        return chr(int(escape["octal"], 8))
    return _LETTERS.get(escape["letter"], escape["letter"])
