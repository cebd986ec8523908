"""Properties files, of brokers and of clients."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from insync.broker.settings import parse_properties
from insync.rules.refusals import BadSetting

FILE_BYTES_MAX: Final = 1 << 20


def read_properties(path: Path) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise BadSetting(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        return parse_properties(content.decode("utf-8"))
    except OSError as error:
        raise BadSetting(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{path} is not UTF-8 text") from None
    except BadSetting as refusal:
        raise BadSetting(f"{path}: {refusal}") from None
