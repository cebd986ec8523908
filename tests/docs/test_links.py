"""Links between documents lead to files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "[a-z]*/README.md") for path in ROOT.glob(pattern)
)
LINK = re.compile(r"""(?:\]\(|src=")([^)#\s"]+)(?:#[^)]*)?[)"]""")


@pytest.mark.parametrize("path", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])
def test_relative_links_lead_to_files(path: Path) -> None:
    targets = [link for link in LINK.findall(path.read_text()) if "://" not in link]
    assert [link for link in targets if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md"])
@pytest.mark.parametrize(
    "address",
    ["KIP-16+", "browse/KAFKA-4485", "huxi2b/p/5903354.html", "KIP-501+", "KIP-73+"],
)
def test_the_five_documents_are_linked(name: str, address: str) -> None:
    assert re.search(rf"\]\(https://[^)\s]*{re.escape(address)}", (ROOT / name).read_text())
