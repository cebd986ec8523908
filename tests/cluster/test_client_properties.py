"""Properties of a client on our own brokers, which speak plaintext."""

from __future__ import annotations

from pathlib import Path

import pytest

from insync.cli import main as cli
from insync.testing.cluster import Cluster

pytestmark = [pytest.mark.process, pytest.mark.insync_cluster(brokers=1, scope="module")]

NO_TLS = (
    "insync: {address}: the connection ended during the TLS handshake; is it a plaintext listener? "
    "(security.protocol) or does it require a client certificate? (ssl.keystore.location)"
)
NO_EFFECT = "insync: {file}: without effect while security.protocol is PLAINTEXT: ssl.key.password"
NO_SASL = "insync: {address}: the broker offers no SASL; set security.protocol=PLAINTEXT"
LOGIN = (
    "sasl.mechanism=PLAIN\n"
    "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
    '    username="alice" password="secret";\n'
)


@pytest.mark.parametrize(
    ("properties", "code", "lines"),
    [
        ("client.id=me\nrequest.timeout.ms=5000\n", 0, []),
        (
            "bootstrap.servers=elsewhere:9092\nssl.key.password=x\n",
            0,
            ["insync: {file}: ignored: bootstrap.servers", NO_EFFECT],
        ),
        ("security.protocol=SSL\n", 1, [NO_TLS]),
        (f"security.protocol=SASL_PLAINTEXT\n{LOGIN}", 1, [NO_SASL]),
    ],
)
def test_messages_about_client_properties(
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    properties: str,
    code: int,
    lines: list[str],
) -> None:
    file = tmp_path / "client.properties"
    file.write_text(properties)
    where = ["--bootstrap-server", cluster.bootstrap, "--command-config", str(file)]
    assert cli.main(["topics", *where, "--list"]) == code
    error = capsys.readouterr().err
    assert error.splitlines() == [
        line.format(file=file, address=cluster.bootstrap) for line in lines
    ]
