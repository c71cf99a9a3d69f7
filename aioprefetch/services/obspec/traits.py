"""What a store can do, found from the methods that it has. Pure, no I/O.

obspec's protocols are structural: a store implements ``GetAsync`` by having ``get_async``. They do not tell which
options of a method a store obeys; where that matters obstore's own stores are known by name, of others it is assumed
that they obey all but versions.
"""

from __future__ import annotations

from typing import Any, Literal

from aioprefetch.values import Capability

OBSTORE_KINDS = ("S3Store", "AzureStore", "GCSStore", "HTTPStore", "LocalStore", "MemoryStore")
_SIGNING = ("S3Store", "AzureStore", "GCSStore")

# ``keys``: that of keys, for sure. ``unknown``: perhaps, and pages may be taken from it as it comes.
Order = Literal["keys", "unknown", "none"]


def has(store: Any, method: str) -> bool:
    """Whether a store has a method of that name."""
    return callable(getattr(store, method, None))


def kind_of(store: Any) -> str:
    """The name of obstore's class that a store is an instance of, ``""`` for a store from elsewhere."""
    for cls in type(store).__mro__:
        if cls.__module__.partition(".")[0] == "obstore" and cls.__name__ in OBSTORE_KINDS:
            return cls.__name__
    return ""


def config_of(store: Any) -> dict[str, Any]:
    """The configuration that an obstore store tells, its secrets among it; empty for any other."""
    config = getattr(store, "config", None) if kind_of(store) else None
    return dict(config) if isinstance(config, dict) else {}


def order_of(store: Any) -> Order:
    """In which order a long listing comes."""
    kind = kind_of(store)
    if kind == "AzureStore":  # With a hierarchical namespace the order is that of directories.
        return "unknown"
    express = str(config_of(store).get("bucket", "")).endswith("--x-s3")  # S3 Express lists in no order.
    return "keys" if kind in ("S3Store", "GCSStore", "MemoryStore") and not express else "none"


def capability_of(store: Any) -> Capability:
    """What the service over this store can do."""
    kind = kind_of(store)
    reads, writes = has(store, "get_async"), has(store, "put_async")
    lists_deep = has(store, "list_async")
    return Capability(
        read=reads,
        read_range=reads,
        read_suffix=reads and kind != "AzureStore",
        read_if_match=reads,
        read_if_none_match=reads,
        # Stores without versions ignore the option and send what is newest.
        read_version=reads and kind in _SIGNING,
        stat=reads or has(store, "head_async"),
        list=lists_deep or has(store, "list_with_delimiter_async"),
        list_recursive=lists_deep,
        list_start_after=lists_deep or has(store, "list_with_delimiter_async"),
        write=writes,
        write_stream=writes,
        # GCS wants a generation instead of an ETag; the other two have no conditional replacing.
        write_if_match=writes and kind not in ("GCSStore", "HTTPStore", "LocalStore"),
        write_if_not_exists=writes and kind != "HTTPStore",
        write_content_type=writes and kind != "LocalStore",
        write_user_metadata=writes and kind not in ("HTTPStore", "LocalStore"),
        copy=has(store, "copy_async"),
        delete=has(store, "delete_async"),
        delete_paths_max=1000 if has(store, "delete_async") else 1,
        presign=kind in _SIGNING and _can_sign(config_of(store)),
    )


def _can_sign(config: dict[str, Any]) -> bool:
    # A shared access signature is one itself, and no key to make others with.
    return "sas_key" not in config and str(config.get("skip_signature", "")).lower() != "true"
