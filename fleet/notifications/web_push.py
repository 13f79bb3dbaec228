"""Web Push: the key that browsers know this installation by, their push services, encryption."""

import base64
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parseaddr
from hmac import compare_digest
from typing import Any

import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from django.conf import settings
from django.utils.module_loading import import_string

from fleet.models import Receiver
from fleet.models.sealing import derived_keys
from fleet.notifications.http_client import AddressError, Allowed, Request, split

LIBRARY, SUBSCRIPTION = "webpush.WebPush", "webpush.WebPushSubscription"
CURVE = ec.SECP256R1()
# The number of points of the curve. 16 more random bytes make every private key equally likely.
ORDER = 0xFFFFFFFF_00000000_FFFFFFFF_FFFFFFFF_BCE6FAAD_A7179E84_F3B9CAC2_FC632551
PURPOSE, KEY_BYTES = b"web push", 32 + 16
AUTH_BYTES = 16
# A device that is off gets the newest message of each alert for so long.
KEPT_S = 12 * 3600
# The push services of Chrome and its relatives, Firefox, Safari and Edge. Anyone who may sign in
# can enter an address: other hosts must be named in TRNWATCH_NOTIFY_ALLOW.
SERVICES = (
    *(".fcm.googleapis.com", ".jmt17.google.com", ".push.services.mozilla.com"),
    *(".push.apple.com", ".notify.windows.com"),
)
APPLE = ".push.apple.com"


class Subscription(msgspec.Struct):
    """The keys of a browser, and ours that it asked for: what its receiver keeps as the secret."""

    p256dh: str
    auth: str
    server_key: str


def server_keys() -> dict[str, ec.EllipticCurvePrivateKey]:
    """Return our private keys (VAPID) by their public ones, the newest first."""
    keys = {}
    for derived in derived_keys(PURPOSE, KEY_BYTES):
        number = int.from_bytes(derived) % (ORDER - 1) + 1
        private = ec.derive_private_key(number, CURVE)
        point = private.public_key().public_bytes(
            serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
        )
        keys[base64.urlsafe_b64encode(point).decode().rstrip("=")] = private
    return keys


def sender() -> str:
    """Return the mail address that push services are given."""
    return parseaddr(settings.DEFAULT_FROM_EMAIL)[1]


def check_endpoint(url: str, allowed: Allowed) -> None:
    """Raise AddressError unless this is the address of a browser at its push service."""
    parts = split(url)
    host = f".{parts.hostname}".lower()
    if parts.scheme != "https":
        raise AddressError("endpoint: must begin with https:")
    if not host.endswith(SERVICES) and host[1:] not in allowed.names:
        raise AddressError(
            f"endpoint: {host[1:]} is no known push service; TRNWATCH_NOTIFY_ALLOW names others"
        )
    if host.endswith(APPLE) and "." not in sender().partition("@")[2]:
        raise AddressError(
            "endpoint: Apple accepts messages only from a real mail address. An administrator "
            "must set TRNWATCH_MAIL_FROM"
        )


def check_keys(keys: Subscription) -> None:
    """Raise ValueError unless messages can be encrypted with the keys of a browser."""
    ec.EllipticCurvePublicKey.from_encoded_point(CURVE, _decoded(keys.p256dh))
    if len(_decoded(keys.auth)) != AUTH_BYTES:
        raise ValueError(f"auth: is not {AUTH_BYTES} bytes")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def subscription_of(device: Receiver) -> Subscription:
    try:
        return msgspec.json.decode(device.secret, type=Subscription)
    except msgspec.DecodeError:
        raise AddressError("secret: is no subscription of a browser") from None


def has_subscription(device: Receiver, endpoint: str, auth: str) -> bool:
    """Whether these are the address and the secret of a device, which only its browser knows."""
    with suppress(AddressError):
        known = f"{device.target} {subscription_of(device).auth}"
        return compare_digest(known.encode(), f"{endpoint} {auth}".encode())
    return False


def push_request(receiver: Receiver, text: bytes, *, topic: str, is_urgent: bool) -> Request:
    """Encrypt a text for a browser, differently at each attempt.

    Of the messages of a topic, a push service keeps only the newest for a device that is off.
    """
    keys = subscription_of(receiver)
    private = server_keys().get(keys.server_key)
    if private is None:
        raise AddressError(
            "secret: the browser subscribed to a key that is not set any more. Remove the device, "
            "and choose to be notified there again"
        )
    pem, public = serialization.Encoding.PEM, private.public_key()
    # Its import loads pydantic, and few processes need it.
    library: Any = import_string(LIBRARY)(
        private.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        public.public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo),
        subscriber=sender(),
        ttl=KEPT_S,
    )
    browser_keys = {"p256dh": keys.p256dh, "auth": keys.auth}
    browser = import_string(SUBSCRIPTION)(endpoint=receiver.target, keys=browser_keys)
    message = library.get(text, browser)
    headers: Mapping[str, str] = message.headers
    return Request(
        receiver.target,
        message.encrypted,
        {
            **headers,
            "Content-Type": "application/octet-stream",
            "Topic": hashlib.sha256(topic.encode()).hexdigest()[:32],
            "Urgency": "high" if is_urgent else "normal",
        },
    )
