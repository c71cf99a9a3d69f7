"""The recipe of the S3 service: checked when it is made, without a secret in its repr or pickle."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import given, invalid
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.proxies import check_installed
from aioprefetch.services.s3.options import S3Options, split_address

if TYPE_CHECKING:
    from aioprefetch.services.s3.accessor import Buckets
    from aioprefetch.services.uri_options import S3UriOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class S3(S3Options):
    """A bucket, or a prefix of it. Raises ``ConfigInvalid`` for options that cannot work.

    ``ConnectionOptions`` documents ``ca_bundle``, ``proxies`` and the timeouts.

    Parameters
    ----------
    bucket
        The bucket's name, or the ARN of an access point.
    prefix
        The root: every path is ``prefix/path``. Slashes at its ends do not matter.
    endpoint_url
        ``http(s)://host[:port]`` of a store that is not AWS. Default: from ``AWS_*`` variables or a profile, or AWS.
    region
        Default: from ``AWS_*`` variables or a profile, or ``us-east-1``.
    access_key_id
        The name of the key. This and the next two are text, or ``env:NAME`` for a variable that is looked up when it is
        used. A pickle holds no text of a key: in another process such a key is ``PermissionDenied``, see ``fallback``.
        Default: ``AWS_*`` variables, the files of AWS, then the other providers of botocore, in its order.
    secret_access_key
        The key that signs.
    session_token
        What temporary keys need beside them.
    credentials
        What gives the keys instead: a session of boto3, botocore or aiobotocore, credentials of one, a provider of
        obstore, or a function, which may be asynchronous. It is asked before its keys end. A session gives the region
        too. A pickle holds a function of a module by its name; anything else stays in this process and its forks.
    fallback
        ``"ambient"``: where keys or ``credentials`` stayed in another process, the process that unpickles the
        recipe uses its own, which may be another identity. ``None``: ``PermissionDenied`` at the first request.
    profile
        A profile of the AWS configuration files. Beside ``access_key_id`` and ``secret_access_key`` it gives the
        region and other settings, and those keys sign, as with boto3.
    anonymous
        Send unsigned requests, for public buckets.
    addressing_style
        ``path`` (``host/bucket/key``), ``virtual`` (``bucket.host/key``), or ``auto``: the profile's, otherwise
        path for an ``endpoint_url``.
    signing
        Where the signature of a read stands: in a ``header``, or in the query of a ``presigned`` URL, which opens the
        object to its bearer for 15 minutes.
    allow_http
        ``True`` lets keys travel over plain http, ``False`` never does, ``None`` only to this machine.
    sse_customer_key
        The customer's key of SSE-C (AES256): 32 bytes, their base64, or ``env:NAME`` of the latter.
    request_payer
        Agree to pay for requests to a requester-pays bucket.
    part_bytes
        The size of the parts of an object that is larger, which are sent side by side. Parts of a long stream grow.
    checksum
        ``sha256`` or ``crc32``: each object that is written or copied has that checksum, which the store verifies and
        keeps. Buckets with a default retention of Object Lock demand one. ``None``: only a write that asks for it.
    connections_max
        Connections to the store. Default: the operator's concurrency and a few more.
    """

    schemes: ClassVar[tuple[str, ...]] = ("s3", "s3a")

    @classmethod
    def from_uri(cls, uri: str, **options: Unpack[S3UriOptions]) -> S3:
        """The recipe for ``s3://bucket/prefix``. Raises ``ConfigInvalid`` for credentials in the URI."""
        scheme, _, rest = uri.partition("://")
        bucket, prefix = split_address(rest)
        if "@" in bucket or (":" in bucket and "@" in rest):  # Not shown: the text before it is probably a key.
            raise invalid(f"no bucket has an '@' in its name: credentials do not go into {scheme}:// but into options")
        return cls(bucket=bucket, prefix=prefix, **given(options))

    def buckets(self, runtime: Runtime) -> Buckets:
        """The bucket itself, and the others of the account: listed, made and deleted."""
        from aioprefetch.services.s3.accessor import Buckets

        return Buckets(self, runtime)

    def build(self, runtime: Runtime) -> Accessor:
        from aioprefetch.services.s3.accessor import S3Accessor

        # The transport imports them at its first connection and response.
        check_installed("the s3 service", "s3", "aiohappyeyeballs", "httptools")
        return S3Accessor(self, runtime)
