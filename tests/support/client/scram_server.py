"""The server's side of SCRAM, by RFC 5802 section 3: it stores only what it may store."""

from __future__ import annotations

import base64
import hashlib
import hmac


class ScramServer:
    def __init__(self, digest: str, password: str) -> None:
        self.digest, self.salt = digest, b"any salt"
        salted = hashlib.pbkdf2_hmac(digest, password.encode(), self.salt, 4096)
        client_key = hmac.new(salted, b"Client Key", digest).digest()
        self.stored_key = hashlib.new(digest, client_key).digest()
        self.server_key = hmac.new(salted, b"Server Key", digest).digest()
        self.server_first = b""

    def respond(self, message: bytes) -> bytes | None:
        """One message after the other; None: the proof is wrong."""
        return self.final(message) if self.server_first else self.first(message)

    def first(self, client_first: bytes) -> bytes:
        self.client_bare = client_first.removeprefix(b"n,,")
        nonce = self.client_bare.rpartition(b",r=")[2]
        salt = base64.b64encode(self.salt)
        self.server_first = b"r=" + nonce + b"theirs,s=" + salt + b",i=4096"
        return self.server_first

    def final(self, client_final: bytes) -> bytes | None:
        bare, proof = client_final.rsplit(b",p=", 1)
        signed = b",".join([self.client_bare, self.server_first, bare])
        signature = hmac.new(self.stored_key, signed, self.digest).digest()
        pairs = zip(base64.b64decode(proof), signature, strict=True)
        client_key = bytes(a ^ b for a, b in pairs)
        if hashlib.new(self.digest, client_key).digest() != self.stored_key:
            return None
        own = hmac.new(self.server_key, signed, self.digest).digest()
        return b"v=" + base64.b64encode(own)
