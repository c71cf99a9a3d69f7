"""The configuration of a recipe's requests, and their signed targets.

The configuration is what the recipe, its environment and the files of AWS decide: endpoint, proxy and CA file. A signed
target of a read serves all ranges of its object, any other serves once. A target of a read is used for five minutes,
and a signature is valid for fifteen. Keys that are about to end are renewed ten minutes before, so a target does not
outlive them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import ssl
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import field
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, InvalidArgument, InvalidPath, MissingDependency, Unsupported
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.proxies import Proxies
from aioprefetch.services.s3.endpoint import DEFAULT_REGION, Endpoint, endpoint_of, is_of_several_regions, why_asked
from aioprefetch.services.s3.key_source import ANONYMOUS, KeySource, SessionKeys
from aioprefetch.services.s3.options import S3Options, checked_region, sse_key_bytes
from aioprefetch.services.s3.sigv4 import (
    UNSIGNED_PAYLOAD,
    AccessKeys,
    SignedHeaders,
    Signer,
    encoded_path,
    encoded_query,
)
from aioprefetch.transport.origin import CLIENT_FIELDS, Method, Proxy, Route, Target, encoded_fields, origin_of
from aioprefetch.values import PresignRequest, ReadRequest, Request


@dataclass(frozen=True, slots=True)
class Configuration:
    """The endpoint, and the proxy and the file of authorities (``None``: the system's) for its connections.

    ``why_asked`` is the reason for which botocore was asked for the endpoint, ``""`` for none. ``customer_key`` is the
    key of SSE-C.
    """

    endpoint: Endpoint
    proxy: Proxy | None
    ca_bundle: str | None
    customer_key: bytes | None = field(repr=False)
    why_asked: str


def configuration_of(options: S3Options, *, of_account: bool = False) -> Configuration:
    """The configuration as it is now, of requests for the bucket, or for the account that has it.

    Reads files, which blocks. Raises ``ConfigInvalid``, ``Unsupported`` for a Multi-Region Access Point, and the errors
    of botocore for files that it refuses.
    """
    ambient = options.ambient(files=True)
    region, endpoint_url = options.region or ambient.region, options.endpoint_url or ambient.endpoint
    if is_of_several_regions(options.bucket, endpoint_url):
        raise Unsupported(
            f"bucket={options.bucket!r} is a Multi-Region Access Point, which takes signatures of version 4a: give the "
            "access point of one region, or the bucket behind it"
        )
    if ambient.refused:
        raise ConfigInvalid(f"{ambient.refused[0]}: not supported, and set in variables or a profile; unset it")
    if options.ca_file is not None and not os.path.isfile(options.ca_file):
        raise ConfigInvalid(f"ca_bundle={options.ca_file!r} is not a file")
    if region:
        checked_region(region)
    if ambient.problem:
        endpoint_url = ""  # Botocore refuses it, or the file that names it.
    elif endpoint_url:
        options.check_endpoint(endpoint_url)
    bucket = "" if of_account else options.bucket
    why = why_asked(
        bucket=bucket, region=region, endpoint_url=endpoint_url, asked=ambient.asked, problem=ambient.problem
    )
    style = options.addressing_style if options.addressing_style != "auto" else ambient.addressing_style
    find_endpoint = partial(asked_endpoint, options) if why else endpoint_of
    endpoint = find_endpoint(bucket, region, endpoint_url, style)
    proxy = Proxies(options.proxies).of(endpoint.origin)
    if proxy is not None and proxy.origin.scheme == endpoint.origin.scheme == "https":
        raise ConfigInvalid(
            f"the proxy {proxy.origin} (proxies, or HTTPS_PROXY) would need TLS within TLS: give its address with http://"
        )
    return Configuration(
        endpoint=endpoint,
        proxy=proxy,
        ca_bundle=options.ca_file or ambient.ca_bundle or bundled_authorities(),
        customer_key=customer_key(options),
        why_asked=why,
    )


def asked_endpoint(options: S3Options, bucket: str, region: str, endpoint_url: str, style: str) -> Endpoint:
    """The endpoint of a bucket, ``""`` for the account's; ``""`` also for a region or URL that is not given.

    The rules of AWS give it: botocore knows them, and is asked once for a recipe. It presigns a URL with keys that open
    nothing. Host, path, region and service of that URL are the endpoint; it is never sent. Blocks: botocore reads its
    data and the files of AWS for a few tenths of a second.

    Raises ``ConfigInvalid`` without any, and the errors of botocore for files that it refuses.
    """
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError as error:
        raise MissingDependency("this endpoint needs aiobotocore: pip install 'aioprefetch[s3]'") from error
    if style not in ("path", "virtual"):
        style = "auto" if endpoint_url else "virtual"  # At AWS "auto" presigns some regions for the hosts of others.
    # Keys of our own need no profile; the profile in AWS_PROFILE may not even exist here.
    is_named = bool(options.ambient(files=True).profile)
    session: Any = Session(profile=options.profile, session_vars=None if is_named else {"profile": (None,) * 4})
    session.set_config_variable("s3_disable_express_session_auth", True)  # It would send a request.
    client = session.create_client(
        "s3",
        region_name=region or DEFAULT_REGION,
        endpoint_url=endpoint_url or None,
        aws_access_key_id="none",
        aws_secret_access_key="none",
        # Without a version some URLs are signed by the second one.
        config=Config(signature_version="s3v4", s3={"addressing_style": style}),
    )
    try:
        # Botocore may have found the endpoint in the environment or in a profile.
        options.check_endpoint(client.meta.endpoint_url)
        if bucket:
            url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "key"})
        else:
            url = client.generate_presigned_url("list_buckets")
    except BotoCoreError as error:
        raise ConfigInvalid(f"AWS has no endpoint for bucket={options.bucket!r} with these settings: {error}") from None
    finally:
        client.close()
    parts = urlsplit(url)
    _, _, scope_region, service, _ = parse_qs(parts.query)["X-Amz-Credential"][0].split("/")
    return Endpoint(origin_of(parts), parts.path.removesuffix("key"), scope_region, service)


def customer_key(options: S3Options) -> bytes | None:
    """The key of SSE-C, or ``None``. Raises as ``Secret.known`` if it is not known here."""
    secret = options.sse_customer_key
    if not isinstance(secret, Secret):
        return None
    secret.known("sse_customer_key")
    return sse_key_bytes(secret)


def bundled_authorities() -> str | None:
    """The authorities of an installed package, where the system has none of its own, as in a very small container."""
    paths = ssl.get_default_verify_paths()
    if (paths.cafile and os.path.isfile(paths.cafile)) or (paths.capath and any(os.scandir(paths.capath))):
        return None
    import importlib.util

    for package in ("certifi", "botocore"):
        spec = importlib.util.find_spec(package)  # It finds a package without importing it.
        for folder in spec.submodule_search_locations or () if spec is not None else ():
            if os.path.isfile(bundle := os.path.join(folder, "cacert.pem")):
                return bundle
    return None


# --- targets ----------------------------------------------------------------------------------------------------------

EXPIRES_SECONDS = 900
RENEWED_AFTER_SECONDS = 300.0
OBJECTS_MAX = 10_000
# Stores take signatures that are up to 15 minutes off.
CLOCK_SLACK_SECONDS = 60.0
# Clocks that are set to a wrong time zone are off by less. A date that is further off is not a clock.
CLOCK_OFFSET_SECONDS_MAX = 24 * 3600.0

# The header of a copy. The customer's key for its source is added here, so that no frame of its error holds it.
COPY_SOURCE = "x-amz-copy-source"
_CLIENT_LINES = encoded_fields(CLIENT_FIELDS).decode()


@dataclass(slots=True, repr=False, eq=False)
class Signed:
    """A signed target: its keys, their source, when it was signed, and until when it is used.

    ``clock_offset_seconds`` was added to the time of this machine.
    """

    target: Target
    keys: AccessKeys
    # Wall-clock time of this machine: unlike ``loop.time()`` it advances during suspend.
    made_at: float
    clock_offset_seconds: float
    until_seconds: float
    source: KeySource | SessionKeys
    generation: int


class SignedTargets:
    """The targets of one recipe within a runtime, ``objects_max`` at most: the least recently used go first."""

    def __init__(
        self,
        options: S3Options,
        configuration: Configuration,
        keys: KeySource | SessionKeys,
        runtime: Runtime,
        *,
        objects_max: int = OBJECTS_MAX,
    ) -> None:
        self.is_anonymous = options.anonymous
        self._options = options
        self._endpoint = endpoint = configuration.endpoint
        self._route = Route(endpoint.origin, configuration.proxy)
        self._host = endpoint.origin.netloc
        self._keys = keys
        self._ledger = runtime.ledger
        self._now = runtime.loop.time
        self._objects_max = objects_max
        self._signed: OrderedDict[tuple[str, str | None], Signed] = OrderedDict()
        self._is_presigned = options.signing == "presigned" and not options.anonymous
        # Headers of every request, and of requests for the bytes or the metadata of an object.
        self._extra = {"x-amz-request-payer": "requester"} if options.request_payer else {}
        self._object_extra = {**self._extra, **customer_headers(configuration.customer_key)}
        self._copy_extra = self._object_extra | customer_headers(configuration.customer_key, of_source=True)
        self.region = endpoint.region
        self._signer: Signer | None = None
        self.clock_offset_seconds = 0.0  # Of the store's clock from the one of this machine.
        # The headers of reads that are signed in this second.
        self._second = 0
        self._headers: SignedHeaders | None = None

    def find(self, request: ReadRequest) -> Signed | None:
        """The target of an object, if it was signed recently."""
        identity = (request.path, request.version)
        signed = self._signed.get(identity)
        if signed is None or signed.until_seconds <= self._now() or signed.generation != self._keys.generation:
            return None
        # The order of use matters only when a target may have to be dropped.
        if len(self._signed) > self._objects_max // 2:
            self._signed.move_to_end(identity)
        return signed

    def sign(self, request: ReadRequest, keys: AccessKeys) -> Signed:
        """The target of a read, signed now. Raises ``InvalidPath``."""
        key = self._options.key_of(request.path, operation="read")
        version = request.version
        made_at, offset_seconds = time.time(), self.clock_offset_seconds
        seconds = made_at + offset_seconds
        path = f"{self._endpoint.root}{encoded_path(key)}"
        query = "" if version is None else encoded_query({"versionId": version})
        if keys is ANONYMOUS or self._is_presigned:
            target = self._plain_or_presigned(keys, path, query, version, seconds)
        else:
            signer = self._signer_of(keys)
            headers = self._read_headers(signer, seconds)
            signature = signer.signature("GET", path, query, headers, UNSIGNED_PAYLOAD)
            url = f"{path}?{query}" if query else path
            target = Target.on(self._route, url, "GET", _lines_of(headers, signature).encode())
        until_seconds = min(self._now() + RENEWED_AFTER_SECONDS, keys.until_seconds)
        signed = Signed(target, keys, made_at, offset_seconds, until_seconds, self._keys, self._keys.generation)
        self._ledger.current["transport_signatures"] += 1
        self._signed[request.path, version] = signed
        if len(self._signed) > self._objects_max:
            self._signed.popitem(last=False)
        return signed

    async def sign_now(
        self,
        request: Request,
        method: Method,
        key: str | None,
        query: Mapping[str, str],
        payload: str,
        headers: Mapping[str, str],
        source: KeySource | SessionKeys | None = None,
    ) -> Signed:
        """A target for one request: for a key, or for the bucket (``None``). All of ``headers`` are signed.

        ``payload`` is the hash of the body, ``source`` the source of other keys than usual. Raises the errors of
        ``KeySource.get``, and ``InvalidArgument`` for a header that cannot be sent.
        """
        source = source or self._keys
        keys = source.ready() or await source.get(request)
        made_at, offset_seconds = time.time(), self.clock_offset_seconds
        seconds = made_at + offset_seconds
        path = self._endpoint.bucket_path if key is None else f"{self._endpoint.root}{encoded_path(key)}"
        text = encoded_query(query)
        extra = self._extra if key is None or method == "DELETE" else self._object_extra
        if COPY_SOURCE in headers:
            extra = self._copy_extra
        if not headers and keys is not ANONYMOUS and extra == self._object_extra:
            # The headers are as for reads, perhaps with a hash.
            signer = self._signer_of(keys)
            signed = self._read_headers(signer, seconds)
            if payload != UNSIGNED_PAYLOAD:
                signed = signed.of_payload(payload)
            fields = _lines_of(signed, signer.signature(method, path, text, signed, payload))
        else:
            fields = self._fields(request, keys, method, path, text, payload, {**extra, **headers}, seconds)
        target = Target.on(self._route, f"{path}?{text}" if text else path, method, fields.encode())
        return Signed(target, keys, made_at, offset_seconds, 0.0, source, source.generation)

    async def presigned_url(self, request: PresignRequest, key: str, query: Mapping[str, str]) -> str:
        """A URL that is signed for its bearer, by the clock of the store. Raises the errors of ``KeySource.get``."""
        keys = self._keys.ready() or await self._keys.get(request)
        path = f"{self._endpoint.root}{encoded_path(key)}"
        seconds, expires_seconds = time.time() + self.clock_offset_seconds, int(request.expires_seconds)
        signed = self._signer_of(keys).presigned_query(
            request.method, path, query, {"host": self._host}, expires_seconds=expires_seconds, seconds=seconds
        )
        return f"{self._endpoint.origin}{path}?{signed}"

    def _fields(
        self,
        request: Request,
        keys: AccessKeys,
        method: Method,
        path: str,
        query: str,
        payload: str,
        headers: Mapping[str, str],
        seconds: float,
    ) -> str:
        """The header lines of a request with headers of its own."""
        try:
            # Headers beyond ASCII go out as UTF-8; the check takes each of its bytes for a character.
            encoded_fields({name: value.encode().decode("latin-1") for name, value in headers.items()})
        except InvalidPath as error:
            raise InvalidArgument(error.message, operation=request.operation, path=request.path) from None
        if keys is ANONYMOUS:
            lines = [f"{name}: {value}\r\n" for name, value in {"host": self._host, **headers}.items()]
            return "".join([*lines, _CLIENT_LINES])
        signer = self._signer_of(keys)
        signed = signer.headers(self._host, payload, headers, seconds)
        return _lines_of(signed, signer.signature(method, path, query, signed, payload))

    def age_seconds(self, signed: Signed) -> float:
        """The time since a target was signed."""
        return time.time() - signed.made_at

    def learn_time(self, now: datetime | None) -> None:
        """Sign by the clock of the store from now on, if it differs much and may be a clock."""
        offset_seconds = self.clock_offset_seconds if now is None else now.timestamp() - time.time()
        is_new = abs(offset_seconds - self.clock_offset_seconds) >= CLOCK_SLACK_SECONDS
        if is_new and abs(offset_seconds) <= CLOCK_OFFSET_SECONDS_MAX:
            self.clock_offset_seconds = offset_seconds
            # All of them were signed by another clock.
            self._headers = None
            self._signed.clear()

    def forget(self, request: ReadRequest, signed: Signed) -> None:
        """Drop a target that the store calls expired."""
        if self._signed.get((request.path, request.version)) is signed:
            del self._signed[request.path, request.version]

    def _signer_of(self, keys: AccessKeys) -> Signer:
        signer = self._signer
        if signer is None or signer.keys is not keys:
            signer = self._signer = Signer(keys, self._endpoint.region, self._endpoint.service)
            self._headers = None
        return signer

    def _read_headers(self, signer: Signer, seconds: float) -> SignedHeaders:
        headers, second = self._headers, int(seconds)
        if headers is None or second != self._second:
            self._headers = headers = signer.headers(self._host, UNSIGNED_PAYLOAD, self._object_extra, seconds)
            self._second = second
        return headers

    def _plain_or_presigned(
        self, keys: AccessKeys, path: str, query: str, version: str | None, seconds: float
    ) -> Target:
        """The target of a read without a signature, or with one in its query."""
        signed = {"host": self._host, **self._object_extra}
        if keys is not ANONYMOUS:
            query = self._signer_of(keys).presigned_query(
                "GET",
                path,
                {} if version is None else {"versionId": version},
                signed,
                expires_seconds=EXPIRES_SECONDS,
                seconds=seconds,
            )
        fields = encoded_fields({**signed, **CLIENT_FIELDS})
        return Target.on(self._route, f"{path}?{query}" if query else path, "GET", fields)


def _lines_of(headers: SignedHeaders, signature: str) -> str:
    """The header lines of a signed request."""
    return f"{headers.fields}{_CLIENT_LINES}Authorization: {headers.authorization}{signature}\r\n"


def customer_headers(key: bytes | None, *, of_source: bool = False) -> dict[str, str]:
    """The headers of SSE-C for a customer's key; with ``of_source`` for the source of a copy."""
    if key is None:
        return {}
    prefix = f"x-amz-{'copy-source-' if of_source else ''}server-side-encryption-customer-"
    return {
        f"{prefix}algorithm": "AES256",
        f"{prefix}key": base64.b64encode(key).decode(),
        f"{prefix}key-md5": base64.b64encode(hashlib.md5(key, usedforsecurity=False).digest()).decode(),
    }
