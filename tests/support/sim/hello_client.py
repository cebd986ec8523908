"""A caller that claims to be a broker, truly or falsely."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from insync.client.connection import ClientConnection
from insync.metadata import paths
from insync.sim.cluster import Cluster
from insync.wire import hello
from insync.wire.apis import Api
from insync.wire.fetch import FetchRequest, read_fetch_response, write_fetch_request

STRANGERS_HOST = 100
FETCH_VERSION = 17


class Caller:
    """One connection to one broker."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def nonce(self, broker: int, incarnation: int) -> bytes:
        answer = await self._hello(hello.HelloRequest(broker, incarnation))
        assert answer.error == ErrorCode.none
        return answer.nonce

    async def offer(self, proof: bytes, broker: int, incarnation: int) -> ErrorCode:
        """The error code for this proof."""
        answer = await self._hello(hello.HelloRequest(broker, incarnation, proof))
        assert answer.nonce == b"", "a verdict has no new nonce"
        return ErrorCode(answer.error)

    async def prove(self, secret: bytes, broker: int, incarnation: int) -> ErrorCode:
        """Get a nonce and send its proof, as brokers do."""
        nonce = await self.nonce(broker, incarnation)
        proof = hello.proof(secret, nonce, broker, incarnation)
        return await self.offer(proof, broker, incarnation)

    async def fetch(self, replica: int, incarnation: int) -> ErrorCode:
        """The error code for a fetch as this follower."""
        request = FetchRequest(
            replica_id=replica, replica_epoch=incarnation, max_wait_ms=0, min_bytes=0, topics=[]
        )
        body = write_fetch_request(FETCH_VERSION, request)
        frame, at = await self._connection.ask(Api.FETCH, FETCH_VERSION, [body])
        return ErrorCode(read_fetch_response(FETCH_VERSION, frame, at).error)

    async def _hello(self, request: hello.HelloRequest) -> hello.HelloResponse:
        body = hello.write_hello_request(request)
        frame, at = await self._connection.ask(Api.BROKER_HELLO, 0, [body])
        return hello.read_hello_response(frame, at)


async def caller_of(cluster: Cluster, broker: int) -> Caller:
    connection = ClientConnection(client_id="a stranger")
    await cluster.network.host(STRANGERS_HOST).connect(f"broker-{broker}", 9092, connection)
    return Caller(connection)


def secret_of(cluster: Cluster) -> bytes:
    return cluster.tree.entries[paths.CLUSTER_SECRET].value
