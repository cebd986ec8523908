"""A broker as a process: real clocks, sockets and files, stopped by a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import SystemRandom
from typing import Any, Final

from insync.broker.accepted import NOTHING, Accepted
from insync.broker.reads import ReaderThreads
from insync.broker.settings import Settings
from insync.client.connection import ClientConnection
from insync.client.sockets import connect
from insync.metadata.sqlite import SqliteStore
from insync.node.garbage import collect_all_every_hour, short_collections
from insync.node.node import Node
from insync.node.world import World
from insync.rules.refusals import BadSetting, Refusal
from insync.storage.disk import RealDisk
from insync.storage.files import FILES_OPEN_MAX

try:
    from uvloop import run as run_loop
except ImportError:  # optional: it only makes brokers faster
    from asyncio import run as run_loop  # type: ignore[assignment]

DESCRIPTORS_MAX: Final = 65_536
DESCRIPTORS_RESERVED: Final = 64
"""For the metadata store, sessions, checkpoints and connections to other brokers."""


class PortInUse(Refusal):
    """This broker cannot listen at its address: it is in use, or not an address of this host."""


class SocketNetwork:
    async def connect(self, host: str, port: int, protocol: ClientConnection) -> asyncio.Transport:
        return await connect(host, port, protocol)

    async def listen(
        self, host: str, port: int, protocol: Callable[[], asyncio.Protocol]
    ) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        try:
            return await loop.create_server(protocol, host, port, backlog=1_024)
        except OSError as error:
            raise PortInUse(f"cannot serve at {host}:{port}: {error.strerror or error}") from None


def raise_descriptor_limit() -> int:
    """Allow this process more files and sockets than the usual 1024. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = min(hard, DESCRIPTORS_MAX) if hard != resource.RLIM_INFINITY else DESCRIPTORS_MAX
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        return limit
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def real_world(settings: Settings) -> World:
    metadata = settings.broker.metadata_dir
    if not metadata or not settings.broker.log_dirs:
        raise BadSetting("set log.dirs and metadata.dir: the folders of this broker's files")
    if "," in settings.broker.log_dirs:
        raise BadSetting("log.dirs names several folders; a broker has one log directory")
    folder = Path(metadata)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(f"cannot use metadata.dir {metadata}: {error.strerror}") from None
    return World(
        clock_ms=monotonic_ms,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        network=SocketNetwork(),
        disk=RealDisk(),
        store=SqliteStore(
            folder / "metadata.sqlite",
            clock_ms=monotonic_ms,
            session_timeout_ms=settings.broker.broker_session_timeout_ms,
            heartbeat_interval_ms=settings.broker.broker_heartbeat_interval_ms,
            synchronous=settings.broker.metadata_synchronous,
        ),
        reads=ReaderThreads(),
        random=SystemRandom(),
        connections_max=raise_descriptor_limit() - FILES_OPEN_MAX - DESCRIPTORS_RESERVED,
        in_thread=asyncio.to_thread,
    )


async def serve(
    settings: Settings,
    *,
    on_ready: Callable[[], None],
    make_world: Callable[[Settings], World] = real_world,
    accepted: Accepted = NOTHING,
) -> None:
    """Run one broker until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    node = Node(settings, make_world(settings), accepted=accepted)
    with short_collections():
        await node.start()
        on_ready()
        collecting = asyncio.create_task(collect_all_every_hour())
        await stopped.wait()
        collecting.cancel()
        await node.stop()


def run(serving: Coroutine[Any, Any, None]) -> None:
    """Run a broker as this process, with its log on stderr."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    with contextlib.suppress(KeyboardInterrupt):
        run_loop(serving)


def print_ready() -> None:
    """Tell the process that started this one, which waits for this line."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
