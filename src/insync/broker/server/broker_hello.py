"""BrokerHello: a broker proves its id and incarnation on a connection, as followers must."""

from __future__ import annotations

from collections.abc import Callable

from kio.schema.errors import ErrorCode

from insync.broker.cluster_view import ClusterView
from insync.broker.server.answers import BackgroundAnswers
from insync.broker.server.server import Reply
from insync.rules.values import BrokerId, Incarnation
from insync.wire import hello


class BrokerHello:
    """The first request gets a nonce; the second proves knowledge of the cluster's secret."""

    def __init__(self, view: ClusterView, *, secret: bytes, new_nonce: Callable[[], bytes]) -> None:
        self._view = view
        self._secret = secret
        self._new_nonce = new_nonce
        self._answers = BackgroundAnswers()

    def __call__(self, reply: Reply, frame: memoryview | bytes) -> None:
        request = hello.read_hello_request(frame, reply.header.body_at)
        connection = reply.connection
        if not request.proof:
            connection.nonce = self._new_nonce()
            reply.send([hello.write_hello_response(hello.HelloResponse(0, connection.nonce))])
            return
        nonce, connection.nonce = connection.nonce, b""
        is_proven = bool(nonce) and hello.is_proof(
            request.proof, self._secret, nonce, request.broker_id, request.incarnation
        )
        if is_proven:
            self._answers.begin(reply, self._check_registration(reply, request))
        else:
            _send_result(reply, ErrorCode.cluster_authorization_failed)

    async def _check_registration(self, reply: Reply, request: hello.HelloRequest) -> None:
        """A broker that knows the secret must also be registered in the incarnation it names."""
        broker, incarnation = BrokerId(request.broker_id), Incarnation(request.incarnation)
        await self._view.wait_for_registration(broker, incarnation)
        if self._view.incarnations.get(broker) != incarnation:
            _send_result(reply, ErrorCode.cluster_authorization_failed)
            return
        reply.connection.broker = (broker, incarnation)
        _send_result(reply, ErrorCode.none)


def _send_result(reply: Reply, code: ErrorCode) -> None:
    reply.send([hello.write_hello_response(hello.HelloResponse(code))])
