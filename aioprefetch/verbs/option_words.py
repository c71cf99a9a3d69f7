"""The words of boto3, s3fs and obstore for options, answered with ours, and slips of the pen with the nearest name.

``OTHER_WORDS`` has every word that is answered, in lower case, without the name of a cloud before many of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """The option of ours, ``""`` if there is none, and what else there is to know."""

    option: str
    advice: str = ""


def _no_option(advice: str) -> Answer:
    return Answer("", advice)


_CLOUDS = re.compile("aws_|amazon_|google_|azure_storage_|azure_")

_KEPT_APART = _no_option("what it would hold are options of their own, such as endpoint_url and region")
_VERIFIED = Answer("ca_bundle", "the file of the authorities to trust: certificates are always verified")
_NO_TLS = _no_option(
    "an endpoint_url that begins with http:// goes without TLS; beyond this machine keys travel so with allow_http=True"
)
_PATH_STYLE = Answer("addressing_style", "addressing_style='path' or 'virtual'")
_RETRIES = _no_option(
    "there are attempts_max and retry_seconds; for all settings: operator.layer(ap.layers.RetryLayer(...))"
)
_TIMEOUTS = _no_option(
    "s3:// and http(s):// have connect_timeout_seconds and read_timeout_seconds, each attempt has"
    " ap.layers.TimeoutLayer, each read timeout_seconds"
)
_POLICY = Answer(
    "policy", "policy='adaptive' in place of readahead, 'random' of none, 'whole-file' of all, 'parquet' for footers"
)
_SESSION = Answer("credentials", "a boto3.Session, or a function that gives keys")
_ROLE = _no_option(
    "a role is taken from the files and variables of AWS: a profile with role_arn, or AWS_ROLE_ARN and"
    " AWS_WEB_IDENTITY_TOKEN_FILE"
)
_BY_ENVIRONMENT = _no_option("it comes from the files and AWS_* variables of AWS alone")
_CHECKSUM = Answer("checksum", "checksum='sha256' or 'crc32', which the store verifies and keeps with the object")
_CHECKED_RESPONSES = _no_option("the range, the length and the version of each response are checked, and no checksum")
_EVERY_LOOP = _no_option("an operator works on every loop, and ap.sync is for code without one")
_OWN_TRANSPORT = _no_option("connections are made by aioprefetch's own transport, which decides on this by itself")

OTHER_WORDS: Mapping[str, Answer] = {
    # --- who asks, and where
    **dict.fromkeys(("anon", "skip_signature", "no_sign_request", "unsigned"), Answer("anonymous")),
    **dict.fromkeys(("key", "access_key", "username", "user"), Answer("access_key_id")),
    **dict.fromkeys(("secret", "secret_key", "password"), Answer("secret_access_key")),
    **dict.fromkeys(("token", "security_token"), Answer("session_token")),
    **dict.fromkeys(("endpoint", "endpoint_override", "endpoint_url_s3", "host", "base_url"), Answer("endpoint_url")),
    **dict.fromkeys(("region_name", "default_region"), Answer("region")),
    "profile_name": Answer("profile"),
    **dict.fromkeys(("virtual_hosted_style_request", "force_path_style", "path_style", "use_path_style"), _PATH_STYLE),
    **dict.fromkeys(("verify", "ssl", "ssl_verify", "verify_ssl", "cert", "allow_invalid_certificates"), _VERIFIED),
    **dict.fromkeys(("root_certificate", "proxy_ca_certificate", "cafile", "ssl_ca_cert"), _VERIFIED),
    **dict.fromkeys(("use_ssl", "scheme", "secure"), _NO_TLS),
    **dict.fromkeys(
        ("signature_version", "unsigned_payload"), _no_option("requests are signed with version 4; anonymous=True: not")
    ),
    **dict.fromkeys(("requester_pays", "request_payer_enabled"), Answer("request_payer", "request_payer=True")),
    **dict.fromkeys(
        ("session", "botocore_session", "boto3_session", "credential_provider", "credentials_provider"), _SESSION
    ),
    **dict.fromkeys(("role_arn", "role_session_name", "web_identity_token_file", "sts_endpoint"), _ROLE),
    **dict.fromkeys(("container_credentials_relative_uri", "container_credentials_full_uri"), _BY_ENVIRONMENT),
    **dict.fromkeys(("container_authorization_token_file", "metadata_endpoint", "imdsv1_fallback"), _BY_ENVIRONMENT),
    **dict.fromkeys(("use_dualstack_endpoint", "use_fips_endpoint", "use_accelerate_endpoint"), _BY_ENVIRONMENT),
    **dict.fromkeys(("ignore_configured_endpoint_urls", "account_id_endpoint_mode"), _BY_ENVIRONMENT),
    **dict.fromkeys(("account_id", "sigv4a_signing_region_set", "auth_scheme_preference"), _BY_ENVIRONMENT),
    **dict.fromkeys(("bucket", "bucket_name", "prefix"), _no_option("it stands in the URI: s3://bucket/prefix")),
    **dict.fromkeys(("sas_token", "shared_access_signature"), Answer("sas_key")),
    **dict.fromkeys(("account", "storage_account_name"), Answer("account_name")),
    "storage_account_key": Answer("account_key"),
    "service_account_path": Answer("service_account"),
    "connection_string": _no_option(
        "its parts are options: AccountName is account_name, AccountKey account_key, SharedAccessSignature sas_key,"
        " BlobEndpoint endpoint_url"
    ),
    **dict.fromkeys(
        ("project", "project_id"), _no_option("objects are read and written without the name of a project")
    ),
    "cache_regions": _no_option("an operator has one bucket, whose region is the option region"),
    # --- what holds options of others
    **dict.fromkeys(("client_kwargs", "config_kwargs", "s3_additional_kwargs", "storage_options"), _KEPT_APART),
    **dict.fromkeys(("client_options", "s3", "transport_params", "fs", "filesystem"), _KEPT_APART),
    "config": _no_option(
        "what a Config holds are options of their own: connect_timeout_seconds, read_timeout_seconds, concurrency,"
        " attempts_max, proxies, addressing_style, and anonymous=True for UNSIGNED"
    ),
    "get_client": _OWN_TRANSPORT,
    "client": _no_option("connections are made by aioprefetch's own transport: give endpoint_url, region and keys"),
    # --- how it is read and sent
    **dict.fromkeys(("default_block_size", "block_size", "blocksize", "buffer_size"), Answer("block_bytes")),
    **dict.fromkeys(("default_cache_type", "cache_type", "caching", "default_fill_cache", "fill_cache"), _POLICY),
    **dict.fromkeys(("cache_options", "read_ahead", "readahead"), _POLICY),
    **dict.fromkeys(("max_concurrency", "max_connections", "max_pool_connections"), Answer("concurrency")),
    **dict.fromkeys(("multipart_chunksize", "part_size", "multipart_threshold"), Answer("part_bytes")),
    **dict.fromkeys(("cache_dir", "cache_storage", "cache_directory"), Answer("disk_cache")),
    **dict.fromkeys(("retries", "total_max_attempts"), Answer("attempts_max")),
    **dict.fromkeys(("max_retries", "max_attempts"), Answer("attempts_max", "it counts the first attempt too")),
    "retry_timeout": Answer("retry_seconds"),
    **dict.fromkeys(("retry_config", "retry", "backoff", "init_backoff", "max_backoff"), _RETRIES),
    **dict.fromkeys(("connect_timeout", "connection_timeout"), Answer("connect_timeout_seconds")),
    **dict.fromkeys(("read_timeout", "request_timeout"), Answer("read_timeout_seconds")),
    **dict.fromkeys(("timeout", "timeout_seconds"), _TIMEOUTS),
    **dict.fromkeys(
        ("proxy_url", "proxy", "proxies_config"), Answer("proxies", "proxies={'https': 'http://host:3128'}")
    ),
    "proxy_excludes": _no_option("hosts without a proxy stand in the variable NO_PROXY"),
    **dict.fromkeys(("default_headers", "extra_headers"), Answer("headers")),
    "cookies": Answer("headers", "headers={'Cookie': 'name=value'}"),
    **dict.fromkeys(("bearer_token", "basic_auth"), Answer("auth")),
    # --- what a write says of its object
    **dict.fromkeys(("contenttype", "default_content_type"), Answer("content_type")),
    "contentencoding": Answer("content_encoding"),
    "contentdisposition": Answer("content_disposition"),
    "cachecontrol": Answer("cache_control"),
    **dict.fromkeys(("metadata", "usermetadata"), Answer("user_metadata")),
    "storageclass": Answer("storage_class"),
    "ssekmskeyid": Answer("sse_kms_key_id"),
    **dict.fromkeys(("ssecustomerkey", "sse_customer_key_base64"), Answer("sse_customer_key")),
    **dict.fromkeys(
        ("server_side_encryption", "serversideencryption", "sse_bucket_key_enabled"),
        Answer("sse_kms_key_id", "a key of KMS; with AES256 the bucket encrypts by itself"),
    ),
    **dict.fromkeys(("acl", "disable_tagging"), _no_option("access and tags are for the bucket's policy to say")),
    **dict.fromkeys(
        ("conditional_put", "copy_if_not_exists"), Answer("if_not_exists", "each write has if_not_exists and if_match")
    ),
    **dict.fromkeys(("checksum_algorithm", "checksumalgorithm", "request_checksum_calculation"), _CHECKSUM),
    "response_checksum_validation": _CHECKED_RESPONSES,
    # --- what is decided here
    **dict.fromkeys(("asynchronous", "loop"), _EVERY_LOOP),
    **dict.fromkeys(("version_aware", "local_expiry_check"), _no_option("a reader pins its version by itself")),
    **dict.fromkeys(("fixed_upload_size", "disable_bulk_delete", "api_version", "service_name"), _OWN_TRANSPORT),
    **dict.fromkeys(("user_agent", "user_agent_extra", "user_agent_appid", "parameter_validation"), _OWN_TRANSPORT),
    **dict.fromkeys(("s3_disable_express_session_auth", "client_cert", "inject_host_prefix"), _OWN_TRANSPORT),
    **dict.fromkeys(("endpoint_discovery_enabled", "defaults_mode", "tcp_keepalive", "s3_express"), _OWN_TRANSPORT),
    **dict.fromkeys(("request_min_compression_size_bytes", "disable_request_compression"), _OWN_TRANSPORT),
    **dict.fromkeys(("client_context_params", "pool_idle_timeout", "pool_max_idle_per_host"), _OWN_TRANSPORT),
    **dict.fromkeys(("randomize_addresses", "http1_only", "http2_only"), _OWN_TRANSPORT),
    **dict.fromkeys(("http2_keep_alive_interval", "http2_keep_alive_timeout"), _OWN_TRANSPORT),
    "http2_keep_alive_while_idle": _OWN_TRANSPORT,
}
_KEY_FILE = Answer(
    "service_account",
    "the path of a key file; service_account_key is its contents, anonymous=True sends no keys, and without any of them"
    " the environment has them",
)
_HMAC_KEYS = _no_option(
    "gs:// takes a key file, service_account=; keys for the S3 protocol go with s3://bucket and"
    " endpoint_url='https://storage.googleapis.com'"
)
_OF_OBSTORE = Answer("credentials", "a provider of obstore, which gives tokens too")
# What the same words mean over stores that have an option which no other store has.
_BY_OPTION: Mapping[str, Mapping[str, Answer]] = {
    # Over http a user and a password are one option.
    "auth": dict.fromkeys(
        ("username", "user", "password", "token", "bearer_token"),
        Answer("auth", "auth=(user, password), or a bearer token"),
    ),
    "service_account": {
        **dict.fromkeys(("token", "security_token", "session_token"), _KEY_FILE),
        **dict.fromkeys(("key", "access_key", "access_key_id", "username", "user"), _HMAC_KEYS),
        **dict.fromkeys(("secret", "secret_key", "secret_access_key", "password"), _HMAC_KEYS),
        **dict.fromkeys(("session", "bearer_token", "credential_provider", "credentials_provider"), _OF_OBSTORE),
    },
    "account_key": {
        **dict.fromkeys(("key", "access_key", "secret", "secret_key", "password"), Answer("account_key")),
        **dict.fromkeys(("username", "user"), Answer("account_name")),
        **dict.fromkeys(("token", "bearer_token", "credential", "session"), _OF_OBSTORE),
        **dict.fromkeys(("credential_provider", "credentials_provider"), _OF_OBSTORE),
    },
}


def answer_of(name: str, names: Collection[str] = ()) -> Answer | None:
    """The answer to a word of another library, where ``names`` are the options that there are."""
    plain = _plain(name)
    for option, answers in _BY_OPTION.items():
        if option in names and plain in answers:
            return answers[plain]
    return OTHER_WORDS.get(plain) or OTHER_WORDS.get(_CLOUDS.sub("", plain, count=1))


def nearest(name: str, names: Collection[str]) -> str:
    """The one of ``names`` that is most like a name, ``""`` if none is like it."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, names, n=1, cutoff=0.7)), "")


def advice_for(name: str, names: Collection[str], elsewhere: Mapping[str, str] | None = None) -> str:
    """Advice on an option that is not in ``names``, to follow its name in a message; ``""`` for an unknown word.

    ``elsewhere`` has options of others, such as those of a reader, each with a word for who has it.
    """
    elsewhere = elsewhere or {}
    plain = _plain(name)
    option, advice = answer_of(name, names) or Answer(_CLOUDS.sub("", plain, count=1))
    if not option:
        return f": {advice}"
    more = f" ({advice})" if advice else ""
    if option in names and option != plain:
        return f": it is called {option!r} here{more}"
    if option in elsewhere and option not in names:
        return f": {option!r} is an option of {elsewhere[option]}{more}"
    near = nearest(plain, names)
    if near:
        return f"; did you mean {near!r}?"
    near = nearest(plain, elsewhere)
    return f"; did you mean {near!r} of {elsewhere[near]}?" if near else ""


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")
