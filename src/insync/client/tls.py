"""TLS from Kafka's `ssl.*` properties, and what goes wrong with it in plain words.

Python reads PEM alone, as Kafka does since 2.7 (KIP-651); Java's own formats are refused with the
commands that turn them into it.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

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

# OpenSSL's X509_V_ERR_...: nobody we trust signed it.
_UNTRUSTED: Final = frozenset({2, 18, 19, 20, 21, 24})
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Tls:
    context: ssl.SSLContext
    has_own_certificate: bool


def tls_from(given: Mapping[str, str]) -> Tls:
    """Trusts whom the system trusts unless told otherwise, and checks names unless told not to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = _checks_names(given)
    _limit_versions(context, given.get(ENABLED, ""))
    trusted = _pem(given, "truststore", CERTIFICATES)
    if trusted is None:
        context.load_default_certs()
    else:
        _trust(context, *trusted)
    has_own = _show_own(context, given)
    return Tls(context=context, has_own_certificate=has_own)


def _checks_names(given: Mapping[str, str]) -> bool:
    algorithm = given.get(IDENTIFICATION, "https")
    if algorithm.lower() not in ("https", ""):
        raise BadSetting(
            f"{IDENTIFICATION} is {algorithm!r}; write https, or nothing to check no names"
        )
    return bool(algorithm)


def _limit_versions(context: ssl.SSLContext, text: str) -> None:
    wanted = [each.strip() for each in text.split(",") if each.strip()]
    unknown = [each for each in wanted if each not in VERSIONS]
    if unknown:
        raise BadSetting(f"{ENABLED}: {unknown[0]!r} is not one of {', '.join(VERSIONS)}")
    if wanted:
        versions = sorted(VERSIONS[each] for each in wanted)
        context.minimum_version, context.maximum_version = versions[0], versions[-1]


# Whom we trust, and who we are.


def _trust(context: ssl.SSLContext, content: bytes, where: str) -> None:
    try:
        # Beside the certificates there may be words, as keytool writes them.
        context.load_verify_locations(cadata=content.decode("ascii", "ignore"))
    except ssl.SSLError as error:
        raise BadSetting(f"{where}: no certificate can be read from it ({_said(error)})") from None
    # As Java has it: who is in the store is trusted, whoever signed for it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _show_own(context: ssl.SSLContext, given: Mapping[str, str]) -> bool:
    chain = _pem(given, "keystore", CHAIN)
    if chain is None:
        if KEY in given:
            raise BadSetting(f"{KEY} is there and {CHAIN} is not")
        return False
    content, where = chain
    if CHAIN in given:
        if KEY not in given:
            raise BadSetting(f"{CHAIN} is there and {KEY} is not")
        content = b"%b\n%b\n" % (given[KEY].encode(), content)
    if b"PRIVATE KEY-----" not in content:
        raise BadSetting(f"{where} holds no private key")
    password = given.get(KEY_PASSWORD)
    if password is not None and len(password.encode()) > KEY_PASSWORD_BYTES_MAX:
        raise BadSetting(f"{KEY_PASSWORD} is longer than {KEY_PASSWORD_BYTES_MAX} bytes")
    try:
        with _as_file(content) as path:
            context.load_cert_chain(path, password=_password(password, where))
    except ssl.SSLError as error:
        raise BadSetting(f"{where}: {_why_not_own(error, content, password)}") from None
    return True


def _password(password: str | None, where: str) -> Callable[[], str]:
    """Without one OpenSSL would ask the terminal."""

    def given() -> str:
        if password is None:
            raise BadSetting(f"{where}: the key is encrypted and {KEY_PASSWORD} is not set")
        return password

    return given


def _why_not_own(error: ssl.SSLError, content: bytes, password: str | None) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the private key is not that of the first certificate"
    if _ENCRYPTED in content and password is not None:
        return f"the private key does not open with {KEY_PASSWORD}, or is broken"
    return f"no certificate and private key can be read from it ({_said(error)})"


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """OpenSSL reads keys from files alone: one in memory, so that no key is left on a disk."""
    descriptor = os.memfd_create("pem")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _pem(given: Mapping[str, str], store: str, inline: str) -> tuple[bytes, str] | None:
    """The store's PEM and where it comes from; None if there is none."""
    location, kind = f"ssl.{store}.location", given.get(f"ssl.{store}.type", "PEM").upper()
    if inline in given and location in given:
        raise BadSetting(f"{inline} does not go with {location}")
    if inline in given:
        content, where = given[inline].encode(), inline
    elif location in given:
        content, where = _read(Path(given[location])), f"{location}: {given[location]}"
    else:
        return None
    if kind != "PEM" or content.startswith((_JKS, _JCEKS, _DER)):
        found = "JKS" if content.startswith(_JKS) else "PKCS12" if kind == "PEM" else kind
        raise BadSetting(f"{where} is {found}; insync reads PEM: {_conversion(store)}")
    if _BEGIN not in content:
        raise BadSetting(f"{where} is no PEM: it has no line -----BEGIN ...-----")
    if f"ssl.{store}.password" in given:
        raise BadSetting(
            f"ssl.{store}.password does not go with PEM; a key's own password is {KEY_PASSWORD}"
        )
    return content, where


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


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise BadSetting(f"cannot read {path}: {error.strerror}") from None
    if len(content) > PEM_BYTES_MAX:
        raise BadSetting(f"{path} is larger than {PEM_BYTES_MAX} bytes")
    return content


# What went wrong.


WANTS_CERTIFICATE: Final = "does it ask for our certificate? (ssl.keystore.location)"


def tls_words(error: Exception, *, has_own_certificate: bool) -> str:
    """Why a handshake failed, and what may mend it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _certificate_words(error)
    if not isinstance(error, ssl.SSLError):
        ended = "the connection ended during the TLS handshake; is it a plaintext listener?"
        more = "" if has_own_certificate else f" or {WANTS_CERTIFICATE}"
        return f"{ended} (security.protocol){more}"
    said = _said(error)
    if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
        return f"what answers does not speak TLS ({said}); see security.protocol"
    if "alert" in said and ("certificate" in said or "unknown ca" in said or "handshake" in said):
        return (
            f"the broker refuses our certificate, or wants one: {said}; see ssl.keystore.location"
        )
    return f"TLS: {said}"


def _certificate_words(error: ssl.SSLCertVerificationError) -> str:
    said = str(error.verify_message).rstrip(".")
    if error.verify_code in _UNTRUSTED:
        return f"its certificate is not trusted: {said}; see ssl.truststore.location"
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return f"its certificate is not valid now: {said}"
    if "mismatch" in said.lower():
        return f"its certificate is for another name: {said}"
    return f"its certificate is refused: {said}"


def _said(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).lower().replace("_", " ")
