"""A broker of another source tree: `python -m bench.tree_broker TREE --config FILE`.

It is `python -m insync.node` with TREE/src before the installed package. Two trees are compared so,
to see what a change of the code costs.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    tree, *node_arguments = arguments
    sys.path.insert(0, str(Path(tree) / "src"))
    from insync.node.__main__ import main as run_broker  # noqa: PLC0415 - of the tree

    return run_broker(node_arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
