"""Bytes to messages and back, without sockets."""

from insync.wire.lean_start import import_kio_alone

import_kio_alone()
