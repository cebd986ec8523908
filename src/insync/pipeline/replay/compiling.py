"""Compiled functions, kept on disk from one process to the next.

Numba looks only at the file of a function to see whether what it kept is still good, not at the
functions that one calls. So everything is kept under a name made from all files it may depend on.
The folder is in `INSYNC_CACHE_DIR`, else in the user's cache, else among temporary files.
"""

from __future__ import annotations

import os
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numba
from numba import config, njit

from insync import rules

# Everything in this folder, so that no module of the replay can be left out.
SOURCES: Final = (
    *sorted(Path(__file__).parent.glob("*.py")),
    *sorted(Path(rules.__file__).parent.glob("*.py")),
)


def _folder() -> str:
    digest = sha256(numba.__version__.encode())
    for path in SOURCES:
        digest.update(path.read_bytes())
    name = f"compiled-{digest.hexdigest()[:16]}"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "insync"
    for base in (os.environ.get("INSYNC_CACHE_DIR"), home):
        if base is not None:
            folder = Path(base) / name
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError:
                continue
            if os.access(folder, os.W_OK):
                return str(folder)
    return str(Path(tempfile.gettempdir()) / f"insync-{os.getuid()}" / name)


_FOLDER: Final = _folder()


def compiled(function: Any) -> Any:
    return _compiled(function)


def inner(function: Any) -> Any:
    """For what is called for every event and makes no array: Numba would count the references to
    each that it is passed, which takes longer than what most of these functions do."""
    return _compiled(function, _nrt=False)


def inlined(function: Any) -> Any:
    """An inner function that is hardly more than its call."""
    return _compiled(function, _nrt=False, forceinline=True)


def _compiled(function: Any, **options: Any) -> Any:
    before, config.CACHE_DIR = config.CACHE_DIR, _FOLDER  # others' functions stay where they are
    try:
        return njit(cache=True, nogil=True, **options)(function)
    finally:
        config.CACHE_DIR = before
