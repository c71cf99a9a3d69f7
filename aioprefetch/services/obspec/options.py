"""The options of the service over a store of obspec, their checks, and the traits of that store.

Its capability, identity and principal are found from its methods and configuration. obspec's protocols are structural:
a store implements ``GetAsync`` by having ``get_async``. They do not tell which options of a method a store obeys; where
that matters obstore's own stores are known by name, of others it is assumed that they obey all but versions.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, Error, redact
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import Size, Text, invalid
from aioprefetch.ranges import ByteCount
from aioprefetch.runtime.runtime import fork_generation
from aioprefetch.services.keys import checked_prefix, is_directory_bucket
from aioprefetch.values import Capability, ServiceInfo

PART_BYTES = Size(5 << 20, 1 << 30)
_NAME = Text(may_be_empty=True)


class CloudFactory:
    """A function that makes a store, with its ``scheme``. It pickles by its fields, without secrets."""

    __slots__ = ()
    scheme: str


@dataclass(frozen=True, slots=True, eq=False, init=False)
class ObspecOptions:
    """The fields of the recipe ``ObspecStore``, which documents them. Raises ``ConfigInvalid`` for other objects."""

    store: Any = field(repr=False)
    name: str
    prefix: str
    principal: str
    part_bytes: int
    _capability: Capability | None = field(repr=False)
    # Identifies a store without a known identity. A copy in another process has the same value.
    _random: str = field(repr=False)
    _made: list[tuple[int, Any]] = field(repr=False)

    def __init__(
        self,
        store: Any,
        *,
        name: str = "",
        prefix: str = "",
        principal: str = "",
        capability: Capability | None = None,
        part_bytes: ByteCount = 8 << 20,
    ) -> None:
        keep = object.__setattr__
        keep(self, "store", store)
        keep(self, "name", _NAME.checked(name, "name"))
        keep(self, "principal", _NAME.checked(principal, "principal"))
        if "//" in (prefix := checked_prefix(prefix)):
            raise invalid(f"prefix={prefix!r} has an empty segment")
        keep(self, "prefix", prefix)
        if capability is not None and not isinstance(capability, Capability):
            raise invalid(f"capability must be an aioprefetch.Capability, not {capability!r}")
        keep(self, "_capability", capability)
        keep(self, "part_bytes", PART_BYTES.checked(part_bytes, "part_bytes"))
        keep(self, "_random", secrets.token_hex(8))
        keep(self, "_made", [])
        if not _is_store(store) and not callable(store):
            raise _no_store(store)

    @property
    def is_factory(self) -> bool:
        """Whether ``store`` is a function that makes a store."""
        return not _is_store(self.store)

    def _any_store(self) -> Any:
        """The store to inspect: the given one, or one made in this process."""
        if not self.is_factory:
            return self.store
        if not self._made or self._made[0][0] != fork_generation():
            self._made[:] = [(fork_generation(), self.make())]
        return self._made[0][1]

    def make(self) -> Any:
        """A store made by the factory. Raises ``ConfigInvalid`` if that fails."""
        try:
            store = self.store()
        except Error as error:
            error.add_context(operation="configure")
            raise
        except Exception as error:
            raise invalid(f"the function that makes the store raised {type(error).__name__}") from error
        if not _is_store(store):
            raise _no_store(store)
        return store

    @property
    def info(self) -> ServiceInfo:
        store = self._any_store()
        name, endpoint, region = place_of(store)
        return ServiceInfo(
            scheme=self.store.scheme if isinstance(self.store, CloudFactory) else "obspec",
            name=self.name or name or f"private-{self._random}",
            root=self.prefix,
            endpoint=endpoint,
            region=region,
            principal=self.principal or principal_of(store) or f"private-{self._random}",
        )

    @property
    def capability(self) -> Capability:
        return self._capability or capability_of(self._any_store())


def _is_store(store: Any) -> bool:
    return not isinstance(store, type) and (has(store, "get_async") or has(store, "put_async"))


def _no_store(value: object) -> ConfigInvalid:
    return invalid(
        f"a {type(value).__name__} is not a store of obspec: it has neither get_async nor put_async. Give a store, or "
        "a function that makes one"
    )


# --- traits -----------------------------------------------------------------------------------------------------------

OBSTORE_KINDS = ("S3Store", "AzureStore", "GCSStore", "HTTPStore", "LocalStore", "MemoryStore")
_READS = (
    *("read", "read_range", "read_if_match", "read_if_none_match"),
    *("read_if_modified_since", "read_if_unmodified_since"),
)
_SIGNING = ("S3Store", "AzureStore", "GCSStore")
_SENSITIVE = re.compile(r"auth|cookie|tok|secret|pass|cred|sign|sess|key|jwt|bearer|sas", re.IGNORECASE)
# obstore takes missing settings from the variables of these names.
VARIABLES = {"S3Store": "AWS_", "AzureStore": "AZURE_", "GCSStore": "GOOGLE_"}
# A shorter text may occur in a message by chance, and is not treated as a secret.
_SECRET_LENGTH_MIN = 4


def has(store: Any, method: str) -> bool:
    """Whether a store has a method of that name."""
    return callable(getattr(store, method, None))


def kind_of(store: Any) -> str:
    """The name of obstore's class that a store is an instance of, ``""`` for a store from elsewhere."""
    for cls in type(store).__mro__:
        if cls.__module__.partition(".")[0] == "obstore" and cls.__name__ in OBSTORE_KINDS:
            return cls.__name__
    return ""


def describes_by_get(store: Any) -> bool:
    """Whether ``get_async`` with ``head`` sends no body, and all attributes: obstore's stores, and who says so."""
    return bool(kind_of(store)) or getattr(store, "describes_by_get", False) is True


def config_of(store: Any) -> dict[str, Any]:
    """The reported configuration of an obstore store, including its secrets; empty for any other store."""
    config = getattr(store, "config", None) if kind_of(store) else None
    return dict(config) if isinstance(config, dict) else {}


def lists_by_chunks(store: Any) -> bool:
    """Whether long listings are taken as they come, since they have an order. Others are held whole, and sorted."""
    is_special = is_directory_bucket(str(config_of(store).get("bucket", "")))
    return kind_of(store) in ("S3Store", "AzureStore", "GCSStore", "MemoryStore") and not is_special


def capability_of(store: Any) -> Capability:
    """The capability of the service over this store."""
    kind = kind_of(store)
    reads, writes = has(store, "get_async"), has(store, "put_async")
    lists_deep = has(store, "list_async")
    return Capability(
        **dict.fromkeys(_READS, reads),
        read_suffix=reads and kind != "AzureStore",
        # Stores without versions ignore the option and send the newest object.
        read_version=reads and kind in _SIGNING,
        stat=reads or has(store, "head_async"),
        list=lists_deep or has(store, "list_with_delimiter_async"),
        list_recursive=lists_deep,
        # Azure's order is by directories where it has a hierarchical namespace.
        list_ordered=lists_deep and kind != "AzureStore",
        list_start_after=lists_deep or has(store, "list_with_delimiter_async"),
        write=writes,
        write_stream=writes,
        # GCS wants a generation instead of an ETag; the other two have no conditional replacing.
        write_if_match=writes and kind not in ("GCSStore", "HTTPStore", "LocalStore"),
        write_if_not_exists=writes and kind != "HTTPStore",
        write_content_type=writes and kind != "LocalStore",
        write_user_metadata=writes and kind not in ("HTTPStore", "LocalStore"),
        # LocalStore makes a hard link: what is then changed in place is changed under both names.
        copy=has(store, "copy_async") and kind != "LocalStore",
        # S3Store refuses it unless its own option says how.
        copy_if_not_exists=has(store, "copy_async")
        and kind != "LocalStore"
        and (kind != "S3Store" or "copy_if_not_exists" in config_of(store)),
        delete=has(store, "delete_async"),
        delete_paths_max=1000 if has(store, "delete_async") else 1,
        presign=kind in _SIGNING and _can_sign(config_of(store)),
    )


def _can_sign(config: dict[str, Any]) -> bool:
    # A shared access signature is one itself, and no key to make others with.
    return "sas_key" not in config and str(config.get("skip_signature", "")).lower() != "true"


def place_of(store: Any) -> tuple[str, str, str]:
    """Name, endpoint and region of an obstore store; three empty texts if the store reports nothing."""
    kind, config = kind_of(store), config_of(store)
    prefix = str(getattr(store, "prefix", None) or "")
    if kind == "LocalStore":
        return prefix or "/", "local", ""
    if kind == "HTTPStore":
        return redact(str(store.url)), "http", ""
    container = config.get("bucket") or config.get("container_name") or ""
    if not container:
        return "", "", ""
    name = f"{container}/{prefix.strip('/')}" if prefix.strip("/") else str(container)
    endpoint = config.get("endpoint") or config.get("account_name") or kind.removesuffix("Store").lower()
    return name, redact(str(endpoint)), str(config.get("region", ""))


def principal_of(store: Any) -> str | None:
    """A digest of the configuration of a store; ``None`` if that does not identify the principal.

    The configuration of obstore's stores holds their keys, so that two tenants of one bucket have two digests. The
    stores do not report settings from the environment, so the variables that they read are part of it.
    """
    if kind_of(store) in ("", "MemoryStore") or getattr(store, "credential_provider", None) is not None:
        return None
    parts = [f"{name}={value}" for name, value in sorted(config_of(store).items())]
    parts += [f"{name}: {value!r}" for name, value in sorted(_headers_of(store).items())]
    parts += [f"{name}={value}" for name, value in sorted(_variables_of(store).items())]
    parts.append(str(getattr(store, "url", "")))
    # It is stored with cached objects, and made from secrets too, so the digest is slow to guess by.
    return Secret(repr(parts)).fingerprint()


def known_secrets(store: Any) -> Iterator[str]:
    """The secret values in the configuration that the store reports, the longest first."""
    yield from sorted(set(_secret_values(store)), key=len, reverse=True)


def _secret_values(store: Any) -> Iterator[str]:
    configured = {**_variables_of(store), **config_of(store)}
    values = [str(value) for name, value in configured.items() if _SENSITIVE.search(name)]
    headers = _headers_of(store).values()
    values += [value.decode("latin-1") if isinstance(value, bytes) else str(value) for value in headers]
    for text in (str(getattr(store, "url", "")), str(_client_options(store).get("proxy_url", ""))):
        parts = urlsplit(text)
        values += [parts.query, parts.password or ""]
    for value in tuple(values):  # A shared access signature is a query: its parts are secrets too.
        values += [part for _, part in parse_qsl(value)] + [pair.partition("=")[2] for pair in value.split("&")]
    yield from (value for value in values if len(value) >= _SECRET_LENGTH_MIN)


def _variables_of(store: Any) -> Mapping[str, str]:
    prefix = VARIABLES.get(kind_of(store))
    return {name: value for name, value in os.environ.items() if name.startswith(prefix)} if prefix else {}


def _client_options(store: Any) -> Mapping[str, Any]:
    options = getattr(store, "client_options", None) if kind_of(store) else None
    return options if isinstance(options, Mapping) else {}


def _headers_of(store: Any) -> Mapping[str, Any]:
    headers = _client_options(store).get("default_headers")
    return headers if isinstance(headers, Mapping) else {}
