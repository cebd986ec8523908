"""A mutant: the source with one known bug, made in a private copy and never in the work tree."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"


class DoesNotApply(Exception):
    """The source has changed where a mutant changes it."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace a text that a file has exactly once."""

    file: str  # below src/insync
    before: str
    after: str

    def apply(self, text: str, name: str) -> str:
        count = text.count(self.before)
        if count != 1:
            raise DoesNotApply(
                f"mutant {name}: src/insync/{self.file} has this text {count} times, not once; "
                f"plant the bug in the code of now (tests/mutants):\n{self.before}"
            )
        return text.replace(self.before, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    name: str
    title: str  # what the planted bug is
    breaks: str  # what goes wrong because of it
    edits: tuple[Edit, ...]
    finders: tuple[str, ...]  # tests that run first, because they are likely to find it
    is_protocol: bool = False  # simulated runs have to find it too

    def changed_files(self, source: Path = SOURCE) -> dict[str, str]:
        """The text of each changed file, by its path below src/insync; or `DoesNotApply`."""
        files: dict[str, str] = {}
        for edit in self.edits:
            path = source / "insync" / edit.file
            if not path.exists():
                raise DoesNotApply(f"mutant {self.name}: there is no src/insync/{edit.file}")
            text = files.get(edit.file) or path.read_text()
            files[edit.file] = edit.apply(text, self.name)
        return files

    def plant(self, folder: Path) -> None:
        """Copy the source to `folder`, with this bug in it."""
        files = self.changed_files()
        # Compiled modules are copied with the times of their sources, and so stay valid.
        shutil.copytree(SOURCE / "insync", folder / "insync")
        for file, text in files.items():
            path = folder / "insync" / file
            path.write_text(text)
            for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
                compiled.unlink()


NOTHING = Mutant(
    name="nothing",
    title="Nothing is planted",
    breaks="Nothing: every test passes. What is found here is a defect of the code or the tests.",
    edits=(),
    finders=(),
)
