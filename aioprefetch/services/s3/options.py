"""The options of the S3 service: fields and checks. No request is sent and no name resolved.

Each check returns the value to keep, or raises ``ConfigInvalid`` with the option, the value and a valid value. A value
that may hold a secret is never part of a message.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

from aioprefetch.credentials import CredentialsProvider, Secret, digest, frameless
from aioprefetch.errors import IsADirectory
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import FLAG, SECRET, Checked, Choice, Integer, Size, Text, check, in_uri, invalid, option
from aioprefetch.ranges import ByteCount
from aioprefetch.services.keys import KEY_BYTES_MAX, checked_key, checked_prefix, is_directory_bucket
from aioprefetch.services.proxies import ConnectionOptions, ambient_network, check_transport
from aioprefetch.services.s3.endpoint import address_at_aws
from aioprefetch.services.s3.environment import Ambient, ambient, file_states
from aioprefetch.transport.origin import is_link_local_or_metadata, origin_of
from aioprefetch.values import Capability, Checksum, ServiceInfo

PART_BYTES_MIN = 5 << 20
PART_BYTES_MAX = 5 << 30
PARTS_MAX = 10_000
# The size of a part that the store copies by itself: large, because none of its bytes comes here.
COPIED_PART_BYTES = 256 << 20
# The largest object that one CopyObject copies.
COPY_BYTES_MAX = 5 << 30
SSE_KEY_BYTES = 32

# What the service can do with all options.
_CAN = (
    *("read", "read_range", "read_suffix", "read_version", "read_if_match", "read_if_none_match"),
    *("read_if_modified_since", "read_if_unmodified_since", "stat", "stat_directory"),
    *("list", "list_recursive", "list_versions"),
    *("write", "write_if_match", "write_if_not_exists", "write_content_type", "write_user_metadata"),
    *("write_storage_class", "write_checksum", "copy", "copy_if_match"),
    *("delete", "delete_version", "delete_if_match", "create_dir"),
)

# A listing or a write needs a connection too, so the pool is a little wider than the limit of concurrent requests.
_CONNECTIONS_EXTRA = 8
_SECRET_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"),
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
)

AddressingStyle = Literal["auto", "path", "virtual"]
Signing = Literal["header", "presigned"]
Fallback = Literal["ambient"]

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
# The name of an access point, of one on an outpost, or of Object Lambda.
_ARN = re.compile(
    r"arn:aws[a-z-]*:s3(-object-lambda|-outposts)?:[a-z0-9-]*:[0-9]{12}:"
    r"(outpost[/:][A-Za-z0-9-]{1,63}[/:])?accesspoint[/:][A-Za-z0-9.-]{1,63}"
)
_IPV4 = re.compile(r"[0-9]{1,3}(\.[0-9]{1,3}){3}")
_REGION = re.compile(r"[A-Za-z0-9-]{1,63}")


def checked_bucket(bucket: object, name: str = "bucket") -> str:
    """The name of a bucket, or the ARN of an access point."""
    if not isinstance(bucket, str) or not bucket:
        raise invalid(f"bucket must be the name of a bucket, not {bucket!r}")
    if _ARN.fullmatch(bucket):
        return bucket
    if bucket.startswith("arn:"):
        raise invalid(
            f"bucket={bucket!r} is not the ARN of an access point: give that, the alias of the access point, or a name"
        )
    if "/" in bucket:
        raise invalid(f"bucket={bucket!r} holds a slash; what comes after the bucket's name is the prefix")
    if bucket != bucket.lower():
        raise invalid(f"bucket={bucket!r} has upper case letters; names of buckets are lower case")
    if _IPV4.fullmatch(bucket):
        raise invalid(f"bucket={bucket!r} looks like an IP address; give the address as endpoint_url")
    if not _BUCKET.fullmatch(bucket) or ".." in bucket:
        raise invalid(
            f"bucket={bucket!r} is not a valid bucket name: 3 to 63 of a-z, 0-9, '.', '-', '_', "
            "a letter or digit at both ends"
        )
    return bucket


def split_address(address: str) -> tuple[str, str]:
    """The bucket, which may be an ARN, and what comes after it and a slash."""
    arn = _ARN.match(address)
    bucket = arn[0] if arn is not None else address.partition("/")[0]
    return bucket, address[len(bucket) :].removeprefix("/")


def checked_endpoint(url: object, name: str = "endpoint_url") -> str:
    """The address of a store: http or https, a host that is not link-local, no user, query or fragment."""
    if not isinstance(url, str) or not url:
        raise invalid(f"{name} must be a URL such as 'https://s3.example.com', not {url!r}")
    if any(character in url for character in "@?#"):
        # The value is not repeated: any part of it may be a password or a signature.
        raise invalid(
            f"{name} must be http(s)://host[:port] without user, query or fragment; keys are given as access_key_id "
            "and secret_access_key"
        )
    shown = f"{name}={url!r}"
    if not url.lower().startswith(("http://", "https://")):
        raise invalid(f"{shown} must begin with http:// or https://")
    try:
        origin = origin_of(urlsplit(url))
    except ValueError as error:
        raise invalid(f"{shown} is not a URL: {error}") from None
    if is_link_local_or_metadata(origin.host):
        raise invalid(f"{shown} is a link-local or metadata address; such hosts hand out credentials and are refused")
    return url.rstrip("/")


def checked_region(region: object, name: str = "region") -> str:
    """A region's name: it becomes part of a host name."""
    if not isinstance(region, str) or not _REGION.fullmatch(region):
        raise invalid(f"{name}={region!r} is not a valid region; one looks like 'eu-west-1'")
    return region


def checked_provider(given: object, name: str = "credentials") -> CredentialsProvider:
    """A session, credentials or a function. ``ConfigInvalid`` for anything else, without showing it."""
    if isinstance(given, CredentialsProvider):
        return given
    if isinstance(given, type) or not (is_session(given) or are_credentials(given) or callable(given)):
        hint = ": text of keys goes into access_key_id, secret_access_key and session_token"
        raise invalid(
            "credentials must be a session of boto3, botocore or aiobotocore, credentials of one, or a function that"
            f" returns keys; it is a {type(given).__name__}{hint if isinstance(given, str | Mapping | tuple) else ''}"
        )
    return CredentialsProvider(given)


def region_of(provider: CredentialsProvider) -> str | None:
    """The region that a session, or a provider of obstore, is set to."""
    given = provider.given
    if not is_session(given):
        config = getattr(given, "config", None)
        named = (config.get("region") or config.get("aws_region")) if isinstance(config, Mapping) else None
    elif hasattr(given, "region_name"):
        named = given.region_name
    else:
        named = given.get_config_variable("region") if hasattr(given, "get_config_variable") else None
    return named if isinstance(named, str) and named else None


def is_session(given: object) -> bool:
    """Whether an object is a session of boto3, botocore or aiobotocore."""
    return callable(getattr(given, "get_credentials", None))


def are_credentials(given: object) -> bool:
    """Whether an object is credentials of botocore or aiobotocore."""
    return callable(getattr(given, "get_frozen_credentials", None))


def sse_secret(key: object, name: str = "sse_customer_key") -> Secret:
    """A customer's key as a secret in base64; a key that is known here is checked."""
    if isinstance(key, bytes):
        if len(key) != SSE_KEY_BYTES:
            raise invalid(f"sse_customer_key must have {SSE_KEY_BYTES} bytes, not {len(key)}")
        return Secret(base64.b64encode(key).decode())
    if not isinstance(key, (str, Secret)) or not key:
        raise invalid(f"sse_customer_key must be {SSE_KEY_BYTES} bytes, or their base64; it is a {type(key).__name__}")
    secret = key if isinstance(key, Secret) else Secret(key)
    if secret.is_literal and secret.reveal() is not None:
        sse_key_bytes(secret)
    return secret


def sse_key_bytes(secret: Secret) -> bytes:
    """The bytes of a customer's key from its base64."""
    # No local variable holds the key when this raises, because tools show the variables of every frame of an error.
    found_bytes = _decoded_bytes(secret)
    if found_bytes is None:
        raise invalid(f"sse_customer_key is not base64; it must hold {SSE_KEY_BYTES} bytes")
    if found_bytes != SSE_KEY_BYTES:
        raise invalid(f"sse_customer_key must hold {SSE_KEY_BYTES} bytes, not {found_bytes}")
    return base64.b64decode(secret.reveal() or "")


def _decoded_bytes(secret: Secret) -> int | None:
    try:
        return len(base64.b64decode(secret.reveal() or "", validate=True))
    except (binascii.Error, ValueError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options(ConnectionOptions):
    """The fields of the recipe ``S3``, which documents them. Raises ``ConfigInvalid`` for options that cannot work."""

    bucket: str = field(metadata=in_uri(Checked(checked_bucket)))
    prefix: str = option("", Checked(checked_prefix), given="uri")
    endpoint_url: str | None = option(
        None,
        Checked(checked_endpoint, "a URL"),
        also="obstore:endpoint hadoop:endpoint other:endpoint_override,endpoint_url_s3,host,base_url",
    )
    region: str | None = option(
        None,
        Checked(checked_region),
        also="fsspec:region_name boto3:region_name obstore:default_region hadoop:endpoint.region",
    )
    access_key_id: str | Secret | None = option(
        None, SECRET, also="fsspec:key,username,aws_access_key_id hadoop:access.key other:access_key,user"
    )
    secret_access_key: str | Secret | None = option(
        None, SECRET, also="fsspec:secret,password,aws_secret_access_key hadoop:secret.key other:secret_key"
    )
    session_token: str | Secret | None = option(
        None, SECRET, also="fsspec:token,aws_session_token hadoop:session.token other:security_token"
    )
    credentials: CredentialsProvider | Any | None = option(
        None,
        Checked(checked_provider, is_text=False),
        also="fsspec:session obstore:credential_provider other:botocore_session,boto3_session,credentials_provider",
        hint="a boto3.Session, or a function that gives keys",
    )
    fallback: Fallback | None = option(None, Choice(*get_args(Fallback)))
    profile: str | None = option(None, Text("the name of a profile"), also="fsspec:profile_name,aws_profile")
    anonymous: bool = option(False, FLAG, also="fsspec:anon obstore:skip_signature other:no_sign_request,unsigned")
    addressing_style: AddressingStyle = option(
        "auto",
        Choice(*get_args(AddressingStyle)),
        also="obstore:virtual_hosted_style_request hadoop:path.style.access"
        " other:force_path_style,path_style,use_path_style",
        hint="addressing_style='path' or 'virtual'",
    )
    signing: Signing = option("header", Choice(*get_args(Signing)))
    allow_http: bool | None = option(None, FLAG)
    sse_customer_key: str | bytes | Secret | None = option(
        None,
        Checked(sse_secret, is_secret=True),
        also="boto3:SSECustomerKey obstore:sse_customer_key_base64 hadoop:encryption.key spark:sseCustomerSecretKey",
    )
    request_payer: bool = option(
        False,
        FLAG,
        also="fsspec:requester_pays hadoop:requester.pays.enabled other:request_payer_enabled",
        hint="request_payer=True",
    )
    part_bytes: ByteCount = option(
        8 << 20,
        Size(PART_BYTES_MIN, PART_BYTES_MAX),
        also="boto3:multipart_chunksize,multipart_threshold obstore:part_size",
    )
    checksum: Checksum | None = option(
        None,
        Choice(*get_args(Checksum)),
        also="boto3:ChecksumAlgorithm,request_checksum_calculation obstore:checksum_algorithm",
        hint="checksum='sha256' or 'crc32', which the store verifies and keeps with the object",
    )
    connections_max: int | None = option(None, Integer(1, 100_000), given="recipe")

    @frameless
    def __post_init__(self) -> None:
        check(self)
        if isinstance(self.credentials, CredentialsProvider) and not self.region:
            object.__setattr__(self, "region", region_of(self.credentials))
        self._check_identity()
        if self.endpoint_url is not None:
            self.check_endpoint(self.endpoint_url)

    def _check_identity(self) -> None:
        if self.credentials is not None and (self.anonymous or self.access_key_id or self.secret_access_key):
            raise invalid("credentials are given beside keys or anonymous=True; give one of them")
        if self.anonymous and (self.access_key_id or self.secret_access_key or self.session_token or self.profile):
            raise invalid("anonymous=True sends no credentials; give it without keys and without a profile")
        if bool(self.access_key_id) != bool(self.secret_access_key):
            present, missing = ("access_key_id", "secret_access_key")[:: 1 if self.access_key_id else -1]
            raise invalid(f"{present} is given without {missing}; they go together")
        if self.session_token and not self.access_key_id:
            raise invalid("session_token is given without access_key_id and secret_access_key")

    def check_endpoint(self, url: str) -> None:
        """Refuse an endpoint, configured here or found by botocore, to which secrets must not be sent."""
        checked_endpoint(url)
        carries = "" if self.anonymous else "signed requests and their session token"
        if self.sse_customer_key is not None:
            carries = "sse_customer_key"
        check_transport(url, allow_http=self.allow_http, carries=carries)

    @property
    def info(self) -> ServiceInfo:
        # With explicit keys and an explicit endpoint the identity is complete: no AWS configuration file is read.
        settings = self.ambient(files=not (self._own_identity() and self.endpoint_url))
        return ServiceInfo(
            scheme="s3",
            name=self.bucket,
            root=self.prefix,
            endpoint=self.endpoint_url or settings.endpoint,
            region=self.region or settings.region,
            principal=self.principal_of(settings),
            address=address_at_aws(self.bucket, self.region or settings.region, settings.asked),
        )

    @property
    def surroundings(self) -> tuple[object, ...]:
        """The settings of AWS and of the network that decide about requests. Operators share where they are equal."""
        found = self.ambient(files=True)
        settings = found.ca_bundle, found.addressing_style, found.asked, found.refused, found.problem
        return *settings, ambient_network()

    def file_states(self) -> object:
        """The states of the files that decide about the recipe: from equal ones its keys and settings follow alike."""
        return file_states()

    def ambient(self, *, files: bool) -> Ambient:
        """The settings for this recipe in variables, and with ``files`` in the files of AWS, as they are now."""
        return ambient(self.profile, has_identity=bool(self._own_identity()), files=files)

    def keys_place(self) -> str:
        """The place where the keys are found now, for people, and nothing of the keys."""
        if self.anonymous:
            return "none: anonymous"
        if self.credentials is not None:
            return "the provider that credentials= gives"
        if isinstance(self.access_key_id, Secret):
            if self.access_key_id.is_literal:
                return "options: access_key_id"
            return f"the variable {self.access_key_id.reference.removeprefix('env:')}"
        settings = self.ambient(files=True)
        if settings.key_place == "variables":
            return "the variable AWS_ACCESS_KEY_ID"
        profile = f"profile {settings.profile or 'default'}"
        if settings.key_place == "files":
            return f"{settings.files[1]} or {settings.files[0]}, {profile}"
        return f"none in options, variables and files; asked: {settings.provider}"

    def principal_of(self, settings: Ambient | None = None) -> str:
        """The principal of the keys in the recipe itself, or of ``settings`` if it has none."""
        return f"{self._own_identity() or (settings.principal if settings else '')}{self._customer()}"

    @property
    def keys_left_behind(self) -> bool:
        """Whether its keys, or what gives them, stayed in the process that pickled it."""
        if isinstance(self.credentials, CredentialsProvider):
            return self.credentials.given is None
        keys = (self.access_key_id, self.secret_access_key, self.session_token)
        return any(isinstance(key, Secret) and key.is_literal and key.reveal() is None for key in keys)

    def _own_identity(self) -> str:
        """The identity that the recipe itself names, ``""`` if variables, files or providers name one."""
        if self.anonymous:
            return "anonymous"
        if self.keys_left_behind:
            return "" if self.fallback else "left behind"  # No bytes are ever read under that name.
        if self.credentials is not None:
            return f"provider:{self.credentials.token}"
        key_id = Secret.of(self.access_key_id)
        if key_id is None:
            return ""
        value = key_id.reveal()
        return f"key:{key_id.fingerprint() if value is None else digest(value)}"

    def _customer(self) -> str:
        # A principal without the customer's key may not read bytes that were stored with it.
        key = self.sse_customer_key
        if isinstance(key, Secret) and (key.reveal() is not None or not key.is_literal):
            return f" customer-key:{key.fingerprint()}"
        return ""

    @property
    def capability(self) -> Capability:
        is_ordered = not is_directory_bucket(self.bucket)
        return Capability(
            **dict.fromkeys(_CAN, True),
            list_ordered=is_ordered,
            list_start_after=is_ordered,
            rename=not is_ordered and not self.anonymous,
            write_sse_kms=self.sse_customer_key is None,
            write_part_bytes=int(self.part_bytes),
            write_parts_max=PARTS_MAX,
            copy_bytes_max=COPY_BYTES_MAX,
            copy_part_bytes=COPIED_PART_BYTES,
            # AWS alone: other stores would not look at the condition, and overwrite.
            copy_if_not_exists=not (self.endpoint_url or self.ambient(files=True).endpoint),
            delete_paths_max=1000,
            # A URL alone opens nothing where its bearer must send headers as well.
            presign=not (self.anonymous or self.sse_customer_key or self.request_payer),
        )

    def key_of(self, path: str, *, operation: str, dots_allowed: bool = False) -> str:
        """The key of a path below the prefix. Raises ``IsADirectory`` or ``InvalidPath``, as ``checked_key``."""
        if not path:
            raise IsADirectory("the root is a directory", operation=operation, path=path)
        root = self.root
        room = KEY_BYTES_MAX - len(root.encode())
        return root + checked_key(path, operation=operation, bytes_max=room, dots_allowed=dots_allowed)

    @property
    def root(self) -> str:
        """The text before every path in a key: the prefix and a slash, or nothing."""
        return f"{self.prefix}/" if self.prefix else ""

    def copies_from(self, source: object) -> bool:
        """Whether objects of another recipe can be copied by requests of this one.

        So of another bucket, or root, with the same endpoint, region and credentials, literal ones included.
        """
        if not isinstance(source, S3Options) or type(source) is not type(self):
            return False
        own = {name: getattr(self, name) for name in ("bucket", "prefix", "part_bytes", "checksum")}
        return replace(source, **own) == self

    def connections(self, concurrency: int) -> int:
        """The number of pooled connections for a runtime that lets ``concurrency`` requests through."""
        return self.connections_max or concurrency + _CONNECTIONS_EXTRA

    def known_secrets(self) -> Iterator[str]:
        """The secret values known to this process."""
        own = (self.access_key_id, self.secret_access_key, self.session_token, self.sse_customer_key)
        for secret in (*own, *(self.proxies or {}).values()):
            if isinstance(secret, Secret) and (value := secret.reveal()):
                yield value
        for name in _SECRET_VARIABLES:
            if value := os.environ.get(name):
                yield value
