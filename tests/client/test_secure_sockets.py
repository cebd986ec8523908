"""TLS and SASL on real sockets, on asyncio's loop and on uvloop's."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest
import uvloop

from insync.client.admin import Admin
from insync.client.admin_connections import Connections, Patience, Unreachable
from insync.client.command_config import command_config
from insync.client.connection import Disconnected
from insync.client.scram import AuthenticationFailed
from insync.client.secure_sockets import Untrusted
from insync.rules.refusals import Refusal
from support.client.certificates import Authority
from support.client.scram_server import ScramServer
from support.client.secure_broker import HOST, WITHOUT_SASL, Listen, SecureBroker

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
PATIENCE = Patience(request_ms=5_000, operation_ms=5_000)
MODULES = "org.apache.kafka.common.security"


@pytest.fixture(params=LOOPS, ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def run(scenario: Callable[[], Awaitable[None]]) -> None:
        async def run_scenario() -> None:
            async with asyncio.timeout(20):
                await scenario()

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(run_scenario())

    return run


Play = Callable[[Callable[[], Awaitable[None]]], None]


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.stranger = Authority(folder / "strangers", "strangers")
        self.broker = self.authority.sign("broker")
        self.elsewhere = self.authority.sign("elsewhere", alternatives="DNS:elsewhere.example")
        self.expired = self.authority.sign("expired", days=-1)
        self.client = self.authority.sign("client")

    def context(self, name: str = "broker", *, asks_clients: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(getattr(self, name).path)
        if asks_clients:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.authority.path)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def admin_of(broker: SecureBroker, properties: Mapping[str, str]) -> Admin:
    client = command_config(properties, PATIENCE)
    return Admin(Connections(client.network, [(HOST, broker.port)], patience=client.patience))


def trusting(certificates: Certificates, **more: str) -> dict[str, str]:
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(certificates.authority.path),
    }
    return properties | {name.replace("_", "."): value for name, value in more.items()}


def logged_in(mechanism: str = "PLAIN", password: str = "secret") -> dict[str, str]:
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    module = f"{MODULES}.{kind}LoginModule"
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="alice" password="{password}";',
    }


def taking_plain() -> Listen:
    return lambda token: b"" if token == b"\0alice\0secret" else None


async def refusal_of(broker: SecureBroker, properties: Mapping[str, str]) -> Refusal:
    async with broker.served(), admin_of(broker, properties) as admin:
        with pytest.raises(Refusal) as refused:
            await admin.brokers()
        return refused.value


# TLS.


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_an_encrypted_cluster(play: Play, certificates: Certificates, version: str) -> None:
    async def scenario() -> None:
        broker = SecureBroker(tls=certificates.context())
        properties = trusting(certificates, ssl_enabled_protocols=version)
        async with broker.served(), admin_of(broker, properties) as admin:
            (only,) = await admin.brokers()
            assert only.number == 1

    play(scenario)


@pytest.mark.parametrize(
    ("certificate", "trusted", "expected_message"),
    [
        ("broker", "stranger", "its certificate is not trusted: unable to get local issuer"),
        ("expired", "authority", "its certificate is not valid now: certificate has expired"),
        ("elsewhere", "authority", "its certificate is for another name: "),
    ],
)
def test_a_broker_that_is_not_trusted(
    play: Play, certificates: Certificates, certificate: str, trusted: str, expected_message: str
) -> None:
    async def scenario() -> None:
        properties = trusting(certificates)
        properties["ssl.truststore.location"] = str(getattr(certificates, trusted).path)
        broker = SecureBroker(tls=certificates.context(certificate))
        refusal = await refusal_of(broker, properties)
        assert isinstance(refusal, Untrusted)
        assert str(refusal).startswith(f"{HOST}:{broker.port}: {expected_message}")

    play(scenario)


def test_a_certificate_in_the_store_is_trusted_whatever_signed_it(
    play: Play, certificates: Certificates
) -> None:
    async def scenario() -> None:
        broker = SecureBroker(tls=certificates.context())
        properties = trusting(certificates)
        properties["ssl.truststore.location"] = str(certificates.broker.path)
        async with broker.served(), admin_of(broker, properties) as admin:
            assert len(await admin.brokers()) == 1

    play(scenario)


def test_names_are_not_checked_if_disabled(play: Play, certificates: Certificates) -> None:
    async def scenario() -> None:
        broker = SecureBroker(tls=certificates.context("elsewhere"))
        properties = trusting(certificates, ssl_endpoint_identification_algorithm="")
        async with broker.served(), admin_of(broker, properties) as admin:
            assert len(await admin.brokers()) == 1

    play(scenario)


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_broker_that_requires_a_client_certificate(
    play: Play, certificates: Certificates, version: str
) -> None:
    async def scenario() -> None:
        properties = trusting(certificates, ssl_enabled_protocols=version)
        broker = SecureBroker(tls=certificates.context(asks_clients=True))
        own = properties | {"ssl.keystore.location": str(certificates.client.path)}
        async with broker.served(), admin_of(broker, own) as admin:
            assert len(await admin.brokers()) == 1
        # asyncio's servers end the connection without an alert.
        assert "does it require a client certificate?" in str(await refusal_of(broker, properties))

    play(scenario)


@contextmanager
def alerting(context: ssl.SSLContext) -> Iterator[int]:
    """A server of one connection that sends why it refuses, and its port."""
    with socket.create_server((HOST, 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            connection.settimeout(10)
            with connection.dup() as plain, suppress(OSError):
                encrypted = context.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
                with encrypted:
                    with suppress(ssl.SSLError):
                        encrypted.do_handshake()
                    while plain.recv(4096):  # unread bytes would take the alert away
                        pass

        thread = Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_broker_that_sends_an_alert_for_a_missing_certificate(
    play: Play, certificates: Certificates, version: str
) -> None:
    async def scenario() -> None:
        properties = trusting(certificates, ssl_enabled_protocols=version)
        with alerting(certificates.context(asks_clients=True)) as port:
            client = command_config(properties, PATIENCE)
            async with Admin(Connections(client.network, [(HOST, port)])) as admin:
                with pytest.raises(
                    Untrusted, match="refuses this client's certificate, or requires one"
                ):
                    await admin.brokers()
            await asyncio.sleep(0)

    play(scenario)


def test_tls_to_a_plaintext_listener(play: Play, certificates: Certificates) -> None:
    async def scenario() -> None:
        refusal = await refusal_of(SecureBroker(), trusting(certificates))
        assert isinstance(refusal, Unreachable)
        assert "ended during the TLS handshake; is it a plaintext listener?" in str(refusal)

    play(scenario)


def test_tls_to_a_server_that_is_not_a_broker(play: Play, certificates: Certificates) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, HOST, 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            client = command_config(trusting(certificates), PATIENCE)
            async with Admin(Connections(client.network, [(HOST, port)])) as admin:
                with pytest.raises(Untrusted, match="does not speak TLS"):
                    await admin.brokers()

    play(scenario)


def test_plaintext_to_a_tls_listener(play: Play, certificates: Certificates) -> None:
    async def scenario() -> None:
        refusal = await refusal_of(SecureBroker(tls=certificates.context()), {})
        assert isinstance(refusal, Unreachable)
        assert "ended before the response" in str(refusal)

    play(scenario)


# SASL.


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_correct_password_is_accepted(
    play: Play, certificates: Certificates, mechanism: str, is_encrypted: object
) -> None:
    async def scenario() -> None:
        digest = mechanism[6:].replace("-", "").lower()
        broker = SecureBroker(
            tls=certificates.context() if is_encrypted else None,
            new_login=lambda: ScramServer(digest, "secret").respond,
            mechanisms=(mechanism,),
        )
        properties = logged_in(mechanism)
        if is_encrypted:
            properties = trusting(certificates) | properties | {"security.protocol": "SASL_SSL"}
        async with broker.served(), admin_of(broker, properties) as admin:
            assert len(await admin.brokers()) == 1

    play(scenario)


def test_a_wrong_password_is_tried_once(play: Play) -> None:
    async def scenario() -> None:
        broker = SecureBroker(new_login=taking_plain)
        refusal = await refusal_of(broker, logged_in(password="wrong"))
        assert isinstance(refusal, AuthenticationFailed)
        assert str(refusal) == (
            f"{HOST}:{broker.port}: Authentication failed: Invalid username or password "
            "(SASL_AUTHENTICATION_FAILED)"
        )
        assert broker.refused == 1

    play(scenario)


@pytest.mark.parametrize("stored", ["pass\u2168", "passIX"])
def test_a_password_stored_as_it_is_or_prepared(play: Play, stored: str) -> None:
    """Apache Kafka stores the first; RFC 5802 requires the second."""

    async def scenario() -> None:
        broker = SecureBroker(
            new_login=lambda: ScramServer("sha256", stored).respond, mechanisms=("SCRAM-SHA-256",)
        )
        properties = logged_in("SCRAM-SHA-256", password="pass\u2168")
        async with broker.served(), admin_of(broker, properties) as admin:
            assert len(await admin.brokers()) == 1

    play(scenario)


@pytest.mark.parametrize(
    ("broker", "properties", "expected_message"),
    [
        (
            SecureBroker(new_login=taking_plain, mechanisms=("PLAIN", "GSSAPI")),
            logged_in("SCRAM-SHA-256"),
            "does not support SCRAM-SHA-256; it offers GSSAPI, PLAIN",
        ),
        (
            SecureBroker(versions=WITHOUT_SASL),
            logged_in(),
            "the broker offers no SASL; set security.protocol=PLAINTEXT",
        ),
        (SecureBroker(), logged_in(), "does not use SASL; set security.protocol=PLAINTEXT"),
        (SecureBroker(new_login=taking_plain), {}, "does its listener require SASL?"),
        (
            SecureBroker(new_login=lambda: lambda _token: b"r=x", mechanisms=("SCRAM-SHA-512",)),
            logged_in("SCRAM-SHA-512"),
            "the broker's first SCRAM message is malformed",
        ),
    ],
)
def test_a_refused_login(
    play: Play, broker: SecureBroker, properties: Mapping[str, str], expected_message: str
) -> None:
    async def scenario() -> None:
        assert expected_message in str(await refusal_of(broker, properties))

    play(scenario)


def test_a_session_is_renewed_before_it_ends(play: Play) -> None:
    """By another connection (as in KIP-368, without a pause), and never during a request."""

    async def scenario() -> None:
        broker = SecureBroker(
            new_login=taking_plain, lifetime=timedelta(milliseconds=300), answer_after_s=0.02
        )
        async with broker.served(), admin_of(broker, logged_in()) as admin:
            while broker.connections < 3:
                await admin.connections.metadata([])  # Disconnected would not be tried again
        assert broker.late == 0

    play(scenario)


def test_a_session_that_never_ends(play: Play) -> None:
    async def scenario() -> None:
        broker = SecureBroker(new_login=taking_plain, lifetime=timedelta.max)
        async with broker.served(), admin_of(broker, logged_in()) as admin:
            assert len(await admin.brokers()) == 1

    play(scenario)


def test_a_broker_that_disconnects_during_the_login(play: Play) -> None:
    async def scenario() -> None:
        async with SecureBroker().served() as gone:
            pass
        async with admin_of(gone, logged_in()) as admin:
            with pytest.raises((Unreachable, Disconnected), match="Connection refused"):
                await admin.brokers()

    play(scenario)
