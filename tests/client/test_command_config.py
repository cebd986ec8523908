"""A client from Kafka's properties: what is read, refused, and reported as ignored."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insync.client.admin_connections import Patience
from insync.client.command_config import CommandConfig, command_config, read_command_config
from insync.client.jaas import parse_jaas
from insync.client.java_properties import parse_java_properties
from insync.client.sasl import bearer, login_from
from insync.client.scram import AuthenticationFailed
from insync.client.secure_sockets import SecureSockets
from insync.client.sockets import Sockets
from insync.rules.refusals import BadSetting
from support.client.certificates import KEY_PASSWORD, Authority, locked, openssl

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


# Java's format.


def test_properties_are_read_as_java_reads_them() -> None:
    """The cases of java.util.Properties' own documentation, and those of real files."""
    text = (
        "# a comment \\\n"
        "  ! another\n\n"
        "Truth = Beauty\n"
        "  Truth2:Beauty\n"
        "Truth3    Beauty\r\n"
        "fruits  apple, banana, \\\n"
        "        cantaloupe\n"
        "path=C:\\\\temp\n"
        "u=\\u00e4\\ud83d\\ude00\n"
        "a\\=b\\ c=d=e\n"
        'jaas=x password="a\\\\"b";\n'
        "empty=\n"
        "pem=-----BEGIN X-----\\nAA==\\n-----END X-----\n"
        "twice=1\ntwice=2\nlast=\\"
    )
    assert parse_java_properties(text) == {
        "Truth": "Beauty",
        "Truth2": "Beauty",
        "Truth3": "Beauty",
        "fruits": "apple, banana, cantaloupe",
        "path": "C:\\temp",
        "u": "ä\U0001f600",
        "a=b c": "d=e",
        "jaas": 'x password="a\\"b";',
        "empty": "",
        "pem": "-----BEGIN X-----\nAA==\n-----END X-----",
        "twice": "2",
        "last": "",
    }


@pytest.mark.parametrize("text", ["nonsense\n", "=value\n", "a=\\u12\n", "a=\\uzzzz\n"])
def test_malformed_properties(text: str) -> None:
    with pytest.raises(BadSetting, match="line 1"):
        parse_java_properties(text)


def stored(text: str) -> str:
    """As java.util.Properties stores it: every special character escaped."""
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(f"\\u{code:04x}" for code in codes)


@pytest.mark.property
@given(st.dictionaries(st.text(min_size=1), st.text().map(str.rstrip)))
def test_what_java_stores_is_read_back(values: dict[str, str]) -> None:
    text = "".join(f"{stored(key)}={stored(value)}\n" for key, value in values.items())
    assert parse_java_properties(text) == values


@pytest.mark.property
@given(st.text())
def test_any_text_is_properties_or_refused(text: str) -> None:
    with suppress(BadSetting):
        parse_java_properties(text)


# JAAS.


def test_jaas_as_kafka_writes_it() -> None:
    text = f"""
        {PLAIN_MODULE} /* plain */ required // or not
            username="a=b;c"
            password='it\\'s' debug=true
            more="tab\\tquote\\"backslash\\\\octal\\101";
    """
    module = parse_jaas(text)
    assert module.name == "PlainLoginModule"
    assert module.options == {
        "username": "a=b;c",
        "password": "it's",
        "debug": "true",
        "more": 'tab\tquote"backslash\\octalA',
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no login module"),
        (PLAIN_MODULE, "names no login module"),
        (f"{PLAIN_MODULE} required", "semicolon"),
        (f"{PLAIN_MODULE} wanted;", "comes one of"),
        (f'{PLAIN_MODULE} required username="a;', "quote is not closed"),
        (f'{PLAIN_MODULE} required username="a" password;', "'password' is not followed"),
        (f"{PLAIN_MODULE} required =a;", "no name"),
        (f"{PLAIN_MODULE} required; {PLAIN_MODULE} required;", "more than one"),
    ],
)
def test_malformed_jaas(text: str, message: str) -> None:
    with pytest.raises(BadSetting, match=message):
        parse_jaas(text)


@pytest.mark.property
@given(st.text(min_size=1), st.text(min_size=1))
def test_any_password_can_be_quoted(user: str, password: str) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = f"M required username={quoted(user)} password={quoted(password)};"
    assert parse_jaas(text).options == {"username": user, "password": password}


@pytest.mark.property
@given(st.text(alphabet="ab=;\"'\\/* \n"))
def test_any_text_is_jaas_or_refused(text: str) -> None:
    for jaas in (text, f"M required {text};"):
        with suppress(BadSetting):
            parse_jaas(jaas)


# Authentication.


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, "sasl.mechanism is GSSAPI, Kafka's default; insync knows PLAIN, SCRAM-SHA-256"),
        ({"sasl.mechanism": "SCRAM-SHA-1"}, "sasl.mechanism is SCRAM-SHA-1; insync knows"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.jaas.config is missing"),
        (
            {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": f"{PLAIN_MODULE} required;"},
            "is for PlainLoginModule; sasl.mechanism=SCRAM-SHA-256 needs ScramLoginModule",
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": f"{PLAIN_MODULE} required;"},
            "has no username",
        ),
        (
            {
                "sasl.mechanism": "PLAIN",
                "sasl.jaas.config": f'{PLAIN_MODULE} required username="a\\0" password=b;',
            },
            "username holds a NUL",
        ),
        ({"sasl.mechanism": "OAUTHBEARER"}, "needs sasl.oauthbearer.token"),
        (
            {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "two words"},
            "sasl.oauthbearer.token holds no token",
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "https://somewhere/token",
            },
            "insync fetches no tokens",
        ),
        (
            {
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": "file:///not/there",
            },
            "cannot read /not/there: No such file",
        ),
    ],
)
def test_refused_logins(properties: dict[str, str], message: str) -> None:
    with pytest.raises(BadSetting) as refusal:
        login_from(properties)
    assert message in str(refusal.value)


def test_a_delegation_token_is_marked_as_one() -> None:
    """As in KIP-48, in SCRAM's extensions."""
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="id" password="hmac" tokenauth="true";'
    login = login_from({"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas})
    first = next(login.conversations[0]())
    assert first.startswith(b"n,,n=id,r=")
    assert first.endswith(b",tokenauth=true")


def test_a_token_is_sent_as_rfc_7628_says() -> None:
    """Its example, section 4.1, without the host and port that Kafka leaves out."""
    login = login_from({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": "vF9dft4qmT"})
    exchange = login.conversations[0]()
    assert next(exchange) == b"n,,\x01auth=Bearer vF9dft4qmT\x01\x01"
    with pytest.raises(StopIteration):
        exchange.send(b"")


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b'{"status":"invalid_token","scope":"s"}', "invalid_token"),
        (b"[]", "no reason given"),
        (b"\xff", "no reason given"),
    ],
)
def test_a_token_that_is_refused(response: bytes, message: str) -> None:
    exchange = bearer("t")
    next(exchange)
    assert exchange.send(response) == b"\x01"
    with pytest.raises(AuthenticationFailed, match=message):
        exchange.send(b"")


def test_a_token_file_is_read_again_for_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "a token"
    file.write_text("first\n")
    login = login_from(
        {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": file.as_uri()}
    )
    assert b"first" in next(login.conversations[0]())
    file.write_text("second\n")
    assert b"second" in next(login.conversations[0]())


# TLS.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    made = Authority(folder)
    client = made.sign("client")
    locked(client, folder / "locked.pem")
    other = made.sign("other")
    (folder / "mixed.pem").write_text(client.key + other.certificate)
    (folder / "keyless.pem").write_text(client.certificate)
    (folder / "broken.pem").write_text(client.certificate.replace("M", "*"))
    (folder / "cut.pem").write_text(client.key + client.certificate[:200])
    (folder / "key.pem").write_text(client.key)
    (folder / "text").write_text("hello")
    (folder / "jks").write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    openssl(
        *("pkcs12", "-export", "-in", client.path, "-out", folder / "own.p12"),
        *("-passout", "pass:x"),
    )
    return made


def ssl_client(properties: dict[str, str]) -> CommandConfig:
    return command_config({"security.protocol": "SSL", **properties}, Patience())


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"ssl.truststore.location": "missing"}, "cannot read {}/missing: No such file"),
        ({"ssl.truststore.location": ""}, "cannot read {}: Is a directory"),
        ({"ssl.truststore.location": "text"}, "is not PEM"),
        ({"ssl.truststore.location": "broken.pem"}, "no certificate can be read from it"),
        ({"ssl.truststore.location": "jks"}, "is JKS; insync reads PEM: keytool -list -rfc"),
        ({"ssl.truststore.location": "own.p12"}, "is PKCS12; insync reads PEM: keytool"),
        (
            {"ssl.truststore.location": "text", "ssl.truststore.type": "JKS"},
            "is JKS; insync reads PEM",
        ),
        (
            {"ssl.truststore.location": "authority.pem", "ssl.truststore.password": "x"},
            "ssl.truststore.password cannot be combined with PEM",
        ),
        ({"ssl.truststore.certificates": "junk"}, "ssl.truststore.certificates is not PEM"),
        ({"ssl.keystore.location": "own.p12"}, "openssl pkcs12 -in own.p12"),
        ({"ssl.keystore.location": "keyless.pem"}, "holds no private key"),
        ({"ssl.keystore.location": "mixed.pem"}, "not that of the first certificate"),
        ({"ssl.keystore.location": "cut.pem"}, "no certificate and private key can be read"),
        ({"ssl.keystore.location": "locked.pem"}, "encrypted and ssl.key.password is not set"),
        (
            {"ssl.keystore.location": "locked.pem", "ssl.key.password": "wrong"},
            "does not open with ssl.key.password",
        ),
        (
            {"ssl.keystore.location": "locked.pem", "ssl.key.password": "x" * 1_024},
            "ssl.key.password is longer than 1023 bytes",
        ),
        ({"ssl.truststore.location": "key.pem"}, "no certificate can be read from it"),
        ({"ssl.keystore.key": "k"}, "ssl.keystore.certificate.chain is not"),
        (
            {"ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----"},
            "ssl.keystore.key is not",
        ),
        ({"ssl.enabled.protocols": "TLSv1.3,SSLv3"}, "'SSLv3' is not one of TLSv1.2, TLSv1.3"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "write https, or nothing"),
    ],
)
def test_refused_tls_settings(
    authority: Authority,  # noqa: ARG001 - it made the files
    folder: Path,
    properties: dict[str, str],
    message: str,
) -> None:
    properties = {
        name: f"{folder}/{value}" if name.endswith("location") else value
        for name, value in properties.items()
    }
    with pytest.raises(BadSetting) as refusal:
        ssl_client(properties)
    assert message.format(folder) in str(refusal.value)


def test_accepted_tls_settings(authority: Authority, folder: Path) -> None:
    client = ssl_client(
        {
            "ssl.truststore.location": str(authority.path),
            "ssl.keystore.location": str(folder / "locked.pem"),
            "ssl.key.password": KEY_PASSWORD,
            "ssl.endpoint.identification.algorithm": "",
            "ssl.enabled.protocols": "TLSv1.2",
        }
    )
    assert isinstance(client.network, SecureSockets)
    assert client.network._tls is not None
    context = client.network._tls.context
    assert not context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"
    assert context.maximum_version.name == "TLSv1_2"
    assert context.cert_store_stats()["x509"] == 1


def test_text_between_certificates_is_ignored(authority: Authority) -> None:
    """keytool writes it in the language of its user."""
    text = f"Aliasname: änderung\n{authority.path.read_text()}\n***\n"
    client = ssl_client({"ssl.truststore.certificates": text})
    assert isinstance(client.network, SecureSockets)
    assert client.network._tls is not None
    assert client.network._tls.context.cert_store_stats()["x509"] == 1


# All of it.


def test_ignored_properties_are_reported() -> None:
    client = command_config(
        {
            "sasl.mechanisms": "PLAIN",
            "retries": "5",
            "ssl.key.password": "secret",
            "client.id": "me",
            "request.timeout.ms": "7",
        },
        Patience(),
    )
    assert isinstance(client.network, Sockets)
    assert client.client_id == "me"
    assert client.patience == Patience(request_ms=7)
    assert client.notes == (
        "ignored: retries, sasl.mechanisms (did you mean sasl.mechanism?)",
        "without effect while security.protocol is PLAINTEXT: ssl.key.password",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "is not UTF-8 text"),
        (b"#" * (1 << 20) + b"#", "larger than 1048576 bytes"),
        (b"security.protocol=SSH", "security.protocol is 'SSH'"),
        (b"client.id=" + b"x" * 1_001, "client.id is longer"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(content)
    with pytest.raises(BadSetting, match=message) as refusal:
        read_command_config(file, Patience())
    assert str(file) in str(refusal.value)


def test_secrets_are_not_printed_by_accident() -> None:
    jaas = f'{PLAIN_MODULE} required username="alice" password="very secret";'
    properties = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": jaas,
    }
    client = command_config(properties, Patience())
    shown = repr([client, client.network, login_from(properties), parse_jaas(jaas)])
    assert "secret" not in shown
    with pytest.raises(BadSetting) as refusal:
        command_config(properties | {"sasl.jaas.config": jaas.rstrip(";")}, Patience())
    assert "secret" not in str(refusal.value)
