"""Ids as Kafka writes them in files and on the screen: base64 without padding, 22 characters."""

from __future__ import annotations

import base64
import binascii
from uuid import UUID


def write_uuid(uuid: UUID) -> str:
    return base64.urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()


def read_uuid(text: str) -> UUID:
    """The id, or `ValueError`."""
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except binascii.Error as error:
        raise ValueError(f"{text!r} is no id") from error
