"""One broker with faults on command: `python -m insync.testing.faulty_broker --config FILE`.

The same process as `insync broker`, in a world that a control socket in its log folder commands.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from insync.broker.properties import read_properties
from insync.broker.settings import Settings
from insync.node import process
from insync.node.node import World
from insync.rules.refusals import Refusal
from insync.testing.control import ControlSocket
from insync.testing.faults import FaultyWorld


async def serve(settings: Settings) -> None:
    with ExitStack() as at_the_end:
        control: ControlSocket | None = None

        def make_world(settings: Settings) -> World:
            nonlocal control
            faulty = FaultyWorld(process.world(settings))
            at_the_end.callback(faulty.heal_disk)  # a slow read must not hold up the end
            control = ControlSocket(Path(settings.text("log.dirs")), faulty.perform)
            return faulty.world

        def on_ready() -> None:
            # Only now: the folder is there, and no other broker's.
            assert control is not None, "a node is made of a world"
            at_the_end.enter_context(control)
            process.say_ready()

        await process.serve(settings, on_ready=on_ready, make_world=make_world)


def main() -> int:
    parser = argparse.ArgumentParser(description="One broker with faults on command.")
    parser.add_argument("--config", type=Path, required=True, help="a properties file")
    config: Path = parser.parse_args().config
    try:
        process.run(serve(Settings(read_properties(config))))
    except Refusal as refusal:
        sys.stderr.write(f"insync: {refusal}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
