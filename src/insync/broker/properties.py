"""Properties files, of brokers and of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from insync.broker.settings import parse_properties
from insync.client.small_files import read_small_text
from insync.rules.refusals import BadSetting

FILE_BYTES_MAX: Final = 1 << 20


def read_properties(path: Path) -> dict[str, str]:
    text = read_small_text(path, bytes_max=FILE_BYTES_MAX, refusal=BadSetting)
    try:
        return parse_properties(text)
    except BadSetting as refusal:
        raise BadSetting(f"{path}: {refusal}") from None
