"""What a browser does with Web Push: its keys, and reading an encrypted message (RFC 8291)."""

import base64
import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fleet.notifications.web_push import server_keys


def text_of(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def point_of(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


@dataclass
class PushBrowser:
    private: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    auth: bytes = field(default_factory=lambda: secrets.token_bytes(16))

    @property
    def keys(self) -> dict[str, str]:
        """The keys that it gives to those who may write to it."""
        return {"p256dh": text_of(point_of(self.private.public_key())), "auth": text_of(self.auth)}

    @property
    def secret(self) -> str:
        """What its receiver keeps as the secret."""
        return json.dumps(self.keys | {"server_key": next(iter(server_keys()))})

    def read(self, body: bytes) -> dict[str, Any]:
        """Decrypt a message of a single record: salt, record size, key of the sender, text."""
        salt, record_size, n_key = body[:16], int.from_bytes(body[16:20]), body[20]
        sender, encrypted = body[21 : 21 + n_key], body[21 + n_key :]
        assert len(encrypted) <= record_size
        public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), sender)
        both = b"WebPush: info\0" + point_of(self.private.public_key()) + sender
        shared = self.private.exchange(ec.ECDH(), public)
        secret = HKDF(SHA256(), 32, self.auth, both).derive(shared)
        key = HKDF(SHA256(), 16, salt, b"Content-Encoding: aes128gcm\0").derive(secret)
        nonce = HKDF(SHA256(), 12, salt, b"Content-Encoding: nonce\0").derive(secret)
        padded = AESGCM(key).decrypt(nonce, encrypted, None)
        text, _, padding = padded.rpartition(b"\x02")
        assert not padding.strip(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message
