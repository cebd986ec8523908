"""One contract, every disk."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from insync.storage.disk import Disk, RealDisk
from insync.storage.errors import DiskError
from insync.storage.memory_disk import MemoryDisk
from insync.testing.faulty_disk import DiskFaults, FaultyDisk

DISKS: dict[str, Callable[[], Disk]] = {
    "real": RealDisk,
    "memory": MemoryDisk,
    "faulty, without faults": lambda: FaultyDisk(RealDisk(), DiskFaults()),
}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest) -> Disk:
    return DISKS[request.param]()


@pytest.fixture
def root(disk: Disk, tmp_path: Path) -> str:
    disk.make_dirs(str(tmp_path))
    return str(tmp_path)


def test_appends_are_read_back_from_any_position(disk: Disk, root: str) -> None:
    file = disk.create(f"{root}/f")
    assert file.append([b"abc", bytearray(b"def"), memoryview(b"ghi")]) == 9
    assert file.append([b"j"]) == 1
    assert file.size == 10
    for reader in (file, disk.open(f"{root}/f")):
        assert bytes(reader.read(2, 5)) == b"cdefg"
        assert bytes(reader.read(8, 100)) == b"ij"
        assert bytes(reader.read(10, 5)) == b""
        assert bytes(reader.read_nowait(0, 4) or b"?") == b"abcd"


def test_truncate_cuts_and_appends_go_on_from_there(disk: Disk, root: str) -> None:
    file = disk.create(f"{root}/f")
    file.append([b"abcdef"])
    file.truncate(2)
    file.append([b"X"])
    file.flush()
    assert (file.size, disk.file_size(f"{root}/f")) == (3, 3)
    assert bytes(file.read(0, 9)) == b"abX"


def test_create_empties_what_was_there(disk: Disk, root: str) -> None:
    disk.write_atomic(f"{root}/f", b"old")
    assert disk.create(f"{root}/f").size == 0
    assert disk.read_all(f"{root}/f") == b""


def test_whole_files_and_file_tails_are_read(disk: Disk, root: str) -> None:
    disk.write_atomic(f"{root}/f", b"first")
    disk.write_atomic(f"{root}/f", b"second")
    assert disk.read_all(f"{root}/f") == b"second"
    assert disk.read_tail(f"{root}/f", 3) == b"ond"
    assert disk.read_tail(f"{root}/f", 30) == b"second"
    assert disk.list(root) == ["f"]


def test_directories(disk: Disk, root: str) -> None:
    disk.make_dirs(f"{root}/a/b")
    disk.make_dirs(f"{root}/a/b")
    disk.write_atomic(f"{root}/a/b/f", b"x")
    disk.write_atomic(f"{root}/z", b"")
    assert disk.list(root) == ["a", "z"]
    disk.rename(f"{root}/a", f"{root}/c")
    assert disk.list(root) == ["c", "z"]
    assert disk.read_all(f"{root}/c/b/f") == b"x"
    disk.rename(f"{root}/z", f"{root}/y")
    disk.remove(f"{root}/y")
    disk.remove(f"{root}/y")
    disk.remove_tree(f"{root}/c")
    disk.remove_tree(f"{root}/c")
    assert disk.list(root) == []
    assert disk.free_bytes(root) > 0


def test_a_lock_has_one_holder_and_can_be_taken_after_its_release(disk: Disk, root: str) -> None:
    lock = disk.lock(f"{root}/.lock")
    assert lock is not None
    assert disk.lock(f"{root}/.lock") is None
    lock.release()
    lock.release()
    again = disk.lock(f"{root}/.lock")
    assert again is not None
    again.release()


def test_an_open_file_can_be_read_after_it_was_removed(disk: Disk, root: str) -> None:
    file = disk.create(f"{root}/f")
    file.append([b"abc"])
    disk.remove(f"{root}/f")
    assert bytes(file.read(0, 3)) == b"abc"
    file.close()
    file.close()
    with pytest.raises(DiskError):
        file.read(0, 1)


REFUSED: dict[str, tuple[int, Callable[[Disk, str], object]]] = {
    "open what is not there": (errno.ENOENT, lambda disk, root: disk.open(f"{root}/none")),
    "read what is not there": (errno.ENOENT, lambda disk, root: disk.read_all(f"{root}/none")),
    "size of what is not there": (errno.ENOENT, lambda disk, root: disk.file_size(f"{root}/none")),
    "list what is not there": (errno.ENOENT, lambda disk, root: disk.list(f"{root}/none")),
    "list a file": (errno.ENOTDIR, lambda disk, root: disk.list(f"{root}/file")),
    "create a directory": (errno.EISDIR, lambda disk, root: disk.create(f"{root}/dir")),
    "create nowhere": (errno.ENOENT, lambda disk, root: disk.create(f"{root}/none/f")),
    "write below a file": (
        errno.ENOTDIR,
        lambda disk, root: disk.write_atomic(f"{root}/file/f", b""),
    ),
    "make a directory of a file": (errno.EEXIST, lambda disk, root: disk.make_dirs(f"{root}/file")),
    "make a directory below a file": (
        errno.ENOTDIR,
        lambda disk, root: disk.make_dirs(f"{root}/file/dir"),
    ),
    "rename what is not there": (
        errno.ENOENT,
        lambda disk, root: disk.rename(f"{root}/none", f"{root}/f"),
    ),
    "rename over a full directory": (
        errno.ENOTEMPTY,
        lambda disk, root: disk.rename(f"{root}/dir", f"{root}/full"),
    ),
    "lock nowhere": (errno.ENOENT, lambda disk, root: disk.lock(f"{root}/none/.lock")),
    "room of what is not there": (errno.ENOENT, lambda disk, root: disk.free_bytes(f"{root}/none")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_errno_and_the_path(disk: Disk, root: str, what: str) -> None:
    disk.write_atomic(f"{root}/file", b"")
    disk.make_dirs(f"{root}/dir")
    disk.make_dirs(f"{root}/full/below")
    expected, operation = REFUSED[what]
    with pytest.raises(DiskError, match=root) as refusal:
        operation(disk, root)
    assert refusal.value.errno == expected
    assert "\n" not in str(refusal.value)


# A disk that is full, each in its own way: memory by capacity, a real one by the size limit of
# this process (a write is cut short at the limit, and the next one refused, as when it is full).


@contextmanager
def full_after(disk: Disk, size_bytes: int) -> Iterator[None]:
    """The limit ends with the test: pytest itself may write to a longer file."""
    if isinstance(disk, MemoryDisk):
        disk.capacity_bytes = size_bytes
        yield
        return
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_refused_append_can_be_taken_back(disk: Disk, root: str) -> None:
    file = disk.create(f"{root}/f")
    file.append([b"x" * 100])
    with full_after(disk, 150):
        with pytest.raises(DiskError) as refusal:
            file.append([b"y" * 40, b"z" * 40])
        assert refusal.value.errno in (errno.ENOSPC, errno.EFBIG)
        assert file.size == 100
        file.truncate(file.size)
        assert disk.read_all(f"{root}/f") == b"x" * 100
        file.append([b"y" * 40])
        assert disk.file_size(f"{root}/f") == 140


def test_a_refused_replacement_leaves_the_old_file(disk: Disk, root: str) -> None:
    disk.write_atomic(f"{root}/f", b"old")
    with full_after(disk, 50):
        with pytest.raises(DiskError):
            disk.write_atomic(f"{root}/f", b"n" * 100)
        assert disk.read_all(f"{root}/f") == b"old"
        assert disk.list(root) == ["f"]


# What only one of them can do


def test_a_filesystem_without_nowait_is_read_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> int:
        raise OSError(errno.EOPNOTSUPP, "not here")

    disk = RealDisk()
    file = disk.create(f"{tmp_path}/f")
    file.append([b"abc"])
    monkeypatch.setattr("os.preadv", unsupported)
    assert bytes(file.read_nowait(0, 3) or b"") == b"abc"
    assert not disk.has_nowait
    assert bytes(file.read_nowait(1, 3) or b"") == b"bc"


def test_a_nowait_read_outside_the_page_cache_would_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cold(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "not in memory")

    file = RealDisk().create(f"{tmp_path}/f")
    file.append([b"abc"])
    monkeypatch.setattr("os.preadv", cold)
    assert file.read_nowait(0, 3) is None


def test_a_huge_file_where_a_small_one_is_expected_is_not_read_into_memory(tmp_path: Path) -> None:
    disk = RealDisk()
    disk.create(f"{tmp_path}/f").truncate(1 << 40)
    with pytest.raises(DiskError) as refusal:
        disk.read_all(f"{tmp_path}/f")
    assert refusal.value.errno == errno.EFBIG
    assert disk.read_tail(f"{tmp_path}/f", 3) == b"\0\0\0"


def test_a_crash_keeps_every_written_byte_but_no_handle() -> None:
    disk = MemoryDisk()
    file = disk.create("/f")
    file.append([b"abc"])
    file.append([b"def"])
    assert disk.lock("/l") is not None
    disk.crash(torn_at=1)
    assert disk.read_all("/f") == b"abcd"
    assert disk.lock("/l") is not None
    with pytest.raises(DiskError):
        file.append([b"g"])


def test_a_loss_of_power_takes_what_was_not_flushed() -> None:
    disk = MemoryDisk()
    file = disk.create("/f")
    file.append([b"abc"])
    file.flush()
    file.append([b"def"])
    disk.lose_power()
    assert disk.read_all("/f") == b"abc"


def test_after_a_failed_flush_a_later_one_succeeds_without_writing() -> None:
    disk = MemoryDisk()
    file = disk.create("/f")
    file.append([b"abc"])
    file.flush()
    file.append([b"def"])
    disk.fails_flushes = True
    with pytest.raises(DiskError):
        file.flush()
    disk.fails_flushes = False
    file.append([b"ghi"])
    file.flush()
    assert disk.read_all("/f") == b"abcdefghi"
    disk.lose_power()
    assert disk.read_all("/f") == b"abc"


def test_bytes_appended_again_after_a_failed_flush_are_written() -> None:
    disk = MemoryDisk()
    file = disk.create("/f")
    file.append([b"abc"])
    disk.fails_flushes = True
    with pytest.raises(DiskError):
        file.flush()
    disk.fails_flushes = False
    file.truncate(0)
    file.append([b"ab"])
    file.flush()
    disk.lose_power()
    assert disk.read_all("/f") == b"ab"


def test_a_flush_waits_for_the_folder_that_another_thread_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of two logs are in one folder: neither is durable before that folder is."""
    disk, root = RealDisk(), f"{tmp_path}/data"
    for name in ("a", "b"):
        disk.make_dirs(f"{root}/{name}")
        disk.create(f"{root}/{name}/f").append([b"x"])
    fsync, is_flushing, may_fail = os.fsync, Event(), Event()
    flushed: list[str] = []

    def fsync_slowly(fd: int) -> None:
        folder = str(Path(f"/proc/self/fd/{fd}").readlink())
        if folder == root and not is_flushing.is_set():
            is_flushing.set()
            may_fail.wait(10)
            raise OSError(errno.EIO, "the first flush of this folder fails")
        fsync(fd)
        flushed.append(folder)

    def flush_first() -> None:
        with pytest.raises(DiskError):
            disk.open(f"{root}/a/f").flush()

    monkeypatch.setattr(os, "fsync", fsync_slowly)
    first = Thread(target=flush_first)
    second = Thread(target=lambda: disk.open(f"{root}/b/f").flush())
    first.start()
    assert is_flushing.wait(10)
    second.start()
    second.join(0.1)
    assert second.is_alive(), "it waits"
    may_fail.set()
    first.join(10)
    second.join(10)
    assert flushed[-2:] == [f"{root}/b", root]


@pytest.mark.parametrize(
    "change",
    [
        lambda disk, root: disk.remove(f"{root}/a/other"),
        lambda disk, root: disk.rename(f"{root}/a/other", f"{root}/a/aside"),
        lambda disk, root: disk.write_atomic(f"{root}/a/other", b"new"),
        lambda disk, root: disk.create(f"{root}/a/third"),
    ],
)
def test_a_flush_makes_changed_names_of_its_folder_durable_once(
    change: Callable[[Disk, str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, root = RealDisk(), f"{tmp_path}/data"
    disk.make_dirs(f"{root}/a")
    file = disk.create(f"{root}/a/f")
    disk.create(f"{root}/a/other")
    file.flush()
    flushed = folders_flushed(monkeypatch)
    file.flush()
    assert flushed == []
    change(disk, root)
    file.flush()
    file.flush()
    assert flushed == [f"{root}/a"]


def test_the_names_that_a_killed_process_left_are_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"{tmp_path}/data"
    RealDisk().make_dirs(f"{root}/a")
    RealDisk().create(f"{root}/a/f")
    disk = RealDisk()
    disk.make_dirs(root)
    disk.make_dirs(f"{root}/a")
    flushed = folders_flushed(monkeypatch)
    disk.open(f"{root}/a/f").flush()
    assert flushed == [f"{root}/a", root], "not the folder above, which may be unreadable"


def folders_flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that are flushed from here on."""
    fsync = os.fsync
    flushed: list[str] = []

    def noting_fsync(fd: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    return flushed


@pytest.mark.parametrize(
    "use",
    [
        lambda disk, path: disk.open(path),
        lambda disk, path: disk.create(path),
        lambda disk, path: disk.file_size(path),
        lambda disk, path: disk.read_all(path),
        lambda disk, path: disk.write_atomic(path.removesuffix(".tmp"), b"new"),
    ],
)
def test_no_file_is_used_through_a_symbolic_link(
    use: Callable[[Disk, str], object], tmp_path: Path
) -> None:
    target, link = tmp_path / "target", tmp_path / "link.tmp"
    target.write_bytes(b"mine")
    link.symlink_to(target)
    disk = RealDisk()
    assert disk.is_link(str(link))
    assert not disk.is_link(str(target))
    with pytest.raises(DiskError, match="symbolic link") as refused:
        use(disk, str(link))
    assert refused.value.errno == errno.ELOOP
    assert target.read_bytes() == b"mine"
