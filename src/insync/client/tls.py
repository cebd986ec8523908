"""TLS from Kafka's `ssl.*` properties, and messages for its errors.

Python reads only PEM, which Kafka supports since 2.7 (KIP-651). Java's own formats are refused,
with the commands that convert them.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from insync.client.small_files import read_small_file
from insync.rules.refusals import BadSetting

PEM_BYTES_MAX: Final = 4 << 20
KEY_PASSWORD_BYTES_MAX: Final = 1_023  # OpenSSL's
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

ENABLED: Final = "ssl.enabled.protocols"
IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
KEY_PASSWORD: Final = "ssl.key.password"  # noqa: S105 - a name
CHAIN: Final = "ssl.keystore.certificate.chain"
KEY: Final = "ssl.keystore.key"
CERTIFICATES: Final = "ssl.truststore.certificates"
NAMES: Final = frozenset(
    {
        *(ENABLED, IDENTIFICATION, KEY_PASSWORD, CHAIN, KEY, CERTIFICATES),
        *(f"ssl.{store}.{part}" for store in ("truststore", "keystore") for part in
          ("type", "location", "password")),
    }
)  # fmt: skip

_JKS: Final = b"\xfe\xed\xfe\xed"
_JCEKS: Final = b"\xce\xce\xce\xce"
_DER: Final = b"\x30"  # PKCS12 is DER
_BEGIN: Final = b"-----BEGIN "
_ENCRYPTED: Final = b"ENCRYPTED"

# OpenSSL's X509_V_ERR_...: not signed by a trusted certificate.
_UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21, 24})
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tls:
    context: ssl.SSLContext
    has_own_certificate: bool


def tls_from(properties: Mapping[str, str]) -> Tls:
    """By default trusts the system's certificates, and checks host names."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = _checks_names(properties)
    _limit_versions(context, properties.get(ENABLED, ""))
    trusted = _pem(properties, "truststore", CERTIFICATES)
    if trusted is None:
        context.load_default_certs()
    else:
        _trust(context, *trusted)
    has_own = _load_own_certificate(context, properties)
    return Tls(context=context, has_own_certificate=has_own)


def _checks_names(properties: Mapping[str, str]) -> bool:
    algorithm = properties.get(IDENTIFICATION, "https")
    if algorithm.lower() not in ("https", ""):
        raise BadSetting(
            f"{IDENTIFICATION} is {algorithm!r}; write https, or nothing to check no names"
        )
    return bool(algorithm)


def _limit_versions(context: ssl.SSLContext, text: str) -> None:
    versions_named = [each.strip() for each in text.split(",") if each.strip()]
    unknown = [each for each in versions_named if each not in VERSIONS]
    if unknown:
        raise BadSetting(f"{ENABLED}: {unknown[0]!r} is not one of {', '.join(VERSIONS)}")
    if versions_named:
        versions = sorted(VERSIONS[each] for each in versions_named)
        context.minimum_version, context.maximum_version = versions[0], versions[-1]


# Trusted certificates, and the client's own.


def _trust(context: ssl.SSLContext, content: bytes, source: str) -> None:
    try:
        # There may be text between the certificates, as keytool writes it.
        context.load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except ssl.SSLError as error:
        raise BadSetting(
            f"{source}: no certificate can be read from it ({_openssl_reason(error)})"
        ) from None
    # As in Java: a certificate in the store is trusted, whatever signed it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _load_own_certificate(context: ssl.SSLContext, properties: Mapping[str, str]) -> bool:
    chain = _pem(properties, "keystore", CHAIN)
    if chain is None:
        if KEY in properties:
            raise BadSetting(f"{KEY} is set and {CHAIN} is not")
        return False
    content, source = chain
    if CHAIN in properties:
        if KEY not in properties:
            raise BadSetting(f"{CHAIN} is set and {KEY} is not")
        content = b"%b\n%b\n" % (properties[KEY].encode(), content)
    if b"PRIVATE KEY-----" not in content:
        raise BadSetting(f"{source} holds no private key")
    password = properties.get(KEY_PASSWORD)
    if password is not None and len(password.encode()) > KEY_PASSWORD_BYTES_MAX:
        raise BadSetting(f"{KEY_PASSWORD} is longer than {KEY_PASSWORD_BYTES_MAX} bytes")
    try:
        with _as_file(content) as path:
            context.load_cert_chain(path, password=_password(password, source))
    except ssl.SSLError as error:
        raise BadSetting(f"{source}: {_own_certificate_error(error, content, password)}") from None
    return True


def _password(password: str | None, source: str) -> Callable[[], str]:
    """A callback, so that OpenSSL does not prompt on the terminal without a password."""

    def read_password() -> str:
        if password is None:
            raise BadSetting(f"{source}: the key is encrypted and {KEY_PASSWORD} is not set")
        return password

    return read_password


def _own_certificate_error(error: ssl.SSLError, content: bytes, password: str | None) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key is not that of the first certificate"
    if _ENCRYPTED in content and password is not None:
        return f"the private key does not open with {KEY_PASSWORD}, or is broken"
    return f"no certificate and private key can be read from it ({_openssl_reason(error)})"


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """OpenSSL reads keys only from files: this one is in memory, so that no key is on a disk."""
    descriptor = os.memfd_create("pem")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _pem(properties: Mapping[str, str], store: str, inline: str) -> tuple[bytes, str] | None:
    """The store's PEM and its source; None if there is none."""
    location, kind = f"ssl.{store}.location", properties.get(f"ssl.{store}.type", "PEM").upper()
    if inline in properties and location in properties:
        raise BadSetting(f"{inline} cannot be combined with {location}")
    if inline in properties:
        content, source = properties[inline].encode(), inline
    elif location in properties:
        path = Path(properties[location])
        content = read_small_file(path, bytes_max=PEM_BYTES_MAX, refusal=BadSetting)
        source = f"{location}: {properties[location]}"
    else:
        return None
    if kind != "PEM" or content.startswith((_JKS, _JCEKS, _DER)):
        format_name = "JKS" if content.startswith(_JKS) else "PKCS12" if kind == "PEM" else kind
        raise BadSetting(f"{source} is {format_name}; insync reads PEM: {_conversion(store)}")
    if _BEGIN not in content:
        raise BadSetting(f"{source} is not PEM: it has no line -----BEGIN ...-----")
    if f"ssl.{store}.password" in properties:
        raise BadSetting(
            f"ssl.{store}.password cannot be combined with PEM; "
            f"the password of a key is {KEY_PASSWORD}"
        )
    return content, source


def _conversion(store: str) -> str:
    if store == "truststore":
        return (
            "keytool -list -rfc -keystore STORE > ca.pem, then ssl.truststore.type=PEM and "
            "ssl.truststore.location=ca.pem"
        )
    return (
        "keytool -importkeystore -srckeystore STORE -destkeystore own.p12 -deststoretype PKCS12 && "
        "openssl pkcs12 -in own.p12 -out own.pem, then ssl.keystore.type=PEM, "
        "ssl.keystore.location=own.pem and ssl.key.password"
    )


# Error messages.


WANTS_CERTIFICATE: Final = "does it require a client certificate? (ssl.keystore.location)"


def tls_error_text(error: Exception, *, has_own_certificate: bool) -> str:
    """Why a handshake failed, and which property to check."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_error_text(error)
    if not isinstance(error, ssl.SSLError):
        ended = "the connection ended during the TLS handshake; is it a plaintext listener?"
        more = "" if has_own_certificate else f" or {WANTS_CERTIFICATE}"
        return f"{ended} (security.protocol){more}"
    reason = _openssl_reason(error)
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return f"the listener does not speak TLS ({reason}); see security.protocol"
    if "alert" in reason and (
        "certificate" in reason or "unknown ca" in reason or "handshake" in reason
    ):
        return (
            f"the broker refuses this client's certificate, or requires one: {reason}; "
            "see ssl.keystore.location"
        )
    return f"TLS: {reason}"


def _certificate_error_text(error: ssl.SSLCertVerificationError) -> str:
    reason = str(error.verify_message).rstrip(".")
    if error.verify_code in _UNTRUSTED:
        return f"its certificate is not trusted: {reason}; see ssl.truststore.location"
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return f"its certificate is not valid now: {reason}"
    if "mismatch" in reason.lower():
        return f"its certificate is for another name: {reason}"
    return f"its certificate is refused: {reason}"


def _openssl_reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
