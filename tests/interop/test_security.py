"""Our tools on Apache Kafka with TLS and SASL, by the files that Kafka's own tools take."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from insync.cli import main as cli
from insync.client.admin import Admin
from insync.client.admin_connections import Connections, Patience, parse_bootstrap
from insync.client.command_config import command_config
from insync.client.connection import ClientConnection
from insync.client.partition_client import PartitionClient
from peers.apache_kafka import ApacheKafka, java_tool
from support.client.certificates import KEY_PASSWORD, Authority, Signed, locked
from support.cluster.clients import eventually

pytestmark = pytest.mark.interop

MODULES = "org.apache.kafka.common.security"
PASSWORD = 'a "quoted" \\ password, with = and ;'
# SASLprep would make IX of its last character; Apache Kafka does not.
ODD_PASSWORD = "pass\u2168"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LISTENERS = {"LOCKED": "SASL_SSL", "MUTUAL": "SSL", "OPEN": "SASL_PLAINTEXT", "SHORT": "SASL_SSL"}
SHORT_SESSION_MS = 1_500


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def property_line(name: str, value: str) -> str:
    """As Java reads it back."""
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return f"{name}={escaped}\n"


def jaas(mechanism: str, *, user: str = "alice", password: str = PASSWORD) -> str:
    kind = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    login = f"username={quoted(user)} password={quoted(password)}"
    return f"{MODULES}.{kind}LoginModule required {login};"


def listener_settings(name: str, own: Signed, authority: Authority) -> dict[str, str]:
    prefix = f"listener.name.{name.lower()}"
    login = f"{MODULES}.plain.PlainLoginModule required user_alice={quoted(PASSWORD)};"
    scram = f"{MODULES}.scram.ScramLoginModule required;"
    bearer = f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;"
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(own.path),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.path),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "plain.sasl.jaas.config": login.replace("\\", "\\\\"),
        "scram-sha-256.sasl.jaas.config": scram,
        "scram-sha-512.sasl.jaas.config": scram,
        "oauthbearer.sasl.jaas.config": bearer,
    }
    return {f"{prefix}.{key}": value for key, value in settings.items()}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def kafka(authority: Authority) -> Iterator[ApacheKafka]:
    own = authority.sign("broker")
    settings = {"offsets.topic.replication.factor": "1"}
    for name in LISTENERS:
        settings |= listener_settings(name, own, authority)
    settings["listener.name.open.sasl.enabled.mechanisms"] = "PLAIN"
    settings["listener.name.mutual.ssl.client.auth"] = "required"
    settings["listener.name.short.connections.max.reauth.ms"] = str(SHORT_SESSION_MS)
    scram = [
        f"{mechanism}=[name={user},password={password}]"
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for user, password in (("alice", "secret"), ("odd", ODD_PASSWORD))
    ]
    with ApacheKafka(nodes=2, settings=settings, listeners=LISTENERS, scram=scram) as started:
        yield started


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(kafka: ApacheKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def insync(listener: str, properties: dict[str, str], *command: str) -> tuple[int, str, str]:
        file = tmp_path / "client.properties"
        file.write_text("".join(property_line(*each) for each in properties.items()))
        address = kafka.bootstrap if listener == "PLAINTEXT" else kafka.bootstrap_of(listener)
        where = ["--bootstrap-server", address, "--command-config", str(file)]
        code = cli.main([command[0], *where, *command[1:]])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return insync


def trusting(authority: Authority, **more: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.path),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def logged_in(
    authority: Authority, mechanism: str, *, password: str = "", user: str = "alice"
) -> dict[str, str]:
    secret = password or (PASSWORD if mechanism == "PLAIN" else "secret")
    login = jaas(mechanism, user=user, password=secret)
    return trusting(authority, sasl_mechanism=mechanism, sasl_jaas_config=login)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_every_tool_works_with_a_password(run: Run, authority: Authority, mechanism: str) -> None:
    client = logged_in(authority, mechanism)
    topic = f"of-{mechanism}"
    create = ["--create", "--topic", topic, "--replica-assignment", "1:2"]
    assert run("LOCKED", client, "topics", *create) == (0, f"Created topic {topic}.\n", "")

    def is_known() -> bool:
        """To both brokers, which learn of it some time after it is made."""
        code, out, err = run("LOCKED", client, "topics", "--list")
        assert (code, err) == (0, "")
        replicas_code, *_ = run("LOCKED", client, "replicas", "--topic", topic)
        return topic in out.splitlines() and replicas_code == 0

    eventually(is_known, within_s=30, what="both brokers know the topic")
    code, out, err = run("LOCKED", client, "configs", "--describe", "--entity-type", "brokers",
                         "--entity-name", "2", "--all")  # fmt: skip
    assert (code, err) == (0, "")
    assert "  node.id=2 " in out, (
        "the request went to the second broker, whose address came from Metadata"
    )
    code, out, err = run("LOCKED", client, "replicas", "--topic", topic, "--json")
    assert (code, err) == (0, "")
    (row,) = json.loads(out)["followers"]
    assert (row["leader"], row["follower"], row["in_sync"]) == (1, 2, True)


def test_moves_and_throttles_work_with_a_password(
    run: Run, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INSYNC_STATE_DIR", str(tmp_path / "state"))
    client = logged_in(authority, "SCRAM-SHA-256")
    create = ["--create", "--topic", "moved", "--replica-assignment", "1"]
    assert run("LOCKED", client, "topics", *create)[0] == 0

    def is_on(replicas: str) -> bool:
        code, out, _ = run("LOCKED", client, "topics", "--describe", "--topic", "moved")
        return code == 0 and f"Replicas: {replicas}\t" in out

    eventually(lambda: is_on("1"), within_s=30, what="the topic is known")
    plan = tmp_path / "plan.json"
    partition = {"topic": "moved", "partition": 0, "replicas": [1, 2]}
    plan.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    plan_flags = ["--reassignment-json-file", str(plan)]
    limit = ["--throttle", "5MB", "--force", "--watch", "--json"]
    code, out, err = run("LOCKED", client, "reassign", "--execute", *plan_flags, *limit)
    assert code == 0, err
    assert set(json.loads(out)["standing"].values()) == {"completed"}
    eventually(lambda: is_on("1,2"), within_s=30, what="it is on both")
    code, _, err = run("LOCKED", client, "reassign", "--verify", *plan_flags)
    assert code == 0, err
    bootstrap = ["--broker", "2", "--bootstrap", "--throttle", "5MB", "--force"]
    code, _, err = run("LOCKED", client, "throttle", *bootstrap)
    assert code == 0, err


def test_kafkas_own_tools_take_the_same_file(
    run: Run, kafka: ApacheKafka, authority: Authority, tmp_path: Path
) -> None:
    client = logged_in(authority, "PLAIN")
    create = ["--create", "--topic", "shared", "--replica-assignment", "1:2"]
    assert run("LOCKED", client, "topics", *create)[0] == 0

    def listed() -> str:
        return run("LOCKED", client, "topics", "--list")[1]

    eventually(lambda: "shared" in listed().splitlines(), within_s=30, what="it is listed")
    ours = listed()
    tool = java_tool(
        *("org.apache.kafka.tools.TopicCommand", "--list"),
        *("--bootstrap-server", kafka.bootstrap_of("LOCKED")),
        *("--command-config", str(tmp_path / "client.properties")),
    )
    done = subprocess.run(tool, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ours


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_that_saslprep_would_change(
    run: Run, authority: Authority, mechanism: str
) -> None:
    client = logged_in(authority, mechanism, user="odd", password=ODD_PASSWORD)
    code, _, err = run("LOCKED", client, "topics", "--list")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        ("PLAIN", "Authentication failed: Invalid username or password"),
        ("SCRAM-SHA-256", "invalid credentials with SASL mechanism SCRAM-SHA-256"),
        ("SCRAM-SHA-512", "invalid credentials with SASL mechanism SCRAM-SHA-512"),
    ],
)
def test_a_wrong_password(run: Run, authority: Authority, mechanism: str, message: str) -> None:
    client = logged_in(authority, mechanism, password="wrong")
    code, out, err = run("LOCKED", client, "topics", "--list")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert message in err
    assert err.endswith("(SASL_AUTHENTICATION_FAILED)\n")


def test_certificates_on_both_sides(run: Run, authority: Authority, tmp_path: Path) -> None:
    client = trusting(authority) | {"security.protocol": "SSL", "ssl.keystore.type": "PEM"}
    own = authority.sign("client")
    in_file = client | {"ssl.keystore.location": str(own.path)}
    assert run("MUTUAL", in_file, "topics", "--list")[::2] == (0, "")
    encrypted = locked(own, tmp_path / "locked.pem")
    in_line = client | {
        "ssl.keystore.certificate.chain": encrypted.certificate,
        "ssl.keystore.key": encrypted.key,
        "ssl.key.password": KEY_PASSWORD,
        "ssl.truststore.certificates": authority.path.read_text(),
    }
    del in_line["ssl.truststore.location"]
    assert run("MUTUAL", in_line, "topics", "--list")[::2] == (0, "")


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
def test_a_certificate_that_is_missing_or_unknown(
    run: Run, authority: Authority, tmp_path: Path, version: str
) -> None:
    client = trusting(authority) | {"security.protocol": "SSL", "ssl.enabled.protocols": version}
    other_authoritys_certificate = Authority(tmp_path / "strangers", "strangers").sign("stranger")
    for properties in (
        client,
        client | {"ssl.keystore.location": str(other_authoritys_certificate.path)},
    ):
        code, _, err = run("MUTUAL", properties, "topics", "--list")
        assert (code, err.count("\n")) == (1, 1)
        assert "the broker refuses this client's certificate, or requires one" in err


def test_a_token(run: Run, authority: Authority, tmp_path: Path) -> None:
    def token(*, expires_in_s: int) -> str:
        now_s = int(time.time())
        parts = {"alg": "none"}, {"sub": "alice", "iat": now_s - 900, "exp": now_s + expires_in_s}
        encoded = [urlsafe_b64encode(json.dumps(part).encode()).decode() for part in parts]
        return ".".join(part.rstrip("=") for part in encoded) + "."

    client = trusting(authority, sasl_mechanism="OAUTHBEARER")
    good = client | {"sasl.oauthbearer.token": token(expires_in_s=300)}
    assert run("LOCKED", good, "topics", "--list")[::2] == (0, "")
    file = tmp_path / "token"
    file.write_text(token(expires_in_s=300) + "\n")
    in_file = client | {"sasl.oauthbearer.token.endpoint.url": file.as_uri()}
    assert run("LOCKED", in_file, "topics", "--list")[::2] == (0, "")
    expired = client | {"sasl.oauthbearer.token": token(expires_in_s=-600)}
    code, _, err = run("LOCKED", expired, "topics", "--list")
    assert (code, err.count("\n")) == (1, 1)
    assert "invalid_token" in err


@pytest.mark.parametrize(
    ("listener", "protocol", "message"),
    [
        ("OPEN", "SASL_PLAINTEXT", "does not support SCRAM-SHA-256; it offers PLAIN"),
        ("OPEN", "PLAINTEXT", "does its listener require SASL? (security.protocol)"),
        ("OPEN", "SASL_SSL", "ended during the TLS handshake; is it a plaintext listener?"),
        ("LOCKED", "PLAINTEXT", "listener speaks TLS; set security.protocol to SSL or SASL_SSL"),
        ("LOCKED", "SASL_PLAINTEXT", "listener speaks TLS; set security.protocol to SSL"),
        ("LOCKED", "SSL", "does its listener require SASL? (security.protocol)"),
        ("PLAINTEXT", "SSL", "ended during the TLS handshake; is it a plaintext listener?"),
        ("PLAINTEXT", "SASL_PLAINTEXT", "does not use SASL; set security.protocol=PLAINTEXT"),
    ],
)
def test_a_protocol_that_the_listener_does_not_speak(
    run: Run, authority: Authority, listener: str, protocol: str, message: str
) -> None:
    client = logged_in(authority, "SCRAM-SHA-256") | {"security.protocol": protocol}
    began_s = time.monotonic()
    code, _, err = run(listener, client, "topics", "--list")
    assert code == 1
    assert message in err.splitlines()[-1]
    assert time.monotonic() - began_s < 10, (
        "the command does not wait for a response that cannot come"
    )


def test_records_are_produced_and_read_with_the_same_properties(
    run: Run, kafka: ApacheKafka, authority: Authority
) -> None:
    """What `insync telemetry export` reads with."""
    properties = logged_in(authority, "SCRAM-SHA-512")
    create = ["--create", "--topic", "records", "--replica-assignment", "2:1"]
    assert run("LOCKED", properties, "topics", *create)[0] == 0

    async def there_and_back() -> list[bytes]:
        network = command_config(properties, Patience()).network
        addresses = parse_bootstrap(kafka.bootstrap_of("LOCKED"))
        client = PartitionClient(network, addresses, "records", 0)
        try:
            async with asyncio.timeout(60):
                await client.append([b"one", b"two"])
                return (await client.read(0))[0]
        finally:
            await client.close()

    assert asyncio.run(there_and_back()) == [b"one", b"two"]


def test_sessions_that_end_during_requests(kafka: ApacheKafka, authority: Authority) -> None:
    """KIP-368: the broker ends a connection that is used for longer than its session."""
    client = command_config(logged_in(authority, "SCRAM-SHA-512"), Patience())

    async def keep_requesting() -> set[ClientConnection]:
        used: set[ClientConnection] = set()
        addresses = parse_bootstrap(kafka.bootstrap_of("SHORT"))
        async with Admin(Connections(client.network, addresses)) as admin:
            async with asyncio.timeout(60):
                while len(used) < 3:
                    await admin.connections.metadata([])  # without a second try
                    used |= {each for each, _ in admin.connections._open.values()}
                    await asyncio.sleep(0.02)
        return used

    began_s = time.monotonic()
    assert len(asyncio.run(keep_requesting())) >= 3
    assert time.monotonic() - began_s > SHORT_SESSION_MS / 1_000
