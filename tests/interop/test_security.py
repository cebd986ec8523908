"""Our tools on Apache Kafka with TLS and SASL, by the files that Kafka's own tools take."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from certificates import Authority, Signed

from insync.cli import main as cli
from peers.apache_kafka import ApacheKafka

pytestmark = pytest.mark.interop

MODULES = "org.apache.kafka.common.security"
PASSWORD = 'a "quoted" \\ password, with = and ;'  # noqa: S105
# SASLprep would make IX of its last character; Apache Kafka does not.
ODD_PASSWORD = "pass\u2168"  # noqa: S105
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
    def insync(listener: str, given: dict[str, str], *command: str) -> tuple[int, str, str]:
        file = tmp_path / "client.properties"
        file.write_text("".join(property_line(*each) for each in given.items()))
        where = ["--bootstrap-server", kafka.bootstrap_of(listener), "--command-config", str(file)]
        if listener == "PLAIN":
            where = []
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
    code, out, err = run("LOCKED", client, "topics", "--list")
    assert (code, err) == (0, "")
    assert topic in out.splitlines()
    code, out, err = run("LOCKED", client, "configs", "--describe", "--entity-type", "brokers",
                         "--entity-name", "2", "--all")  # fmt: skip
    assert (code, err) == (0, "")
    assert "  node.id=2 " in out, "the second broker was asked, which Metadata told of"
    code, out, err = run("LOCKED", client, "replicas", "--topic", topic, "--json")
    assert (code, err) == (0, "")
    (row,) = json.loads(out)["followers"]
    assert (row["leader"], row["follower"], row["in_sync"]) == (1, 2, True)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_that_saslprep_would_change(
    run: Run, authority: Authority, mechanism: str
) -> None:
    client = logged_in(authority, mechanism, user="odd", password=ODD_PASSWORD)
    code, _, err = run("LOCKED", client, "topics", "--list")
    assert (code, err) == (0, "")
