"""A broker as a process of this machine: real clock, sockets, files, and a signal to stop."""

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

from insync.broker.reads import ReaderThreads
from insync.broker.settings import Settings
from insync.client.connection import ClientConnection
from insync.client.sockets import connect
from insync.metadata.sqlite import SqliteStore
from insync.node.node import Node, World
from insync.rules.refusals import BadSetting, Refusal
from insync.storage.disk import RealDisk
from insync.storage.files import FILES_OPEN_MAX

try:
    from uvloop import run as run_loop
except ImportError:  # it makes brokers faster, and no more than that
    from asyncio import run as run_loop  # type: ignore[assignment]

DESCRIPTORS_MAX: Final = 65_536
DESCRIPTORS_KEPT: Final = 64
"""For the metadata store, sessions, checkpoints and connections to other brokers."""


class PortInUse(Refusal):
    """Another process serves at this broker's address, or the address is not this machine's."""


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


def raised_descriptor_limit() -> int:
    """As many files and sockets as this process may open; the usual 1024 are soon used up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, DESCRIPTORS_MAX) if hard != resource.RLIM_INFINITY else DESCRIPTORS_MAX
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def world(settings: Settings) -> World:
    metadata = settings.text("metadata.dir")
    if not metadata or not settings.text("log.dirs"):
        raise BadSetting("set log.dirs and metadata.dir: where this broker keeps its files")
    if "," in settings.text("log.dirs"):
        raise BadSetting("log.dirs names several folders; a broker keeps its logs in one")
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
            session_timeout_ms=settings.integer("broker.session.timeout.ms"),
            heartbeat_interval_ms=settings.integer("broker.heartbeat.interval.ms"),
            synchronous=settings.text("metadata.synchronous"),
        ),
        reads=ReaderThreads(),
        random=SystemRandom(),
        connections_max=raised_descriptor_limit() - FILES_OPEN_MAX - DESCRIPTORS_KEPT,
        in_thread=asyncio.to_thread,
    )


async def serve(
    settings: Settings,
    *,
    on_ready: Callable[[], None],
    make_world: Callable[[Settings], World] = world,
) -> None:
    """Run one broker until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    node = Node(settings, make_world(settings))
    await node.start()
    on_ready()
    await stopped.wait()
    await node.stop()


def run(serving: Coroutine[Any, Any, None]) -> None:
    """The life of a process that is one broker, and says on stderr what happens to it."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    with contextlib.suppress(KeyboardInterrupt):
        run_loop(serving)


def say_ready() -> None:
    """Whoever started this process reads it, and goes on."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
