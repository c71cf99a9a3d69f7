"""The endpoint of a bucket: the host, the path before the key, the scope of the signature. Pure, no I/O.

Known are the regions of AWS, AWS in China and GovCloud, and any store with an ``endpoint_url``. ``why_asked`` lists
what botocore is asked for (``asked_endpoint``).
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from aioprefetch.lean_dataclass import dataclass
from aioprefetch.services.s3.sigv4 import encoded_path
from aioprefetch.transport.origin import DEFAULT_PORTS, Origin, is_address

DEFAULT_REGION = "us-east-1"
# The names of regions, by the domain of their partition.
_PARTITIONS = (
    (re.compile(r"(us|eu|ap|sa|ca|me|af|il|mx)-\w+-\d+"), "amazonaws.com"),
    (re.compile(r"cn-\w+-\d+"), "amazonaws.com.cn"),
    (re.compile(r"us-gov-\w+-\d+"), "amazonaws.com"),
)
# A label of a host name. A bucket with a dot is several of them, for which no certificate of AWS is valid.
_LABEL = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_LABELS = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
# Special buckets and aliases: directory buckets (S3 Express), Object Lambda, Outposts, access points; and names of AWS.
_SPECIAL_BUCKET = re.compile(r".*--[a-z0-9]+-s3|arn:.*")
# An access point of several regions, by its alias or its name.
_OF_SEVERAL_REGIONS = re.compile(r".*\.mrap")
_ACCELERATED = re.compile(r"s3-accelerate\..*")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The origin of a bucket, the path before its keys (with a slash at its end), and what to sign for."""

    origin: Origin
    root: str
    region: str
    service: str = "s3"

    @property
    def bucket_path(self) -> str:
        """The path of the bucket itself, for a listing."""
        return self.root.removesuffix("/") or "/"


def endpoint_of(bucket: str, region: str, endpoint_url: str, addressing_style: str) -> Endpoint:
    """The endpoint of a bucket, ``""`` for the account's; ``""`` for a region or ``endpoint_url`` not given.

    As botocore resolves it, but for one case: a bucket with a dot at an IP address stands in the path under every
    addressing style. Botocore puts it before the address (``http://a.b.127.0.0.1``), which is the name of no host.
    """
    if not endpoint_url:
        domain = _domain_of(region or DEFAULT_REGION)
        host = f"s3.{region}.{domain}" if region and region != DEFAULT_REGION else f"s3.{domain}"
        if addressing_style != "path" and _LABEL.fullmatch(bucket):
            return Endpoint(Origin("https", f"{bucket}.{host}", 443), "/", region or DEFAULT_REGION)
        return Endpoint(Origin("https", host, 443), f"/{bucket}/" if bucket else "/", region or DEFAULT_REGION)
    parts = urlsplit(endpoint_url)
    host = parts.hostname or ""
    if not host.isascii():
        host = host.encode("idna").decode("ascii")  # As it is sent and signed.
    base = encoded_path(parts.path.rstrip("/")) if "%" not in parts.path else parts.path.rstrip("/")
    labels = _LABEL if parts.scheme == "https" else _LABELS
    is_virtual = addressing_style == "virtual" and labels.fullmatch(bucket) and not is_address(host)
    origin = Origin(parts.scheme, f"{bucket}.{host}" if is_virtual else host, parts.port or DEFAULT_PORTS[parts.scheme])
    is_in_path = bucket and not is_virtual
    return Endpoint(origin, f"{base}/{bucket}/" if is_in_path else f"{base}/", region or DEFAULT_REGION)


def address_at_aws(bucket: str, region: str, asked: tuple[str, ...]) -> str:
    """The address of a bucket at AWS as errors name it; ``asked`` are settings that make botocore choose another."""
    if asked or not _domain_of(region or DEFAULT_REGION) or _SPECIAL_BUCKET.fullmatch(bucket):
        return f"AWS, region {region or DEFAULT_REGION}{''.join(f', {each}' for each in asked)}"
    return str(endpoint_of(bucket, region, "", "auto").origin)


def is_of_several_regions(bucket: str, endpoint_url: str) -> bool:
    """Whether a bucket is a Multi-Region Access Point, whose signatures we cannot make; of AWS alone."""
    return bool(_OF_SEVERAL_REGIONS.fullmatch(bucket)) and (not endpoint_url or bucket.startswith("arn:"))


def why_asked(*, bucket: str, region: str, endpoint_url: str, asked: tuple[str, ...], problem: str) -> str:
    """The part of a configuration for which botocore is asked for the endpoint, or ``""``.

    ``asked`` are settings of AWS in variables or files (``environment``), ``problem`` says why the files are refused:
    botocore raises the error.
    """
    if problem:
        return problem
    if asked:
        return asked[0]
    if _SPECIAL_BUCKET.fullmatch(bucket):
        return "a directory bucket, or an access point"
    if endpoint_url and _ACCELERATED.fullmatch(urlsplit(endpoint_url).hostname or ""):
        return "transfer acceleration"
    if not endpoint_url and not _domain_of(region or DEFAULT_REGION):
        return "a region of another partition"
    return ""


def _domain_of(region: str) -> str:
    return next((domain for pattern, domain in _PARTITIONS if pattern.fullmatch(region)), "")
