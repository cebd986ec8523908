"""`python -m insync.node --config FILE`: the same as `insync broker`, started by programs.

It does not import the parser of the command line, which takes longer than a broker: `insync
cluster` starts three of them at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from insync.broker.accepted import NEW_DIRECTORY, OLDER_METADATA, accepted_by
from insync.broker.properties import read_properties
from insync.broker.settings import Settings
from insync.node import process
from insync.node.world import World
from insync.rules.refusals import Refusal


def main(
    arguments: list[str], *, make_world: Callable[[Settings], World] = process.real_world
) -> int:
    try:
        if not __debug__:
            raise Refusal("refuses to run under python -O: the broker relies on its assertions")
        accepted = accepted_by(arguments[2:])
        if len(arguments) < 2 or arguments[0] != "--config" or accepted is None:  # noqa: PLR2004
            sys.stderr.write(f"insync: write --config FILE [{OLDER_METADATA}] [{NEW_DIRECTORY}]\n")
            return 2
        settings = Settings(read_properties(Path(arguments[1])))
        process.run(
            process.serve(
                settings,
                on_ready=process.print_ready,
                make_world=make_world,
                accepted=accepted,
            )
        )
    except Refusal as refusal:
        sys.stderr.write(f"insync: {' '.join(str(refusal).split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
