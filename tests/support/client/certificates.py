"""Certificates for tests, made with the `openssl` command: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

KEY_PASSWORD = "open sesame"


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """One PEM file of private key (PKCS #8) and chain."""

    path: Path

    @property
    def key(self) -> str:
        return self._part("PRIVATE KEY")

    @property
    def certificate(self) -> str:
        return self._part("CERTIFICATE")

    def _part(self, kind: str) -> str:
        text = self.path.read_text()
        begin = text.index("-----BEGIN")
        while kind not in text[begin : text.index("\n", begin)]:
            begin = text.index("-----BEGIN", begin + 1)
        end = text.index("-----END", begin)
        return text[begin : text.index("\n", end) + 1]


class Authority:
    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._key = folder / f"{name}.key"
        self.path = folder / f"{name}.pem"
        _new_key(self._key)
        openssl(
            *("req", "-x509", "-new", "-key", self._key, "-out", self.path, "-days", "3650"),
            *("-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE"),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )

    def sign(
        self, name: str, *, alternatives: str = "DNS:localhost,IP:127.0.0.1", days: int = 3650
    ) -> Signed:
        """With `days` below 0 it ended before it began."""
        key, request = self._folder / f"{name}.key", self._folder / f"{name}.csr"
        certificate, extensions = self._folder / f"{name}.crt", self._folder / f"{name}.ext"
        _new_key(key)
        extensions.write_text(f"subjectAltName={alternatives}\n")
        openssl("req", "-new", "-key", key, "-out", request, "-subj", f"/CN={name}")
        openssl(
            *("x509", "-req", "-in", request, "-CA", self.path, "-CAkey", self._key),
            *("-CAcreateserial", "-days", str(days), "-extfile", extensions, "-out", certificate),
        )
        both = self._folder / f"{name}.pem"
        both.write_text(key.read_text() + certificate.read_text())
        return Signed(path=both)


def locked(signed: Signed, path: Path) -> Signed:
    """The same with its key encrypted under `KEY_PASSWORD`."""
    openssl(
        *("pkcs8", "-topk8", "-in", signed.path, "-out", path, "-v2", "aes-256-cbc"),
        *("-passout", f"pass:{KEY_PASSWORD}"),
    )
    path.write_text(path.read_text() + signed.certificate)
    return Signed(path=path)


def _new_key(path: Path) -> None:
    openssl("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", path)
