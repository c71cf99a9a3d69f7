"""Instances of file systems: one for each principal, options as references, and how they travel.

fsspec keeps instances by a digest of the text of their arguments. Text is not enough here: an operator's names no
principal, and without keys in the arguments the principal is that of the environment, which may change. So what a
store and a principal are *now* is a part of the digest.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextvars import ContextVar
from typing import Any
from weakref import WeakValueDictionary

from fsspec.asyn import AsyncFileSystem
from fsspec.config import apply_config

from aioprefetch.credentials import CredentialsProvider, Secret
from aioprefetch.errors import ConfigInvalid
from aioprefetch.fsspec.words import Settings, mapped, settings_of, wrapped
from aioprefetch.operator.family_key import family_key
from aioprefetch.operator.operator import Operator
from aioprefetch.operator.shared import is_reference, operator_of, reference_of, shared_twin
from aioprefetch.sync import BlockingOperator

# Arguments that are fsspec's own.
FSSPEC_OPTIONS = frozenset(
    {
        *("asynchronous", "loop", "batch_size", "skip_instance_cache"),
        *("use_listings_cache", "listings_expiry_time", "max_paths", "pickle_secrets"),
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

    def __call__(cls, op: Any = None, **options: Any) -> Any:
        """The instance for these options and the principal that they mean now."""
        options = wrapped(apply_config(cls, options))
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
        if settings.version_aware:
            options["version_aware"] = True
        operator = Operator.from_uri(op, **settings.store)
        key = family_key(operator.service, operator.layers, operator.options)
        return operator if key is None else _of_urls.setdefault(key, shared_twin(operator) or operator)
    raise ConfigInvalid(
        f"op must be an Operator, or a URL such as s3://bucket/prefix, not {type(op).__name__}", operation="configure"
    )


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
        raise ConfigInvalid(
            "aioprefetch:// needs an operator: op=Operator(...); a URL with its store begins with aioprefetch+s3://",
            operation="configure",
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
