"""Signatures of requests: AWS Signature Version 4, in a header or in the query of a URL. Pure, no I/O.

S3 signs a path as it is sent, percent-encoded once; the other services of AWS encode it twice. ``Range`` and conditions
are not signed, and the body of a read is not either (``UNSIGNED-PAYLOAD``), so one signature serves all ranges of an
object. Source: AWS, "Authenticating Requests (AWS Signature Version 4)", with its examples as tests.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import time
from collections.abc import Mapping
from urllib.parse import quote

from aioprefetch.errors import ConfigInvalid
from aioprefetch.lean_dataclass import dataclass

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
# The header with the hash of a body.
_HASH = "x-amz-content-sha256"
EMPTY_PAYLOAD = hashlib.sha256(b"").hexdigest()

# A key of these characters alone is its own percent-encoding.
_PLAIN = re.compile(r"[A-Za-z0-9_.~/-]*")
# Spaces in the value of a header count as one. Others than these are part of the value, such as one without a break.
_SPACES = re.compile(r"[ \t]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True, repr=False)
class AccessKeys:
    """The keys of an identity. Its repr shows none of them.

    ``token_header`` carries the token. They are used until ``until_seconds``, a time of the loop.
    """

    key_id: str
    secret: str
    token: str | None = None
    token_header: str = "x-amz-security-token"
    until_seconds: float = math.inf

    def __repr__(self) -> str:
        return "<AccessKeys>"


def encoded_path(key: str) -> str:
    """A key in a path: each byte of its UTF-8 but letters, digits, ``-._~`` and ``/`` as ``%XX``, once."""
    return key if _PLAIN.fullmatch(key) else quote(key, safe="/~")


def encoded_query(parameters: Mapping[str, str]) -> str:
    """A query in its canonical form: encoded, in the order of the encoded names."""
    if not parameters:
        return ""
    pairs = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in parameters.items())
    return "&".join([f"{name}={value}" for name, value in pairs])


def payload_hash(body: bytes | bytearray | memoryview) -> str:
    """The hash of a body that is signed."""
    return hashlib.sha256(body).hexdigest()


class SigningKey:
    """The key of one day: it signs a message by HMAC-SHA256 (RFC 2104).

    ``hmac.digest`` hashes the key again for each message. Here that is done once, which halves the time of a signature.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, key: bytes) -> None:
        padded = key.ljust(hashlib.sha256().block_size, b"\0")
        self._inner = hashlib.sha256(bytes([byte ^ 0x36 for byte in padded]))
        self._outer = hashlib.sha256(bytes([byte ^ 0x5C for byte in padded]))

    def signed(self, message: bytes) -> str:
        """The signature, in hexadecimal digits."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(message)
        outer.update(inner.digest())
        return outer.hexdigest()


@dataclass(slots=True, repr=False, eq=False)
class SignedHeaders:
    """The headers of a request that its signature covers, for one second.

    ``fields`` are the header lines as they are sent, ``Host`` and the date among them.
    """

    fields: str
    canonical: str
    names: str
    # What is signed up to the hash of the request, and the value of ``Authorization`` up to the signature.
    to_sign: str
    authorization: str
    key: SigningKey

    def of_payload(self, payload: str) -> SignedHeaders:
        """These headers, made for ``UNSIGNED_PAYLOAD``, for a body with the hash ``payload``."""
        fields = self.fields.replace(f"{_HASH}: {UNSIGNED_PAYLOAD}\r\n", f"{_HASH}: {payload}\r\n")
        canonical = self.canonical.replace(f"{_HASH}:{UNSIGNED_PAYLOAD}\n", f"{_HASH}:{payload}\n")
        return SignedHeaders(fields, canonical, self.names, self.to_sign, self.authorization, self.key)


class Signer:
    """Signs the requests of one identity to one service in one region. The signing key of a day is kept."""

    def __init__(self, keys: AccessKeys, region: str, service: str = "s3") -> None:
        self.keys = keys
        self._secret = f"AWS4{keys.secret}".encode()
        self._tail = f"{region}/{service}/aws4_request"
        self._parts = (region.encode(), service.encode(), b"aws4_request")
        self._day = ""
        self._day_key: SigningKey | None = None

    def headers(self, host: str, payload: str, more: Mapping[str, str], seconds: float) -> SignedHeaders:
        """The signed headers of requests to ``host`` at a time of the wall clock.

        ``payload`` is the hash of the body, or ``UNSIGNED_PAYLOAD``. ``more`` are further headers by names in lower
        case.
        """
        stamp = stamp_of(seconds)
        signed = {"host": host, _HASH: payload, "x-amz-date": stamp, **more}
        if self.keys.token:
            signed[self.keys.token_header] = self.keys.token
        return self.headers_at(stamp, signed)

    def headers_at(self, stamp: str, signed: Mapping[str, str]) -> SignedHeaders:
        """The signed headers of requests with exactly the headers ``signed``.

        Raises ``ConfigInvalid`` for a value that would break their lines: the host, the region and the keys come from
        the configuration, and the headers of a request have been checked.
        """
        ordered = sorted(signed.items())
        if any(map(_CONTROL.search, (self._tail, self.keys.key_id, *signed.values()))):
            raise ConfigInvalid("the endpoint, the region or the keys hold a control character")
        names = ";".join([name for name, _ in ordered])
        day = stamp[:8]
        return SignedHeaders(
            fields="".join([f"{name}: {value}\r\n" for name, value in ordered]),
            canonical="".join([f"{name}:{_SPACES.sub(' ', value).strip(' ')}\n" for name, value in ordered]),
            names=names,
            to_sign=f"{ALGORITHM}\n{stamp}\n{day}/{self._tail}\n",
            authorization=(
                f"{ALGORITHM} Credential={self.keys.key_id}/{day}/{self._tail}, SignedHeaders={names}, Signature="
            ),
            key=self._key_of(day),
        )

    def signature(self, method: str, path: str, query: str, headers: SignedHeaders, payload: str) -> str:
        """The signature of a request: ``path`` and ``query`` are encoded, ``payload`` is the hash of the body."""
        canonical = f"{method}\n{path}\n{query}\n{headers.canonical}\n{headers.names}\n{payload}"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        return headers.key.signed(f"{headers.to_sign}{digest}".encode())

    def presigned_query(
        self,
        method: str,
        path: str,
        parameters: Mapping[str, str],
        signed: Mapping[str, str],
        *,
        expires_seconds: int,
        seconds: float,
    ) -> str:
        """The query of a URL that is signed for ``expires_seconds``: ``parameters``, and the signature at its end.

        ``signed`` are the headers that must come with the URL, ``host`` among them, by names in lower case.
        """
        stamp = stamp_of(seconds)
        headers = self.headers_at(stamp, signed)
        given = {
            **parameters,
            "X-Amz-Algorithm": ALGORITHM,
            "X-Amz-Credential": f"{self.keys.key_id}/{stamp[:8]}/{self._tail}",
            "X-Amz-Date": stamp,
            "X-Amz-Expires": str(expires_seconds),
            "X-Amz-SignedHeaders": headers.names,
        }
        if self.keys.token:
            given["-".join(map(str.capitalize, self.keys.token_header.split("-")))] = self.keys.token
        query = encoded_query(given)
        return f"{query}&X-Amz-Signature={self.signature(method, path, query, headers, UNSIGNED_PAYLOAD)}"

    def _key_of(self, day: str) -> SigningKey:
        if self._day_key is None or day != self._day:
            key = hmac.digest(self._secret, day.encode(), "sha256")
            for part in self._parts:
                key = hmac.digest(key, part, "sha256")
            self._day, self._day_key = day, SigningKey(key)
        return self._day_key


def stamp_of(seconds: float) -> str:
    """A time of the wall clock in the form of signatures: ``20130524T000000Z``."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
