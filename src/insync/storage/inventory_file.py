"""The file `segment-inventory` of one log."""

from __future__ import annotations

from threading import Lock

from insync.storage.disk import Disk
from insync.storage.errors import DiskError
from insync.storage.inventory import INVENTORY, Inventory, write_inventory


class InventoryFile:
    """The inventory of one log on disk. The loop and the thread that flushes write it in turns.

    - `written` is the inventory on disk; None if there is none.
    - `_durable` is the last one that was flushed, this very object.
    - `_must_replace`: a flush failed, and another one of the same file would not show it.
    """

    __slots__ = ("_disk", "_durable", "_must_replace", "_path", "_writing", "written")

    def __init__(self, disk: Disk, log_path: str, written: Inventory | None) -> None:
        self._disk = disk
        self._path = f"{log_path}/{INVENTORY}"
        self._writing = Lock()
        self._durable: Inventory | None = None
        self._must_replace = False
        self.written = written

    def write(self, inventory: Inventory) -> bool:
        """Whether it is on disk now. If not, what was written before stays, which is still true.

        If the log starts elsewhere now it is not, and a full disk must not keep retention from
        making room: then no inventory is left, except one that shows damage.
        """
        try:
            self.replace(inventory)
        except DiskError:
            is_true = self.written is None or inventory.start == self.written.start
            if not is_true and inventory.damage is None:
                self._disk.remove(self._path)
                self.written = None
            return False
        return True

    def replace(self, inventory: Inventory) -> None:
        """Write it, or `DiskError` with what was on disk before."""
        with self._writing:
            if inventory != self.written or self._must_replace:
                self._replace(inventory)

    def write_durably(self, inventory: Inventory) -> None:
        """As `replace`, and return once it would survive a loss of power. Blocks."""
        with self._writing:
            if inventory != self.written or inventory is not self._durable:
                self._replace(inventory)
        self.flush()

    def _replace(self, inventory: Inventory) -> None:
        self._disk.write_atomic(self._path, write_inventory(inventory))
        self.written, self._must_replace = inventory, False

    def flush(self) -> Inventory | None:
        """Return what would survive a loss of power; None if there is no inventory. Blocks."""
        with self._writing:
            written = self.written
            if written is None or written is self._durable:
                return written
            if self._must_replace:
                self._replace(written)
            file = self._disk.open(self._path)
        try:
            file.flush()
        except DiskError:
            self._must_replace = True
            raise
        with self._writing:
            if self.written is written:  # else another has taken its place meanwhile
                self._durable = written
        return written
