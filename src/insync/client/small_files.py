"""Files that an operator names, in a flag or a setting: read whole, up to a limit."""

from __future__ import annotations

from pathlib import Path

from insync.rules.refusals import Refusal


def read_small_file(path: Path, *, bytes_max: int, refusal: type[Refusal]) -> bytes:
    """The contents; raises `refusal` if the file cannot be read or is larger than `bytes_max`."""
    try:
        with path.open("rb") as file:
            content = file.read(bytes_max + 1)
    except OSError as error:
        raise refusal(f"cannot read {path}: {error.strerror}") from None
    if len(content) > bytes_max:
        raise refusal(f"{path} is larger than {bytes_max} bytes")
    return content


def read_small_text(
    path: Path, *, bytes_max: int, refusal: type[Refusal], encoding: str = "utf-8"
) -> str:
    """The same, as text; `encoding` is UTF-8 or a variant of it."""
    try:
        return read_small_file(path, bytes_max=bytes_max, refusal=refusal).decode(encoding)
    except UnicodeDecodeError:
        raise refusal(f"{path} is not UTF-8 text") from None
