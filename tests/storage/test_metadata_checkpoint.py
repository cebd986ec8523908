"""The checkpoint of the metadata store's revision survives a loss of power, old or new."""

from __future__ import annotations

import pytest

from insync.storage.memory_disk import MemoryDisk
from insync.storage.metadata_checkpoint import (
    MetadataCheckpoint,
    read_metadata_checkpoint,
    write_metadata_checkpoint,
)

ONE = MetadataCheckpoint(revision=7, fingerprint="ab")
TWO = MetadataCheckpoint(revision=9, fingerprint="")


def test_a_checkpoint_survives_a_loss_of_power() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    assert read_metadata_checkpoint(disk, "/data") is None
    for checkpoint in (ONE, TWO):
        write_metadata_checkpoint(disk, "/data", checkpoint)
        disk.lose_power()
        assert read_metadata_checkpoint(disk, "/data") == checkpoint
    assert disk.list("/data") == ["metadata-checkpoint"]


@pytest.mark.parametrize("data", [b"", b"version=1\n", b"version=1\nrevision=-1\n", b"\xff\n"])
def test_a_file_that_cannot_be_read_is_not_used(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    disk.write_atomic("/data/metadata-checkpoint", data)
    assert read_metadata_checkpoint(disk, "/data") is None
    assert "is not used" in caplog.text


def test_a_changed_or_truncated_checkpoint_is_not_used() -> None:
    disk = MemoryDisk()
    disk.make_dirs("/data")
    write_metadata_checkpoint(disk, "/data", ONE)
    whole = disk.read_all("/data/metadata-checkpoint")
    damaged = [whole[:size] for size in range(len(whole))]
    damaged += [
        whole[:at] + bytes([whole[at] ^ flipped]) + whole[at + 1 :]
        for at in range(len(whole))
        for flipped in (1, 16, 255)
    ]
    for data in damaged:
        disk.write_atomic("/data/metadata-checkpoint", data)
        assert read_metadata_checkpoint(disk, "/data") is None, data
