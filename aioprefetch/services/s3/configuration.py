"""The decisions of a recipe, its environment and the files of AWS.

They are endpoint, proxy, CA file, and whether aiobotocore sends the requests.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import field

from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, PermissionDenied
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.services.proxies import Proxies
from aioprefetch.services.s3.endpoint import Endpoint, endpoint_of, why_aiobotocore
from aioprefetch.services.s3.options import S3Options, checked_region, revealed, sse_key_bytes
from aioprefetch.transport import Proxy


@dataclass(frozen=True, slots=True)
class Configuration:
    """The endpoint, and the proxy and the file of authorities (``None``: those of the system) for its connections.

    ``why_aiobotocore`` is the reason for which all requests go through aiobotocore, ``""`` for none; the other fields
    are those of our own requests. ``customer_key`` is the key of SSE-C.
    """

    endpoint: Endpoint
    proxy: Proxy | None
    ca_bundle: str | None
    customer_key: bytes | None = field(repr=False)
    why_aiobotocore: str


def configuration_of(options: S3Options) -> Configuration:
    """The configuration as it is now. Reads files, which blocks. Raises ``ConfigInvalid``."""
    ambient = options.ambient(files=True)
    region, endpoint_url = options.region or ambient.region, options.endpoint_url or ambient.endpoint
    if options.ca_file is not None and not os.path.isfile(options.ca_file):
        raise ConfigInvalid(f"ca_bundle={options.ca_file!r} is not a file")
    if region:
        checked_region(region)
    if ambient.problem:
        endpoint_url = ""  # Botocore refuses it, or the file that names it.
    elif endpoint_url:
        options.check_endpoint(endpoint_url)
    proxies = Proxies(proxy_urls(options))
    why = why_aiobotocore(
        bucket=options.bucket,
        region=region,
        endpoint_url=endpoint_url,
        proxies=proxies,
        asked=ambient.asked,
        problem=ambient.problem,
    )
    style = options.addressing_style if options.addressing_style != "auto" else ambient.addressing_style
    endpoint = endpoint_of(options.bucket, region, endpoint_url, style)
    return Configuration(
        endpoint=endpoint,
        proxy=None if why else proxies.of(endpoint.origin),
        ca_bundle=options.ca_file or ambient.ca_bundle or bundled_authorities(),
        customer_key=customer_key(options),
        why_aiobotocore=why,
    )


def proxy_urls(options: S3Options) -> tuple[tuple[str, str], ...] | None:
    """The proxies of a recipe with their passwords; ``None`` for those of the environment."""
    if options.proxies is None:
        return None
    # No local variable holds a password when this raises, because tools show those of every frame of an error.
    for scheme, url in options.proxies.items():
        if isinstance(url, Secret) and revealed(url, f"proxies[{scheme!r}]") is None:
            raise ConfigInvalid(
                f"proxies[{scheme!r}] holds a password and stayed in the process that pickled this operator; "
                "give it as 'env:NAME' and set that variable here"
            )
    return tuple(
        (scheme, (url.reveal() or "") if isinstance(url, Secret) else url) for scheme, url in options.proxies.items()
    )


def customer_key(options: S3Options) -> bytes | None:
    """The key of SSE-C, ``None`` for none. Raises ``PermissionDenied`` for one that stayed in another process."""
    secret = options.sse_customer_key
    if not isinstance(secret, Secret):
        return None
    if revealed(secret, "sse_customer_key") is None:
        raise PermissionDenied(
            "sse_customer_key was given as a literal and stayed in the process that pickled this operator; "
            "give it as sse_customer_key='env:NAME' and set that variable here"
        )
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
