"""Notice within seconds that an address is a web server's.

Many web servers answer nothing to Kafka's bytes: they wait for the end of a line. The client would
wait for its request timeout, and say no more than that no broker answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from insync.client.admin_connections import Address
from insync.rules.refusals import Refusal

PROBE_AFTER_S: Final = 1.0
ANSWER_WITHIN_S: Final = 2.0
REQUEST: Final = b"GET / HTTP/1.0\r\n\r\n"


class NotKafka(Refusal):
    """What answers at the given addresses does not speak Kafka's protocol."""


@asynccontextmanager
async def refuse_web_servers(
    addresses: Sequence[Address], has_answer: Callable[[], bool]
) -> AsyncIterator[None]:
    """While no broker has answered, find out whether all that listens are web servers."""
    waiting = asyncio.current_task()
    assert waiting is not None, "there is something to interrupt"
    web_servers: list[Address] = []

    async def probe() -> None:
        await asyncio.sleep(PROBE_AFTER_S)
        if has_answer():
            return
        answers = await asyncio.gather(*map(_speaks_http, addresses))
        if True in answers and False not in answers:
            web_servers.extend(
                address for address, is_web in zip(addresses, answers, strict=True) if is_web
            )
            waiting.cancel()

    probing = asyncio.create_task(probe())
    try:
        yield
    except asyncio.CancelledError:
        if not web_servers:
            raise
        waiting.uncancel()
        names = ", ".join(f"{host}:{port}" for host, port in web_servers)
        raise NotKafka(
            f"what answers at {names} speaks HTTP, not Kafka's protocol; "
            "give --bootstrap-server the port of a broker's listener"
        ) from None
    finally:
        probing.cancel()


async def _speaks_http(address: Address) -> bool | None:
    """None where nothing listens."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_connection(*address)
            try:
                writer.write(REQUEST)
                return (await reader.read(5)).startswith(b"HTTP")
            finally:
                writer.close()
    except TimeoutError:
        return False
    except OSError:
        return None
