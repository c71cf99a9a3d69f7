"""The recipe of the S3 service: what is configured, checked when it is made, without a secret in its repr or pickle."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.credentials import Secret, digest
from aioprefetch.errors import MissingDependency
from aioprefetch.runtime.options import checked_file, checked_seconds
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3 import options
from aioprefetch.services.s3.identity import ambient
from aioprefetch.values import Capability, ServiceInfo

_SECRET_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# Requests that are not reads (a listing, a put) need slots too, so the pool is a little wider than the gate before it.
_CONNECTIONS_EXTRA = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class S3:
    """A bucket, or what lies under a prefix of it. Raises ``ConfigInvalid`` for options that cannot work.

    Parameters
    ----------
    bucket
        The bucket's name.
    prefix
        The root: every path is ``prefix/path``. Slashes at its ends do not matter.
    endpoint_url
        ``http(s)://host[:port]`` of a store that is not AWS. Default: what botocore finds, AWS in the end.
    region
        Default: what botocore finds; ``us-east-1`` where ``endpoint_url`` is given.
    access_key_id, secret_access_key, session_token
        Keys, as text or as ``env:NAME`` for a variable that is looked up when it is used. A pickle holds no text of
        a key: in another process botocore's provider chain takes its place. Default: that chain.
    profile
        A profile of the AWS configuration files. Beside ``access_key_id`` and ``secret_access_key`` it gives the
        region and other settings, and those keys sign, as with boto3.
    anonymous
        Send unsigned requests, for public buckets.
    addressing_style
        ``path`` (``host/bucket/key``), ``virtual`` (``bucket.host/key``), or ``auto``: path for an ``endpoint_url``.
    signing
        How reads are authenticated: ``presigned`` where the transport can use it, or always by ``header``.
    ca_bundle
        A file of certificates to trust. TLS is always verified.
    proxies
        ``{"http": url, "https": url}``; ``{}`` forbids those of the environment.
    allow_http
        ``True`` lets keys travel over plain http, ``False`` never does, ``None`` only to this machine.
    sse_customer_key
        The customer's key of SSE-C (AES256): 32 bytes, their base64, or ``env:NAME`` of the latter.
    request_payer
        Agree to pay for requests to a requester-pays bucket.
    connect_timeout_seconds, read_timeout_seconds
        The longest wait for a connection; and for the head of a response. A body that brings less than 1 KiB a second
        for the latter has stalled.
    part_bytes
        The size of the parts of a streaming write; up to four are held in memory. At most 10,000 parts make an object.
    connections_max
        Connections to the store. Default: the operator's concurrency and a few more.
    """

    bucket: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | Secret | None = None
    secret_access_key: str | Secret | None = None
    session_token: str | Secret | None = None
    profile: str | None = None
    anonymous: bool = False
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    signing: Literal["presigned", "header"] = "presigned"
    ca_bundle: str | None = None
    proxies: Mapping[str, str | Secret] | None = field(default=None, hash=False)
    allow_http: bool | None = None
    sse_customer_key: str | bytes | Secret | None = None
    request_payer: bool = False
    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 20.0
    part_bytes: int = 8 << 20
    connections_max: int | None = None

    def __post_init__(self) -> None:
        keep = object.__setattr__
        keep(self, "bucket", options.checked_bucket(self.bucket))
        keep(self, "prefix", options.checked_prefix(self.prefix))
        for name in ("access_key_id", "secret_access_key", "session_token"):
            keep(self, name, Secret.of(getattr(self, name)))
        keep(self, "sse_customer_key", options.sse_secret(self.sse_customer_key))
        if self.region is not None:
            keep(self, "region", options.checked_region(self.region))
        if self.ca_bundle is not None:
            keep(self, "ca_bundle", checked_file("ca_bundle", self.ca_bundle))
        if self.proxies is not None:
            keep(self, "proxies", options.checked_proxies(self.proxies))
        options.checked_choice("addressing_style", self.addressing_style, ("auto", "path", "virtual"))
        options.checked_choice("signing", self.signing, ("presigned", "header"))
        for name in ("anonymous", "request_payer", *(() if self.allow_http is None else ("allow_http",))):
            options.checked_flag(name, getattr(self, name))
        checked_seconds("connect_timeout_seconds", self.connect_timeout_seconds)
        checked_seconds("read_timeout_seconds", self.read_timeout_seconds)
        options.checked_integer(
            "part_bytes", self.part_bytes, minimum=options.PART_BYTES_MIN, maximum=options.PART_BYTES_MAX
        )
        if self.connections_max is not None:
            options.checked_integer("connections_max", self.connections_max, minimum=1, maximum=100_000)
        self._check_identity()
        if self.endpoint_url is not None:
            keep(self, "endpoint_url", options.checked_endpoint(self.endpoint_url))
            self.check_endpoint(self.endpoint_url)

    def _check_identity(self) -> None:
        if self.anonymous and (self.access_key_id or self.secret_access_key or self.session_token or self.profile):
            raise options.invalid("anonymous=True sends no credentials; give it without keys and without a profile")
        if bool(self.access_key_id) != bool(self.secret_access_key):
            given, missing = ("access_key_id", "secret_access_key")[:: 1 if self.access_key_id else -1]
            raise options.invalid(f"{given} is given without {missing}; they go together")
        if self.session_token and not self.access_key_id:
            raise options.invalid("session_token is given without access_key_id and secret_access_key")
        if self.profile is not None and (not isinstance(self.profile, str) or not self.profile):
            raise options.invalid(f"profile must be the name of a profile, not {self.profile!r}")

    def check_endpoint(self, url: str) -> None:
        """Refuse an endpoint, configured here or found by botocore, to which secrets must not be sent."""
        options.checked_endpoint(url)
        carries = "" if self.anonymous else "signed requests and their session token"
        if self.sse_customer_key is not None:
            carries = "sse_customer_key"
        options.check_transport(url, allow_http=self.allow_http, carries=carries)

    @property
    def info(self) -> ServiceInfo:
        own = self._own_identity()
        # With keys and an endpoint of its own nothing is left open that tells bytes apart, and no file is looked at.
        files = not (own and self.endpoint_url)
        found = ambient(self.profile, has_identity=bool(own), files=files)
        return ServiceInfo(
            scheme="s3",
            name=self.bucket,
            root=self.prefix,
            endpoint=self.endpoint_url or found.endpoint,
            region=self.region or found.region,
            principal=f"{own or found.principal}{self._customer()}",
        )

    def _own_identity(self) -> str:
        """The identity that the recipe itself names, ``""`` where the provider chain finds one."""
        if self.anonymous:
            return "anonymous"
        key_id = Secret.of(self.access_key_id)
        if key_id is None or (key_id.is_literal and key_id.reveal() is None):
            return ""
        value = key_id.reveal()
        return f"key:{key_id.fingerprint() if value is None else digest(value)}"

    def _customer(self) -> str:
        # Who does not know a customer's key may not read what was stored with it, whoever he is.
        key = self.sse_customer_key
        if isinstance(key, Secret) and (key.reveal() is not None or not key.is_literal):
            return f" customer-key:{key.fingerprint()}"
        return ""

    @property
    def capability(self) -> Capability:
        return Capability(
            read=True,
            read_range=True,
            read_suffix=True,
            read_if_match=True,
            read_if_none_match=True,
            read_version=True,
            stat=True,
            stat_directory=True,
            list=True,
            list_recursive=True,
            list_start_after=True,
            write=True,
            write_stream=True,
            write_if_match=True,
            write_if_not_exists=True,
            write_content_type=True,
            write_user_metadata=True,
            copy=True,
            delete=True,
            delete_paths_max=1000,
            create_dir=True,
            # A URL alone opens nothing where its bearer must send headers as well.
            presign=not (self.anonymous or self.sse_customer_key or self.request_payer),
        )

    def connections(self, concurrency: int) -> int:
        """How many connections the pool holds for a runtime that lets ``concurrency`` requests through."""
        return self.connections_max or concurrency + _CONNECTIONS_EXTRA

    def known_secrets(self) -> Iterator[str]:
        """The values that no message may hold, as far as this process knows them."""
        own = (self.access_key_id, self.secret_access_key, self.session_token, self.sse_customer_key)
        for secret in (*own, *(self.proxies or {}).values()):
            if isinstance(secret, Secret) and (value := secret.reveal()):
                yield value
        for name in _SECRET_VARIABLES:
            if value := os.environ.get(name):
                yield value

    def build(self, runtime: Runtime) -> Accessor:
        try:
            from aioprefetch.services.s3.accessor import S3Accessor
        except ImportError as error:
            raise MissingDependency(
                "the s3 service needs httptools and aiohappyeyeballs: pip install 'aioprefetch[s3]'",
                operation="configure",
            ) from error
        return S3Accessor(self, runtime)
