"""The options of stores by URI, for type checkers: nothing loads this module at run time.

A class for each recipe, whose ``from_uri`` it types, and ``StoreOptions`` for all of them, of which each scheme takes
its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from aioprefetch.credentials import CredentialsProvider, Secret
from aioprefetch.ranges import ByteCount
from aioprefetch.values import Checksum

if TYPE_CHECKING:
    from aioprefetch.services.s3.options import AddressingStyle, Fallback, Signing


class S3UriOptions(TypedDict, total=False):
    """The options of ``s3://``; ``S3`` documents them."""

    endpoint_url: str | None
    region: str | None
    access_key_id: str | Secret | None
    secret_access_key: str | Secret | None
    session_token: str | Secret | None
    credentials: CredentialsProvider | Any | None
    fallback: Fallback | None
    profile: str | None
    anonymous: bool
    addressing_style: AddressingStyle
    signing: Signing
    ca_bundle: str | os.PathLike[str] | None
    proxies: Mapping[str, str | Secret] | None
    allow_http: bool | None
    sse_customer_key: str | bytes | Secret | None
    request_payer: bool
    connect_timeout_seconds: float
    read_timeout_seconds: float
    part_bytes: ByteCount
    checksum: Checksum | None


class HttpUriOptions(TypedDict, total=False):
    """The options of ``http://`` and ``https://``; ``Http`` documents them."""

    headers: Mapping[str, str | Secret] | None
    auth: tuple[str, str | Secret] | str | Secret | None
    follow_redirects: bool
    decode: bool
    ca_bundle: str | os.PathLike[str] | None
    proxies: Mapping[str, str | Secret] | None
    connect_timeout_seconds: float
    read_timeout_seconds: float


class FsUriOptions(TypedDict, total=False):
    """The options of ``file://``; ``Fs`` documents them."""

    follow_symlinks: bool


class MemoryUriOptions(TypedDict, total=False):
    """``memory://`` has no options."""


class CloudUriOptions(TypedDict, total=False):
    """The options of ``gs://`` and ``az://``."""

    credentials: Callable[[], Any] | CredentialsProvider | None
    allow_http: bool | None
    connect_timeout_seconds: float
    read_timeout_seconds: float
    part_bytes: ByteCount


class ContainerOptions(CloudUriOptions, total=False):
    """The options that ``Gcs`` and ``Azure`` share."""

    prefix: str


class GcsUriOptions(CloudUriOptions, total=False):
    """The options of ``gs://``; ``Gcs`` documents them."""

    service_account: str | os.PathLike[str] | None
    service_account_key: str | Secret | None
    application_credentials: str | os.PathLike[str] | None
    anonymous: bool | None
    endpoint_url: str | None


class AzureUriOptions(CloudUriOptions, total=False):
    """The options of ``az://``; ``Azure`` documents them."""

    account_name: str | None
    account_key: str | Secret | None
    sas_key: str | Secret | None
    client_id: str | None
    client_secret: str | Secret | None
    tenant_id: str | None
    anonymous: bool | None
    use_emulator: bool | None
    endpoint_url: str | None


class StoreOptions(TypedDict, total=False):
    """The options of all stores; ``None`` is as good as none. An option of another scheme is ``ConfigInvalid``."""

    # s3, and others that have them too
    endpoint_url: str | None
    region: str | None
    access_key_id: str | Secret | None
    secret_access_key: str | Secret | None
    session_token: str | Secret | None
    credentials: CredentialsProvider | Callable[[], Any] | Any | None
    fallback: Fallback | None
    profile: str | None
    anonymous: bool | None
    addressing_style: AddressingStyle | None
    signing: Signing | None
    ca_bundle: str | os.PathLike[str] | None
    proxies: Mapping[str, str | Secret] | None
    allow_http: bool | None
    sse_customer_key: str | bytes | Secret | None
    request_payer: bool | None
    connect_timeout_seconds: float | None
    read_timeout_seconds: float | None
    part_bytes: ByteCount | None
    checksum: Checksum | None
    # http
    headers: Mapping[str, str | Secret] | None
    auth: tuple[str, str | Secret] | str | Secret | None
    follow_redirects: bool | None
    decode: bool | None
    # file
    follow_symlinks: bool | None
    # gs
    service_account: str | os.PathLike[str] | None
    service_account_key: str | Secret | None
    application_credentials: str | os.PathLike[str] | None
    # az
    account_name: str | None
    account_key: str | Secret | None
    sas_key: str | Secret | None
    client_id: str | None
    client_secret: str | Secret | None
    tenant_id: str | None
    use_emulator: bool | None
