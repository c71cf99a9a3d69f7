"""Maps option names of other libraries to ours or to advice, and misspelt names to the closest one. Pure.

The words themselves stand in the rows (``Option.also``); ``SENTENCES`` has those for which there is no option.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from aioprefetch.options import TEXT, Option

# Options by what has them, such as ``s3://`` or ``Operator.reader``; the first one of a name counts.
Elsewhere = Iterable[tuple[str, Mapping[str, Option]]]


class Answer(NamedTuple):
    """The option of ours, or ``""``, and what else there is to know."""

    option: str
    advice: str = ""


_CLOUDS = re.compile("aws_|amazon_|google_|azure_storage_|azure_")
LIBRARIES = ("fsspec", "boto3", "obstore", "other")

# What a write says of its object.
WRITE_ROWS: Mapping[str, Option] = {
    row.name: row
    for row in (
        Option("content_type", TEXT, also="boto3:ContentType other:default_content_type"),
        Option("content_encoding", TEXT, also="boto3:ContentEncoding"),
        Option("content_disposition", TEXT, also="boto3:ContentDisposition"),
        Option("content_language", TEXT, also="boto3:ContentLanguage"),
        Option("expires", TEXT, also="boto3:Expires"),
        Option("cache_control", TEXT, also="boto3:CacheControl"),
        Option("user_metadata", TEXT, also="boto3:Metadata other:UserMetadata"),
        Option("storage_class", TEXT, also="boto3:StorageClass"),
        Option(
            "sse_kms_key_id",
            TEXT,
            also="boto3:SSEKMSKeyId other:server_side_encryption,ServerSideEncryption,sse_bucket_key_enabled",
            hint="a key of KMS; with AES256 the bucket encrypts by itself",
        ),
        Option("if_not_exists", TEXT, also="obstore:conditional_put,copy_if_not_exists", hint="or if_match"),
    )
}

_KEPT_APART = "what it would hold are options of their own, such as endpoint_url and region"
_NO_TLS = (
    "an endpoint_url that begins with http:// goes without TLS; beyond this machine keys travel so with allow_http=True"
)
_RETRIES = "there are attempts_max and retry_seconds; for all settings: operator.layer(ap.layers.RetryLayer(...))"
_TIMEOUTS = (
    "s3:// and http(s):// have connect_timeout_seconds and read_timeout_seconds, each attempt has"
    " ap.layers.TimeoutLayer, each read timeout_seconds"
)
_ROLE = (
    "a role is taken from the files and variables of AWS: a profile with role_arn, or AWS_ROLE_ARN and"
    " AWS_WEB_IDENTITY_TOKEN_FILE"
)
_CONFIG = (
    "what a Config holds are options of their own: connect_timeout_seconds, read_timeout_seconds, concurrency,"
    " attempts_max, proxies, addressing_style, and anonymous=True for UNSIGNED"
)
_CONNECTION_STRING = (
    "its parts are options: AccountName is account_name, AccountKey account_key, SharedAccessSignature sas_key,"
    " BlobEndpoint endpoint_url"
)
_HMAC_KEYS = (
    "gs:// takes a key file, service_account=; keys for the S3 protocol go with s3://bucket and"
    " endpoint_url='https://storage.googleapis.com'"
)
_BY_ENVIRONMENT = "it comes from the files and AWS_* variables of AWS alone"
_OWN_TRANSPORT = "connections are made by aioprefetch's own transport, which decides on this by itself"

# A sentence, and the words that it answers, in lower case.
SENTENCES: Mapping[str, str] = {
    word: sentence
    for sentence, words in (
        (_KEPT_APART, "client_kwargs config_kwargs s3_additional_kwargs storage_options"),
        (_KEPT_APART, "client_options s3 transport_params fs filesystem"),
        (_CONFIG, "config"),
        (_NO_TLS, "use_ssl scheme secure"),
        (_RETRIES, "retry_config retry backoff init_backoff max_backoff"),
        (_TIMEOUTS, "timeout"),
        (_ROLE, "role_arn role_session_name web_identity_token_file sts_endpoint"),
        (_CONNECTION_STRING, "connection_string"),
        (_BY_ENVIRONMENT, "container_credentials_relative_uri container_credentials_full_uri"),
        (_BY_ENVIRONMENT, "container_authorization_token_file metadata_endpoint imdsv1_fallback account_id"),
        (_BY_ENVIRONMENT, "use_dualstack_endpoint use_fips_endpoint use_accelerate_endpoint auth_scheme_preference"),
        (_BY_ENVIRONMENT, "ignore_configured_endpoint_urls account_id_endpoint_mode sigv4a_signing_region_set"),
        ("requests are signed with version 4; anonymous=True: not", "signature_version unsigned_payload"),
        ("it stands in the URI: s3://bucket/prefix", "bucket bucket_name prefix"),
        ("objects are read and written without the name of a project", "project project_id"),
        ("an operator has one bucket, whose region is the option region", "cache_regions"),
        ("hosts without a proxy stand in the variable NO_PROXY", "proxy_excludes"),
        ("access and tags are for the bucket's policy to say", "acl disable_tagging"),
        ("a reader pins its version by itself", "version_aware local_expiry_check"),
        ("an operator works on every loop, and ap.sync is for code without one", "asynchronous loop"),
        (
            "the range, the length and the version of each response are checked, and no checksum",
            "response_checksum_validation",
        ),
        (
            "connections are made by aioprefetch's own transport: give endpoint_url, region and keys",
            "client",
        ),
        (_OWN_TRANSPORT, "get_client fixed_upload_size disable_bulk_delete api_version service_name user_agent"),
        (_OWN_TRANSPORT, "user_agent_extra user_agent_appid parameter_validation client_cert inject_host_prefix"),
        (_OWN_TRANSPORT, "s3_disable_express_session_auth endpoint_discovery_enabled defaults_mode tcp_keepalive"),
        (_OWN_TRANSPORT, "s3_express request_min_compression_size_bytes disable_request_compression"),
        (_OWN_TRANSPORT, "client_context_params pool_idle_timeout pool_max_idle_per_host randomize_addresses"),
        (_OWN_TRANSPORT, "http1_only http2_only http2_keep_alive_interval http2_keep_alive_timeout"),
        (_OWN_TRANSPORT, "http2_keep_alive_while_idle"),
    )
    for word in words.split()
}
# Options that only one store has.
_BY_OPTION: Mapping[str, tuple[str, str]] = {
    "service_account": (
        _HMAC_KEYS,
        "key access_key access_key_id username user secret secret_key secret_access_key password",
    ),
}


def answer_of(name: str, names: Collection[str], elsewhere: Elsewhere) -> Answer | None:
    """The answer to a word of another library, where ``names`` (or their rows) are the options that there are."""
    plain = _plain(name)
    short = _CLOUDS.sub("", plain, count=1)
    for option, (sentence, words) in _BY_OPTION.items():
        if option in names and plain in words.split():
            return Answer("", sentence)
    own = [("", names)] if isinstance(names, Mapping) else []
    others = list(elsewhere)
    of_store = [(of, rows) for of, rows in others if names and rows.keys() <= set(names)]
    for groups in (own, of_store):
        for word in (plain, short):
            if answer := _among(word, groups):
                return answer
    for word in (plain, short):
        if word in SENTENCES:
            return Answer("", SENTENCES[word])
        if answer := _among(word, others):
            return answer
    return None


def _among(word: str, groups: Elsewhere) -> Answer | None:
    for _, rows in groups:
        for row in reversed([*rows.values()]):  # The row of a subclass knows more.
            if word in (other.lower() for other in row.words(*LIBRARIES)):
                return Answer(row.name, row.hint)
    return None


def nearest(name: str, names: Iterable[str]) -> str:
    """The one of ``names`` that is most like a name, ``""`` if none is like it."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, names, n=1, cutoff=0.7)), "")


def advice_for(name: str, names: Collection[str], elsewhere: Elsewhere = ()) -> str:
    """Advice on an option that is not in ``names``, to follow its name in a message; ``""`` for an unknown word."""
    plain = _plain(name)
    groups = list(elsewhere) or [("Operator.write", WRITE_ROWS)]
    option, advice = answer_of(name, names, groups) or Answer(_CLOUDS.sub("", plain, count=1))
    if not option:
        return f": {advice}"
    more = f" ({advice})" if advice else ""
    if option in names and option != plain:
        return f": it is called {option!r} here{more}"
    places = {option: of for of, rows in reversed(groups) for option in rows}
    if option in places and option not in names:
        return f": {option!r} is an option of {places[option]}{more}"
    near = nearest(plain, names)
    if near:
        return f"; did you mean {near!r}?"
    near = nearest(plain, places)
    return f"; did you mean {near!r} of {places[near]}?" if near else ""


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")
