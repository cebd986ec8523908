"""A broker that never throttles a fetch: what an unused throttle is compared with.

`python -m bench.broker_without_quotas --config FILE` is `python -m insync.node` with `NoQuota`.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from insync.broker.settings import Settings
from insync.node import process
from insync.node.__main__ import main
from insync.node.world import World


def world_without_quotas(settings: Settings) -> World:
    return replace(process.real_world(settings), has_quotas=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], make_world=world_without_quotas))
