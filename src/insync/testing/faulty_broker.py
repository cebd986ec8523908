"""One broker with faults on command: `python -m insync.testing.faulty_broker --config FILE`.

The same process as `insync broker`, with faults that a control socket in its log folder commands.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

from insync.broker.accepted import NEW_DIRECTORY, OLDER_METADATA, Accepted, accepted_by
from insync.broker.properties import read_properties
from insync.broker.settings import Settings
from insync.node import process
from insync.node.world import World
from insync.rules.refusals import Refusal
from insync.testing.control import ControlSocket
from insync.testing.faults import FaultyWorld


async def serve(settings: Settings, accepted: Accepted) -> None:
    with ExitStack() as cleanup:
        control: ControlSocket | None = None

        def make_world(settings: Settings) -> World:
            nonlocal control
            faulty = FaultyWorld(process.real_world(settings))
            cleanup.callback(faulty.heal_disk)  # a slow read must not delay the end
            control = ControlSocket(Path(settings.text("log.dirs")), faulty.perform)
            return faulty.world

        def on_ready() -> None:
            # Only now: the folder exists, and belongs to no other broker.
            assert control is not None, "the node called make_world"
            cleanup.enter_context(control)
            process.print_ready()

        await process.serve(settings, on_ready=on_ready, make_world=make_world, accepted=accepted)


def end_with_stdin() -> None:
    """Kill this process when its standard input is closed; nothing is ever written to it."""
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(description="One broker with faults on command.")
    parser.add_argument("--config", type=Path, required=True, help="a properties file")
    parser.add_argument(
        "--end-with-stdin", action="store_true", help="end when standard input is closed"
    )
    for flag in (OLDER_METADATA, NEW_DIRECTORY):
        parser.add_argument(flag, action="append_const", const=flag, dest="accepted", default=[])
    options = parser.parse_args()
    accepted = accepted_by(options.accepted)
    assert accepted is not None, "the parser knows these flags alone"
    if options.end_with_stdin:
        Thread(target=end_with_stdin, daemon=True).start()
    try:
        process.run(serve(Settings(read_properties(options.config)), accepted))
    except Refusal as refusal:
        sys.stderr.write(f"insync: {refusal}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
