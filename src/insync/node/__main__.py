"""`python -m insync.node --config FILE`: what `insync broker` does, for programs.

A parser for people takes longer to import than a broker, and three start at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from insync.broker.properties import read_properties
from insync.broker.settings import Settings
from insync.node import process
from insync.rules.refusals import Refusal


def main(arguments: list[str]) -> int:
    try:
        if not __debug__:
            raise Refusal("refuses to run under python -O: its assertions are part of it")
        match arguments:
            case ["--config", file]:
                settings = Settings(read_properties(Path(file)))
            case _:
                sys.stderr.write("insync: write --config FILE\n")
                return 2
        process.run(process.serve(settings, on_ready=process.say_ready))
    except Refusal as refusal:
        sys.stderr.write(f"insync: {' '.join(str(refusal).split())}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
