"""Options as fsspec and s3fs have them, and instances of file systems: one for each store and principal that they name.

Each word becomes an option of an operator, of a reader, or of a write, or it means what is the case here anyway. A word
for which there is nothing here is ``ConfigInvalid``, with the option that does it, if there is one.

fsspec keeps instances by a digest of the text of their arguments. Text is not enough here: an operator's names no
principal, and without keys in the arguments the principal comes from the environment, which may change. So what a
store and a principal are *now* is a part of the digest.
"""

from __future__ import annotations

import base64
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any
from weakref import WeakValueDictionary

from fsspec.asyn import AsyncFileSystem
from fsspec.config import apply_config

from aioprefetch.credentials import CredentialsProvider, Secret, frameless
from aioprefetch.errors import ConfigInvalid
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.operator.from_uri import store_options, unknown_option
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import family_key, is_reference, operator_of, reference_of, shared_copy
from aioprefetch.options import Option, invalid
from aioprefetch.options.words import WRITE_ROWS
from aioprefetch.ranges import at_least
from aioprefetch.reader.options import READER_OPTIONS
from aioprefetch.reader.policy import CACHES, POLICIES
from aioprefetch.sync import BlockingOperator
from aioprefetch.verbs.requests import WRITE_OPTIONS

# fsspec's caches, as policies. Blocks keep what was read under each of them.
CACHE_POLICIES: Mapping[str, str] = {**CACHES, **{name: name for name in POLICIES}}

_GS_TOKEN_OF_ENVIRONMENT = ("google_default", "cloud", "cache")
_GS_TOKENS = ("anon", *_GS_TOKEN_OF_ENVIRONMENT)  # They hold no secret, and travel.
# fsspec's words for reads.
_OF_READS = frozenset({"block_size", "cache_type", "cache_options", "version_id", "check_on_open", "requester_pays"})
# The words of fsspec's file system of http for its files.
_HTTP: Mapping[str, str] = {"block_size": "default_block_size", "cache_type": "default_cache_type"}

# What a word means: an option, what is taken apart by words of its own, or options with their values, by the value.
# ``None`` is for a value that means nothing here.
Meaning = str | Mapping[str, Any] | Callable[[Any], Mapping[str, Any] | None]


def _so(*values: Any) -> Meaning:
    """The meaning of a word for what is so here in any case: with these values, or with any value."""
    return lambda value: {} if not values or value in values else None


# The parameters of S3's own calls, as options of a write.
_CALLS: Mapping[str, Meaning] = {
    **{word: row.name for row in WRITE_ROWS.values() for word in row.words("boto3")},
    "ChecksumAlgorithm": lambda value: {"checksum": value.lower() if isinstance(value, str) else value},
    "Expires": lambda value: {
        "expires": format_datetime(value.astimezone(UTC), usegmt=True) if isinstance(value, datetime) else value
    },
    # The bucket encrypts with AES256, or with the key of ``SSEKMSKeyId``, which is an option of writes.
    "ServerSideEncryption": _so("AES256", "aws:kms"),
    "SSECustomerAlgorithm": _so("AES256"),
}
_OF_OBJECTS = frozenset({*WRITE_ROWS, "checksum"}) - {"if_not_exists"}
_WRITE_OPTIONS = _OF_OBJECTS | {"if_match", "if_none_match", "if_not_exists"}
# Words of s3fs, wherever they stand. Regions are options, parts have one size, versions are compared on this side.
_S3: Mapping[str, Meaning] = {
    **dict.fromkeys(("fixed_upload_size", "local_expiry_check", "api_version"), _so()),
    "use_ssl": lambda value: {} if value else {"allow_http": True},
    "verify": lambda value: {"ca_bundle": value} if isinstance(value, str) else {} if value is True else None,
    "cache_regions": lambda value: None if value else {},
}
_S3_CONFIG: Mapping[str, Meaning] = {
    "s3": {"addressing_style": "addressing_style"},
    # There is one way to try again, with a budget of its own. Of these, botocore counts those after the first.
    "retries": {
        "mode": _so(),
        "total_max_attempts": "attempts_max",
        "max_attempts": lambda more: {
            "attempts_max": 1
            + at_least(0, more, "config_kwargs['retries']['max_attempts']", operation="configure", path="")
        },
    },
    "signature_version": _so("s3v4", "v4"),
    "proxies": "proxies",
    "response_checksum_validation": _so("when_required"),  # No checksum of a range is asked for.
    # botocore chooses CRC-32.
    "request_checksum_calculation": lambda when: {"when_required": {}, "when_supported": {"checksum": "crc32"}}.get(
        str(when)
    ),
}
# Options of aiohttp for sessions and requests. URLs are sent as they are given, and no page is searched for links.
_AIOHTTP: Mapping[str, Meaning] = {
    **dict.fromkeys(("encoded", "requote_redirect_url", "simple_links", "same_scheme", "size_policy"), _so()),
    "ssl": _so(True),
    "trust_env": lambda value: {} if value else {"proxies": {}},
    # What its total limits has a time to stall here.
    "timeout": lambda value: (
        {
            "connect_timeout_seconds": value.sock_connect or value.connect,
            "read_timeout_seconds": value.sock_read,
        }
        if hasattr(value, "sock_read")
        else None
    ),
}

# Unknown words whose values may be secrets, such as the keys of another store.
_SENSITIVE = re.compile("key|secret|token|username|passw|credential|auth|sas|headers|proxies|connection_string", re.I)
_NO_SECRETS = frozenset({*WRITE_OPTIONS, *READER_OPTIONS, *_CALLS})
# Secrets that may be bytes.
_CUSTOMER_KEYS = ("sse_customer_key", "SSECustomerKey")
# Options that are asked for keys: sessions of boto3, botocore or aiobotocore, and others.
PROVIDERS = frozenset({"session", "credentials"})
_NESTED = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of one file system: for its operators, for the files it opens, and for its writes."""

    store: dict[str, Any]
    reader: Mapping[str, Any]
    write: dict[str, Any]
    version_aware: bool = False
    check_on_open: bool = False
    is_lenient: bool = False  # As s3fs, which ignores words that neither it nor S3 knows.

    def refuse(self, names: Collection[str], allowed: Iterable[str], *, of: str) -> None:
        """Raise ``ConfigInvalid`` for a word that is not in ``allowed``; warn where s3fs ignores it too."""
        for name in names:
            if not self.is_lenient or name[:1].isupper() or name == "acl":  # s3fs sends parameters of S3's calls.
                raise _unknown(name, "", allowed, of=of)
        if names:
            said = "; ".join(_unknown(name, "", allowed, of=of).message for name in names)
            warnings.warn(f"ignored, as by s3fs: {said}", UserWarning, stacklevel=2)


def _rows_of(scheme: str, *libraries: str) -> Mapping[str, Option]:
    """The options of the stores of a scheme by words of other libraries."""
    rows = store_options(scheme) if scheme else {}
    return {word: row for row in rows.values() for word in row.words(*libraries)}


def _is_secret(name: str, rows: Mapping[str, Option]) -> bool:
    if name in rows:
        return rows[name].kind.is_secret
    return name not in _NO_SECRETS and _SENSITIVE.search(name) is not None


def wrapped(options: Mapping[str, Any], scheme: str = "") -> dict[str, Any]:
    """The options with each secret as a ``Secret``, and what gives keys as a provider: no repr or pickle shows it."""
    found: dict[str, Any] = {}
    rows = {**_rows_of(scheme, "fsspec", "boto3"), **(store_options(scheme) if scheme else {})}
    for name, value in options.items():
        if name in _CUSTOMER_KEYS and isinstance(value, bytes):
            found[name] = Secret(base64.b64encode(value).decode())
        elif name == "auth":
            found[name] = _auth(value)
        elif name in PROVIDERS and value is not None:
            found[name] = _provider(value)
        elif _is_secret(name, rows) and not (name == "token" and isinstance(value, str) and value in _GS_TOKENS):
            found[name] = _hidden(value)
        elif name in _NESTED and isinstance(value, Mapping):
            found[name] = wrapped(value, scheme)
        else:
            found[name] = value
    return found


def _provider(value: Any) -> Any:
    """The provider of keys that is given, or named by its reference. The service refuses anything else."""
    if isinstance(value, str):
        return CredentialsProvider.of_reference(value) or value
    is_asked = any(hasattr(value, name) for name in ("get_credentials", "get_frozen_credentials", "__call__"))
    return CredentialsProvider(value) if is_asked and not isinstance(value, type) else value


def _auth(value: Any) -> Any:
    """A token as a secret, or a user in the clear and a password: as a pair or as aiohttp's ``BasicAuth``."""
    pair = value[:2] if hasattr(value, "login") and hasattr(value, "password") else value
    return (pair[0], _hidden(pair[1])) if isinstance(pair, list | tuple) and len(pair) == 2 else _hidden(value)


def _hidden(value: Any) -> Any:
    """Texts in a value as secrets. ``InvalidType`` for bytes, which no other option takes."""
    if isinstance(value, str | bytes | bytearray):
        return Secret.of(value)  # type: ignore[arg-type]  # It refuses bytes, and does not show them.
    if isinstance(value, Mapping):
        return {name: _hidden(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_hidden, value))
    return value


def mapped(value: Any, change: Any) -> Any:
    """``value`` with each ``Secret`` and provider of keys in it replaced by ``change`` of it."""
    if isinstance(value, Secret | CredentialsProvider):
        return change(value)
    if isinstance(value, Mapping):
        return {name: mapped(item, change) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mapped(item, change) for item in value)
    return value


def settings_of(scheme: str, words: Mapping[str, Any]) -> Settings:
    """Sort and translate the options of a file system over a scheme; ``""`` for one over an operator.

    Raises ``ConfigInvalid`` for a word that means nothing here, and for two words that say different things.
    """
    names = dict(words)
    own = {name: bool(names.pop(name, False)) for name in ("version_aware", "check_on_open")}
    if scheme in ("http", "https"):
        names = _with_one_set_of_headers({_HTTP.get(name, name): value for name, value in names.items()})
    elif scheme == "file":
        names.setdefault("follow_symlinks", True)  # Their root holds all that a link may lead to.
    elif scheme == "gs" and names.get("token") == "anon":
        names.pop("access", None)  # A token has it; there is no token.
    reader = reader_options(names)
    write = {} if scheme else {name: names.pop(name) for name in tuple(names) if name in _OF_OBJECTS}
    settings = Settings(store={}, reader=reader, write=write, is_lenient=scheme == "s3", **own)
    _take(names, _words_of(scheme), scheme, settings)
    return settings


def _words_of(scheme: str) -> Mapping[str, Meaning]:
    """The words for a file system over a scheme, of the libraries of fsspec and of ours, with their meaning."""
    if not scheme:
        return {}
    theirs: dict[str, Meaning] = {word: row.name for word, row in _rows_of(scheme, "fsspec").items()}
    words: dict[str, Meaning] = {**{name: name for name in store_options(scheme)}, **theirs}
    if scheme == "s3":
        client = {**theirs, "endpoint_url": "endpoint_url", **_S3}
        config = {word: row.name for word, row in _rows_of(scheme, "boto3").items()} | {**_S3, **_S3_CONFIG}
        calls = {"RequestPayer": lambda value: {"request_payer": value == "requester"}, **_CALLS}
        calls["SSECustomerKey"] = "sse_customer_key"
        words |= {**_S3, "client_kwargs": client, "config_kwargs": config, "s3_additional_kwargs": calls}
    elif scheme in ("http", "https"):
        words |= {**_AIOHTTP, "client_kwargs": {"auth": "auth", **theirs, **_AIOHTTP}}
    elif scheme == "gs":
        # Objects have no project, a bucket is not made here, and nothing is asked before the first read.
        words |= dict.fromkeys(("project", "default_location", "check_connection"), _so())
        words |= {"requester_pays": lambda value: None if value else {}, "token": _gs_token}
    return words


def _take(
    words: Mapping[str, Any], known: Mapping[str, Meaning], scheme: str, settings: Settings, of: str = ""
) -> None:
    """Set the options for words of one place."""
    for name, value in words.items():
        means = known.get(name)
        if value is None and (of or means is not None):
            continue
        if name == "max_attempts" and words.get("total_max_attempts") is not None:
            continue  # botocore heeds the latter.
        if isinstance(means, Mapping):
            _take(dict(value), means, scheme, settings, f"{of}[{name!r}]" if of else name)
            continue
        found = _meant(means, value)
        if found is None:
            allowed = {*known, *(store_options(scheme) if scheme else ())} - {name}
            raise _unknown(name, scheme, allowed, of=of)
        for option, one in found.items():
            if of == "s3_additional_kwargs" and name in _CALLS:
                settings.write[option] = one
            else:
                _put(settings.store, option, one, name)


def _meant(means: Meaning | None, value: Any) -> Mapping[str, Any] | None:
    return {means: value} if isinstance(means, str) else means(value) if callable(means) else None


def _gs_token(token: Any) -> Mapping[str, Any]:
    """The options for a token of gcsfs."""
    text = token.reveal() if isinstance(token, Secret) else token
    for part in token.values() if isinstance(token, Mapping) else (token,):
        if isinstance(part, Secret) and part.reveal() is None:  # It stayed in another process, which its use says.
            return {"service_account_key": part}
    if isinstance(text, Mapping):
        return {"service_account_key": Secret.of(json.dumps(mapped(text, lambda secret: secret.reveal())))}
    if text == "anon":
        return {"anonymous": True}
    if not isinstance(text, str) or text in _GS_TOKEN_OF_ENVIRONMENT:
        return {}
    if not os.path.isfile(text):
        raise invalid("token must be 'anon', 'google_default', or the path or the contents of a key file")
    return {"service_account": text}


def _with_one_set_of_headers(names: dict[str, Any]) -> dict[str, Any]:
    """The words, with the headers of aiohttp's session merged into its requests."""
    session = dict(names.pop("client_kwargs", None) or {})
    given = [headers for headers in (session.pop("headers", None), names.pop("headers", None)) if headers]
    if all(isinstance(headers, Mapping) for headers in given):
        merged = {name: value for headers in given for name, value in headers.items()}
        # Bytes are asked for as they are stored, in any case.
        given = [{name: value for name, value in merged.items() if str(name).lower() != "accept-encoding"}]
    return {**names, "client_kwargs": session, "headers": given[-1] or None}


def check_no_option_left(names: Mapping[str, Any], settings: Settings) -> None:
    """Refuse an option of neither reads nor writes, which libraries give to one ``open``."""
    strays = [
        name
        for name, value in names.items()
        if name not in {*_WRITE_OPTIONS, *_CALLS} and (value or name not in ("acl", "ACL"))
    ]
    settings.refuse(strays, sorted(READER_OPTIONS | _OF_READS), of="a read")


def reader_options(names: dict[str, Any], *, block_size: Any = None) -> dict[str, Any]:
    """Take the options of files out of ``names``: fsspec's words, and the words of ``Operator.reader``."""
    taken = {name: names.pop(name) for name in tuple(names) if name in READER_OPTIONS - {"block_bytes"}}
    # The last one is dask's, which opens files with it.
    for word in ("default_cache_type", "cache_type", "default_cache"):
        cache = names.pop(word, None)
        if cache is not None:
            if cache not in CACHE_POLICIES:
                known = ", ".join(CACHE_POLICIES)
                raise invalid(f"{word}={cache!r} must be one of {known}")
            taken.setdefault("policy", CACHE_POLICIES[cache])
    for word in ("default_fill_cache", "fill_cache", "cache_options"):
        names.pop(word, None)  # Blocks keep what was read, and the policy says how far ahead that goes.
    size = names.pop("default_block_size", None)
    for block in (block_size, size):
        if block == 0:  # fsspec's word for a stream.
            taken.setdefault("policy", "sequential")
        elif block is not None and block != "default":
            taken.setdefault("block_bytes", block)
    return taken


def write_options(
    names: Mapping[str, Any],
    settings: Settings,
    *,
    allowed: Collection[str] = _WRITE_OPTIONS,
    of: str = "a write",
) -> dict[str, Any]:
    """The options of a write, by our names or S3's; they override the file system's."""
    taken, strays = dict(settings.write), list[str]()
    for name, value in names.items():
        found = _meant(_CALLS.get(name, name), value)
        if name in ("acl", "ACL") and not value:
            continue
        if found is not None and found.keys() <= {*allowed}:
            taken |= found
        else:
            strays.append(name)
    settings.refuse(strays, sorted(allowed), of=of)
    return taken


def _put(store: dict[str, Any], option: str, value: Any, word: str) -> None:
    """Set an option, unless another word has said something else."""
    if value is None or (option == "anonymous" and not value):
        return
    if option in store and store[option] != value:
        raise invalid(f"{word!r} contradicts another word for {option!r}: give one of them")
    store[option] = value


def _unknown(name: str, scheme: str, allowed: Iterable[str], *, of: str = "") -> ConfigInvalid:
    of = of or (f"{scheme}://" if scheme else "a file system over an operator")
    return unknown_option(name, tuple(allowed), of=of, operation="configure")


# --- instances --------------------------------------------------------------------------------------------------------

# Arguments that are fsspec's own.
FSSPEC_OPTIONS = frozenset(
    {
        *("asynchronous", "loop", "batch_size", "skip_instance_cache"),
        *("use_listings_cache", "listings_expiry_time", "listings_max_entries", "max_paths", "pickle_secrets"),
    }
)
# A store of each scheme, to check options and to find the principal without a URL.
_ANY_STORE = {"file": "file:///", "http": "https://host/", "https": "https://host/"}

# The operators of URLs by their recipes, as long as a file system is over them: the same URL leads to that one again.
_of_urls: WeakValueDictionary[Hashable, Operator] = WeakValueDictionary()
_identity: ContextVar[str] = ContextVar("aioprefetch_fsspec_identity", default="")


class Instances(type(AsyncFileSystem)):  # type: ignore[misc]
    """The class of our file system classes: makes their instances, or finds them again."""

    scheme: str

    @property
    def identity(cls) -> str:
        """The store and principal of the instance that is being made. fsspec takes it for an attribute of the class."""
        return _identity.get()

    @frameless
    def __call__(cls, op: Any = None, **options: Any) -> Any:
        """The instance for these options and the principal that they mean now."""
        options = wrapped(apply_config(cls, options), cls.scheme)
        if op is not None:
            options["op"] = operator_from(op, options)
        # An instance is found by this as well, and an invalid option is found out here.
        token = _identity.set(identity_of(cls.scheme, options))
        try:
            return super().__call__(**options)
        finally:
            _identity.reset(token)


def operator_from(op: Any, options: dict[str, Any]) -> Operator:
    """The operator that the argument ``op`` stands for: itself, its name in JSON, or a URL with its options."""
    if isinstance(op, Operator):
        return op
    if isinstance(op, BlockingOperator):
        return op.operator
    if isinstance(op, str) and is_reference(op):
        return operator_of(op)
    if isinstance(op, str):
        scheme = op.partition("://")[0]
        scheme = "s3" if scheme == "s3a" else scheme
        words = {name: options.pop(name) for name in tuple(options) if name not in FSSPEC_OPTIONS}
        settings = settings_of(scheme, words)
        options |= {**settings.reader, **settings.write}
        options |= {"version_aware": settings.version_aware, "check_on_open": settings.check_on_open}
        operator = Operator.from_uri(op, **settings.store)
        key = family_key(operator.service, operator.layers, operator.options)
        return operator if key is None else _of_urls.setdefault(key, shared_copy(operator) or operator)
    raise invalid(f"op must be an Operator, or a URL such as s3://bucket/prefix, not {type(op).__name__}")


def file_system_settings(scheme: str, options: Mapping[str, Any]) -> Settings:
    """The settings in the arguments of a file system. Raises ``ConfigInvalid``."""
    words = {name: value for name, value in options.items() if name not in FSSPEC_OPTIONS and name != "op"}
    return settings_of("" if options.get("op") is not None else scheme, words)


def identity_of(scheme: str, options: Mapping[str, Any]) -> str:
    """A text that differs for different stores and principals, as they are now. It reveals no secret."""
    settings = file_system_settings(scheme, options)
    operator = options.get("op")
    if operator is not None:
        return reference_of(operator)
    if not scheme:
        raise invalid(
            "aioprefetch:// needs an operator: op=Operator(...); a URL with its store begins with aioprefetch+s3://"
        )
    operator = Operator.from_uri(_ANY_STORE.get(scheme, f"{scheme}://store"), **settings.store)
    key = family_key(operator.service, operator.layers, operator.options)
    if key is not None:
        return repr(key)
    # Something in it cannot be compared. The instance keeps it, so that its id is not used again meanwhile.
    return repr(sorted((name, id(value)) for name, value in options.items()))


def portable(options: Mapping[str, Any], *, with_secrets: bool) -> dict[str, Any]:
    """Options as they are pickled: secrets by reference, or as they are."""
    return dict(mapped(options, _revealed)) if with_secrets else dict(options)


def as_json(options: Mapping[str, Any], *, with_secrets: bool) -> dict[str, Any]:
    """Options of plain values: an operator and secrets by their names in this process, or secrets as they are."""
    plain = dict(mapped(options, _revealed if with_secrets else _named))
    plain |= {name: _named(value) for name, value in plain.items() if isinstance(value, CredentialsProvider)}
    if "op" in plain:
        plain["op"] = reference_of(plain["op"])
    return plain


def _named(secret: Secret | CredentialsProvider) -> str:
    return secret.reference


def _revealed(secret: Secret | CredentialsProvider) -> Any:
    if isinstance(secret, CredentialsProvider):
        return secret  # It travels by its name, if it has one.
    return (secret.reveal() if secret.is_literal else None) or secret.reference
