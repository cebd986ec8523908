"""The disk, as storage sees it: everything it does with files goes through `Disk`.

So a simulation gives it memory, and a test of faults gives it a disk that delays or fails.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Final, Protocol

from insync.storage.errors import DiskError

Buffer = bytes | bytearray | memoryview

FREED_AT_ONCE_BYTES_MAX: Final = 1 << 20
"""Larger files are freed in a thread when they are removed: a gigabyte takes 100 ms or more."""

SMALL_FILE_BYTES_MAX: Final = 64 << 20
"""No index or checkpoint of ours is larger; a file that claims to be is not read into memory."""

_NEW_FILE: Final = os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
_NO_NOWAIT: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class DiskFile(Protocol):
    """One file open for reading and appending. Closed when the last reference goes."""

    @property
    def size(self) -> int: ...

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write all of them at the end and return the bytes written.

        A refusal may leave a part behind: `size` then still says where the append began, and
        `truncate(size)` takes the part away.
        """

    def read(self, position: int, size: int) -> Buffer:
        """What is there, at most `size` bytes; shorter only at the file's end. May block."""

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        """As `read`, from memory: possibly only a first part; None where it would block."""

    def truncate(self, size: int) -> None: ...

    def flush(self) -> None:
        """Return once all bytes, and the file's name, would survive a loss of power."""

    def close(self) -> None: ...


class DiskLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """Files by path. Every failure of the disk is a `DiskError` with its errno."""

    def open(self, path: str) -> DiskFile:
        """A file that is there, for appending and reading."""

    def create(self, path: str) -> DiskFile:
        """An empty file for appending and reading, whatever was there."""

    def file_size(self, path: str) -> int: ...

    def read_all(self, path: str) -> bytes: ...

    def read_tail(self, path: str, size: int) -> bytes:
        """The last `size` bytes, or the whole file if it has fewer."""

    def write_atomic(self, path: str, data: bytes) -> None:
        """Replace the file: a reader, or a restart after a crash, finds old or new, never half."""

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def is_link(self, path: str) -> bool:
        """Whether the path names a symbolic link. Files are never opened through one (ELOOP)."""

    def remove(self, path: str) -> None:
        """Remove a file; one that is gone already is no error."""

    def remove_tree(self, path: str) -> None: ...

    def make_dirs(self, path: str) -> None: ...

    def rename(self, path: str, to: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def lock(self, path: str) -> DiskLock | None:
        """Hold the file against every other process until released; None if one holds it."""


def disk_error(error: OSError, path: str) -> DiskError:
    return DiskError(error.errno or errno.EIO, path)


class RealFile:
    """A file descriptor. Appends go to the size we know, never to where others left the file."""

    __slots__ = ("_disk", "_fd", "_path", "size")

    def __init__(self, disk: RealDisk, fd: int, path: str) -> None:
        self._disk = disk
        self._fd = fd
        self._path = path
        self.size = os.fstat(fd).st_size

    def append(self, buffers: Sequence[Buffer]) -> int:
        total = sum(map(len, buffers))
        try:
            written = os.pwritev(self._fd, buffers, self.size)
            if written < total:
                self._append_rest(buffers, written, total)
        except OSError as error:
            raise disk_error(error, self._path) from error
        self.size += total
        return total

    def _append_rest(self, buffers: Sequence[Buffer], written: int, total: int) -> None:
        """A write may be cut short by a full disk or a huge size; the next one says which."""
        rest = memoryview(b"".join(buffers))
        while written < total:
            written += os.pwrite(self._fd, rest[written:], self.size + written)

    def read(self, position: int, size: int) -> Buffer:
        try:
            data = os.pread(self._fd, size, position)
            while len(data) < size:
                more = os.pread(self._fd, size - len(data), position + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise disk_error(error, self._path) from error
        return data

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        if not self._disk.has_nowait:
            return self.read(position, size)
        data = bytearray(size)
        try:
            count = os.preadv(self._fd, (data,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise disk_error(error, self._path) from error
            # This filesystem cannot say (tmpfs): it is memory, or as good as we can do.
            self._disk.has_nowait = False
            return self.read(position, size)
        return data if count == size else memoryview(data)[:count]

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise disk_error(error, self._path) from error
        self.size = size

    def flush(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise disk_error(error, self._path) from error
        self._disk.flush_names(self._path)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        # A pool forgets a file while a read of it may still run in another thread. The last user
        # closes it, so no read ever meets a descriptor that is closed or of another file.
        if hasattr(self, "_fd"):
            self.close()


def _open_large(path: str) -> int | None:
    """A descriptor of the file if it is large; None also if it is no file of ours, or gone."""
    try:
        if Path(path).lstat().st_size <= FREED_AT_ONCE_BYTES_MAX:
            return None
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None


class RealLock:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RealDisk:
    """The operating system's files."""

    def __init__(self) -> None:
        self.has_nowait = hasattr(os, "RWF_NOWAIT")
        # Folders with names that a loss of power may take, or bring back.
        self._changed_folders: set[Path] = set()
        self._flushing_names = Lock()
        self._closing = ThreadPoolExecutor(1, thread_name_prefix="free-blocks")  # starts when used

    def open(self, path: str) -> RealFile:
        return self._open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

    def create(self, path: str) -> RealFile:
        file = self._open(path, os.O_RDWR | _NEW_FILE)
        self._changed_folders.add(Path(path).parent)  # when it is there: a flush may run meanwhile
        return file

    def _open(self, path: str, flags: int) -> RealFile:
        try:
            return RealFile(self, os.open(path, flags, 0o644), path)
        except OSError as error:
            raise disk_error(error, path) from error

    def file_size(self, path: str) -> int:
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                raise OSError(errno.ELOOP, path)
            return status.st_size
        except OSError as error:
            raise disk_error(error, path) from error

    def read_all(self, path: str) -> bytes:
        return self.read_tail(path, SMALL_FILE_BYTES_MAX + 1)

    def read_tail(self, path: str, size: int) -> bytes:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with os.fdopen(fd, "rb", buffering=0) as file:
                length = os.fstat(file.fileno()).st_size
                if min(size, length) > SMALL_FILE_BYTES_MAX:
                    raise DiskError(errno.EFBIG, path)
                if length > size:
                    file.seek(length - size)
                return file.read()
        except OSError as error:
            raise disk_error(error, path) from error

    def write_atomic(self, path: str, data: bytes) -> None:
        # Not flushed: the promise is about processes that die, and all of this can be rebuilt
        # from the log or learned again from the leader.
        temporary = Path(f"{path}.tmp")
        try:
            try:
                fd = os.open(temporary, os.O_WRONLY | _NEW_FILE, 0o644)
                with os.fdopen(fd, "wb") as file:
                    file.write(data)
                temporary.replace(path)
                self._changed_folders.add(temporary.parent)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            raise disk_error(error, path) from error

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 (names, not paths: there are many)
        except OSError as error:
            raise disk_error(error, path) from error

    def is_link(self, path: str) -> bool:
        return Path(path).is_symlink()

    def remove(self, path: str) -> None:
        fd = _open_large(path)
        try:
            Path(path).unlink(missing_ok=True)
            self._changed_folders.add(Path(path).parent)
        except OSError as error:
            raise disk_error(error, path) from error
        finally:
            if fd is not None:
                # The name is gone. Freeing the blocks takes long, and begins with the last close.
                self._closing.submit(os.close, fd)

    def remove_tree(self, path: str) -> None:
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise disk_error(error, path) from error
        self._changed_folders.discard(Path(path))
        self._changed_folders.add(Path(path).parent)

    def make_dirs(self, path: str) -> None:
        try:
            if not Path(path).is_dir():
                Path(path).mkdir(parents=True, exist_ok=True)
                self._changed_folders.add(Path(path).parent)
            # Also if it is there: a process that was killed may not have flushed its names.
            self._changed_folders.add(Path(path))
        except OSError as error:
            raise disk_error(error, path) from error

    def flush_names(self, path: str) -> None:
        """Make the names in a file's folder, and that of the folder, survive, if some changed."""
        folder = Path(path).parent
        # A folder that another thread is flushing is not durable yet, and may never be.
        with self._flushing_names:
            for each in (folder, folder.parent):
                if each in self._changed_folders:
                    self._flush_folder(each)

    def _flush_folder(self, folder: Path) -> None:
        self._changed_folders.discard(
            folder
        )  # first: a name that comes meanwhile is the next one's
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            self._changed_folders.add(folder)
            raise disk_error(error, str(folder)) from error

    def rename(self, path: str, to: str) -> None:
        try:
            Path(path).rename(to)
            self._changed_folders.discard(Path(path))
            self._changed_folders.update((Path(path).parent, Path(to).parent))
        except OSError as error:
            raise disk_error(error, path) from error

    def free_bytes(self, path: str) -> int:
        try:
            return shutil.disk_usage(path).free
        except OSError as error:
            raise disk_error(error, path) from error

    def lock(self, path: str) -> RealLock | None:
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise disk_error(error, path) from error
        return RealLock(fd)
