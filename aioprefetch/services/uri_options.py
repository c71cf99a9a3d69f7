"""The options of stores by URI, for type checkers: nothing loads this module at run time.

``python -m tests.repository.option_files`` makes it from the rows of the recipes, which document the options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from aioprefetch.credentials import CredentialsProvider, Secret
from aioprefetch.ranges import ByteCount
from aioprefetch.values import Checksum

if TYPE_CHECKING:
    from aioprefetch.services.s3.options import AddressingStyle, Fallback, Signing


# generated: types


class _S3AndHttp(TypedDict, total=False):
    ca_bundle: str | os.PathLike[str] | None
    proxies: Mapping[str, str | Secret] | None


class _S3AndHttpAndGcsAndAzure(TypedDict, total=False):
    connect_timeout_seconds: float | None
    read_timeout_seconds: float | None


class _S3AndGcsAndAzure(TypedDict, total=False):
    endpoint_url: str | None
    anonymous: bool | None
    allow_http: bool | None
    part_bytes: ByteCount | None


class _S3(TypedDict, total=False):
    region: str | None
    access_key_id: str | Secret | None
    secret_access_key: str | Secret | None
    session_token: str | Secret | None
    fallback: Fallback | None
    profile: str | None
    addressing_style: AddressingStyle | None
    signing: Signing | None
    sse_customer_key: str | bytes | Secret | None
    request_payer: bool | None
    checksum: Checksum | None


class _S3AndGcsAndAzureObjects(TypedDict, total=False):
    credentials: CredentialsProvider | Any | None


class _Http(TypedDict, total=False):
    headers: Mapping[str, str | Secret] | None
    auth: tuple[str, str | Secret] | str | Secret | None
    follow_redirects: bool | None
    decode: bool | None


class _Fs(TypedDict, total=False):
    follow_symlinks: bool | None


class _Gcs(TypedDict, total=False):
    service_account: str | os.PathLike[str] | None
    service_account_key: str | Secret | None
    application_credentials: str | os.PathLike[str] | None


class _Azure(TypedDict, total=False):
    account_name: str | None
    account_key: str | Secret | None
    sas_key: str | Secret | None
    client_id: str | None
    client_secret: str | Secret | None
    tenant_id: str | None
    use_emulator: bool | None


class S3UriOptions(_S3AndHttp, _S3AndHttpAndGcsAndAzure, _S3AndGcsAndAzure, _S3, _S3AndGcsAndAzureObjects, total=False):
    """The options of ``s3://``, ``s3a://``."""


class HttpUriOptions(_S3AndHttp, _S3AndHttpAndGcsAndAzure, _Http, total=False):
    """The options of ``http://``, ``https://``."""


class FsUriOptions(_Fs, total=False):
    """The options of ``file://``."""


class MemoryUriOptions(TypedDict, total=False):
    """The options of ``memory://``."""


class GcsUriOptions(_S3AndHttpAndGcsAndAzure, _S3AndGcsAndAzure, _S3AndGcsAndAzureObjects, _Gcs, total=False):
    """The options of ``gs://``, ``gcs://``."""


class AzureUriOptions(_S3AndHttpAndGcsAndAzure, _S3AndGcsAndAzure, _S3AndGcsAndAzureObjects, _Azure, total=False):
    """The options of ``az://``, ``azure://``, ``abfs://``, ``abfss://``, ``adl://``."""


class StoreTexts(_S3AndHttp, _S3AndHttpAndGcsAndAzure, _S3AndGcsAndAzure, _S3, _Http, _Fs, _Gcs, _Azure, total=False):
    """Those that have a form as text."""


class StoreOptions(StoreTexts, _S3AndGcsAndAzureObjects, total=False):
    """The options of all stores. An option of another scheme is ``ConfigInvalid``."""


# end of generated
