"""The endpoint that the rules of AWS give: botocore knows them, and is asked once for a recipe.

It presigns a URL with keys that open nothing. Host, path, region and service of that URL are the endpoint; it is never
sent. Blocks: botocore reads its data and the files of AWS for a few tenths of a second.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from aioprefetch.errors import ConfigInvalid, MissingDependency
from aioprefetch.services.s3.endpoint import DEFAULT_REGION, Endpoint
from aioprefetch.services.s3.options import S3Options
from aioprefetch.transport.origin import origin_of

_KEY = "key"


def asked_endpoint(options: S3Options, bucket: str, region: str, endpoint_url: str, style: str) -> Endpoint:
    """The endpoint of a bucket, ``""`` for that of the account; ``""`` also for a region or URL that is not given.

    Raises ``ConfigInvalid`` where there is none, and the errors of botocore for files that it refuses.
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
            url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": _KEY})
        else:
            url = client.generate_presigned_url("list_buckets")
    except BotoCoreError as error:
        raise ConfigInvalid(f"AWS has no endpoint for bucket={options.bucket!r} with these settings: {error}") from None
    finally:
        client.close()
    parts = urlsplit(url)
    _, _, scope_region, service, _ = parse_qs(parts.query)["X-Amz-Credential"][0].split("/")
    return Endpoint(origin_of(parts), parts.path.removesuffix(_KEY), scope_region, service)
