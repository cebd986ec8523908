"""`--command-config`: a client's settings in Kafka's properties."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from insync.client import sasl, tls
from insync.client.admin_connections import Patience
from insync.client.connection import Network
from insync.client.java_properties import parse_java_properties
from insync.client.secure_sockets import SecureSockets, Security
from insync.client.small_files import read_small_text
from insync.client.sockets import Sockets
from insync.rules.refusals import BadSetting

FILE_BYTES_MAX: Final = 1 << 20
MS_MAX: Final = 2**31 - 1
CLIENT_ID: Final = "insync-admin"
CLIENT_ID_CHARACTERS_MAX: Final = 1_000

PROTOCOL: Final = "security.protocol"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
REQUEST_MS: Final = "request.timeout.ms"
OPERATION_MS: Final = "default.api.timeout.ms"

_SASL: Final = frozenset({sasl.MECHANISM, sasl.JAAS, sasl.TOKEN, sasl.TOKEN_URL})
KNOWN: Final = frozenset({PROTOCOL, "client.id", REQUEST_MS, OPERATION_MS, *_SASL, *tls.NAMES})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CommandConfig:
    network: Network = field(default_factory=Sockets)
    client_id: str = CLIENT_ID
    patience: Patience = field(default_factory=Patience)
    notes: tuple[str, ...] = ()  # about ignored properties, for operators


def read_command_config(path: Path, default: Patience) -> CommandConfig:
    text = read_small_text(path, bytes_max=FILE_BYTES_MAX, refusal=BadSetting)
    try:
        return command_config(parse_java_properties(text), default)
    except BadSetting as refusal:
        raise BadSetting(f"{path}: {refusal}") from None


def command_config(properties: Mapping[str, str], default: Patience) -> CommandConfig:
    protocol = properties.get(PROTOCOL, "PLAINTEXT").upper()
    if protocol not in PROTOCOLS:
        raise BadSetting(f"{PROTOCOL} is {protocol!r}; it is one of {', '.join(PROTOCOLS)}")
    security = Security(
        tls=tls.tls_from(properties) if protocol.endswith("SSL") else None,
        login=sasl.login_from(properties) if protocol.startswith("SASL") else None,
    )
    client_id = properties.get("client.id", CLIENT_ID)
    if len(client_id) > CLIENT_ID_CHARACTERS_MAX:
        raise BadSetting(f"client.id is longer than {CLIENT_ID_CHARACTERS_MAX} characters")
    return CommandConfig(
        network=Sockets() if protocol == "PLAINTEXT" else SecureSockets(security),
        client_id=client_id,
        patience=Patience(
            request_ms=_milliseconds(properties, REQUEST_MS, default.request_ms),
            operation_ms=_milliseconds(properties, OPERATION_MS, default.operation_ms),
        ),
        notes=_notes(properties, protocol),
    )


def _milliseconds(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, str(default))
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MS_MAX))
    if not is_number or not 0 < int(text) <= MS_MAX:
        raise BadSetting(f"{name} is {text!r}; write milliseconds, 1 to {MS_MAX}")
    return int(text)


def _notes(properties: Mapping[str, str], protocol: str) -> tuple[str, ...]:
    """Warnings of unknown properties, as Kafka's, and of those without effect on this protocol."""
    notes = []
    unknown = sorted(set(properties) - KNOWN)
    if unknown:
        notes.append(f"ignored: {', '.join(map(_with_guess, unknown))}")
    unused = sorted(
        name
        for name in set(properties) & KNOWN
        if (name in tls.NAMES and not protocol.endswith("SSL"))
        or (name in _SASL and not protocol.startswith("SASL"))
    )
    if unused:
        notes.append(f"without effect while {PROTOCOL} is {protocol}: {', '.join(unused)}")
    return tuple(notes)


def _with_guess(name: str) -> str:
    shown = name if len(name) <= 80 and name.isprintable() else repr(name[:80])  # noqa: PLR2004
    close = difflib.get_close_matches(name[:80], KNOWN, n=1, cutoff=0.9)
    return f"{shown} (did you mean {close[0]}?)" if close else shown
