"""Secrets that do not leak: hidden in every repr and log, and replaced by a reference in every pickle.

A ``Secret`` is a literal, or the name of an environment variable (``env:NAME``) that is looked up when it is used.
A pickled literal carries a random reference instead of its value: it is found again in the same process and in its
forks, and nowhere else. There ``reveal`` returns ``None`` and ``known`` fails: nothing else stands in for it.
``reference`` is the same as text, for what is written as JSON.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import re
import sys
import traceback
import weakref
from collections.abc import Callable, Coroutine, Iterable
from functools import lru_cache
from typing import Any, ParamSpec, Protocol, TypeVar

from aioprefetch.errors import (
    ConfigInvalid,
    Error,
    InvalidType,
    PermissionDenied,
    ProtocolError,
    Unexpected,
    UntrustedMetadata,
    redact,
)

P = ParamSpec("P")
T = TypeVar("T")

_literals: dict[str, str] = {}
_ENVIRONMENT = "env:"
_LITERAL = re.compile(r"literal:[0-9a-f]{32}")
_PROVIDER = "provider:"
_process_key = os.urandom(32)
# Providers of keys that were pickled here, by their tokens; and the tokens of live ones.
_providers: dict[str, Any] = {}
_tokens: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def drop_frames(error: BaseException) -> None:
    """Take the tracebacks from an error, and from what it was caused by."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        if link.__suppress_context__:
            link.__context__ = None
        link = link.__cause__ or link.__context__


def hide_frames(error: BaseException) -> None:
    """Take the frames in which it arose from an error of what a caller asked for, before a plain ``raise``.

    A notebook prints all of them, and none helps to mend a wrong key. Python's development mode (``-X dev``) keeps
    them, and errors of a store that breaks its protocol stay.
    """
    is_of_store = isinstance(error, ProtocolError | Unexpected | UntrustedMetadata)
    if isinstance(error, Error) and error.status == "permanent" and not is_of_store and not sys.flags.dev_mode:
        drop_frames(error)


def hiding_frames(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """A coroutine function whose errors have no frame below it, as by ``hide_frames``."""

    @functools.wraps(verb)
    async def hiding(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await verb(*args, **kwargs)
        except Error as error:
            hide_frames(error)
            raise

    return hiding


def bare(error: Error, given: Iterable[object]) -> None:
    """Take its frames from an error that refuses what a call was given, or where a URL among that has a secret."""
    # Tools print the variables of all frames of a traceback. Values of these classes are never accepted.
    if isinstance(error, ValueError | TypeError) or any(isinstance(one, str) and redact(one) != one for one in given):
        drop_frames(error)


def frameless(call: Callable[P, T]) -> Callable[P, T]:
    """A call that may be given secrets, whose errors are ``bare``."""

    @functools.wraps(call)
    def refusing(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return call(*arguments, **options)
        except Error as error:
            bare(error, (*arguments, *options.values()))
            raise  # Which adds no frame: this one holds the arguments.

    return refusing


class Secret:
    """One secret value. Compare and hash by reference and value; never print."""

    __slots__ = ("_reference", "_value")

    def __init__(self, text: str) -> None:
        is_reference = text.startswith(_ENVIRONMENT) or _LITERAL.fullmatch(text) is not None
        self._value: str | None = None if is_reference else text
        self._reference = text if is_reference else ""

    @classmethod
    def of(cls, text: str | Secret | None) -> Secret | None:
        """``text`` as a secret: ``None`` for ``None`` and ``""``, and a secret unchanged."""
        if isinstance(text, Secret):
            return text
        if text is not None and not isinstance(text, str):
            raise InvalidType(f"a secret must be a string, not {type(text).__name__}", operation="configure")
        return cls(text) if text else None

    @property
    def is_literal(self) -> bool:
        """Whether the value was given as such, and not as the name of a variable."""
        return not self._reference.startswith(_ENVIRONMENT)

    def reveal(self) -> str | None:
        """The value, ``None`` if the variable is not set or the literal stayed in another process."""
        if not self.is_literal:
            return os.environ.get(self._reference[len(_ENVIRONMENT) :])
        if self._value is None:
            self._value = _literals.get(self._reference)
        return self._value

    def known(self, option: str, remedy: str = "") -> str:
        """The value, or an error that names the option and what would help; ``remedy`` is another way.

        Raises ``PermissionDenied`` for a literal that stayed in another process, and ``ConfigInvalid`` for a variable
        that is not set.
        """
        value = self.reveal()
        if value is not None:
            return value
        if not self.is_literal:
            raise ConfigInvalid(f"{option} is {self._reference!r}, but that environment variable is not set")
        raise PermissionDenied(
            f"{option} was given as text, and stayed in the process that pickled this operator: give it as 'env:NAME' "
            f"and set that variable here{remedy}"
        )

    def fingerprint(self) -> str:
        """A digest that distinguishes secrets without revealing them, for cache namespaces.

        It is stored with cached data, and a secret may be a password that a person made up. So the digest is slow to
        compute, which makes guessing slow. It is computed once for each value in a process.
        """
        value = self.reveal()
        return _slow_digest(value) if value else self._reference or "none"

    def digest_here(self) -> str:
        """A digest of the value as it is now, by which this process alone tells secrets apart."""
        kind, text = self._identity()
        return hashlib.blake2b(f"{kind}{text}".encode("utf-8", "surrogateescape"), key=_process_key).hexdigest()

    def __repr__(self) -> str:
        return f"Secret({'***' if self.is_literal else self._reference})"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[bool, str]:
        # Without their values, two secrets are equal only if they have the same reference.
        return self.is_literal, self.reveal() or self._reference

    @property
    def reference(self) -> str:
        """A name without the value, from which ``Secret(reference)`` makes this secret again in this process."""
        if self.is_literal:
            if not self._reference:
                import secrets

                self._reference = f"literal:{secrets.token_hex(16)}"
            if self._value is not None:
                _literals[self._reference] = self._value
        return self._reference

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self.reference,)


class CredentialsProvider:
    """An object that a caller gave to be asked for keys: a session of a library, or a function. Never print its keys.

    It is compared by the object: two of one session are equal. A pickle holds a random ``token`` in its place, by which
    it is found again in the same process and its forks, and a function of a module by its name, everywhere. In other
    processes ``given`` is ``None`` otherwise, and ``known`` fails.
    """

    __slots__ = ("given", "token")

    def __init__(self, given: Any, token: str = "") -> None:
        self.given = given
        self.token = token or _token_of(given)

    @classmethod
    def of_reference(cls, text: str) -> CredentialsProvider | None:
        """The provider of a ``reference``; ``None`` for another text."""
        token = text.removeprefix(_PROVIDER)
        return None if token == text else cls(_providers.get(token), token)

    @property
    def reference(self) -> str:
        """A name as text, by which ``of_reference`` finds the provider again in this process and its forks."""
        if self.given is not None:
            _providers[self.token] = self.given
        return f"{_PROVIDER}{self.token}"

    def known(self, remedy: str = "") -> Any:
        """The object itself. Raises ``PermissionDenied`` if it stayed in another process; ``remedy`` is another way."""
        if self.given is None:
            raise PermissionDenied(
                "credentials= stayed in the process that pickled this operator: give a function of a module, which is "
                f"found by its name, or keys as 'env:NAME' and set these variables here{remedy}"
            )
        return self.given

    def __repr__(self) -> str:
        given = self.given
        name = getattr(given, "__qualname__", None) or type(given).__qualname__
        return f"CredentialsProvider({'left behind' if given is None else name})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CredentialsProvider) and self.token == other.token

    def __hash__(self) -> int:
        return hash(self.token)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.given is not None:
            _providers[self.token] = self.given
        return _provider_of, (self.token, self.given if _has_name(self.given) else None)


def _provider_of(token: str, function: Any) -> CredentialsProvider:
    return CredentialsProvider(_providers.get(token, function), token)


def _token_of(given: Any) -> str:
    """A random name of an object, the same for as long as it lives where it can be looked up."""
    token = os.urandom(8).hex()
    try:
        return _tokens.setdefault(given, token)
    except TypeError:  # It has no hash, or no weak reference.
        return token


def _has_name(given: Any) -> bool:
    """Whether an object is found in its module by its name, so that a pickle holds the name alone."""
    found: Any = sys.modules.get(getattr(given, "__module__", None) or "")
    for part in (getattr(given, "__qualname__", None) or "<none>").split("."):
        found = getattr(found, part, None)
    return found is given and given is not None


def digest(*parts: str) -> str:
    """A digest of a name that is not a secret, such as the identifier of an access key."""
    hashed = hashlib.blake2b(key=b"aioprefetch principal", digest_size=8)
    for part in parts:
        data = part.encode("utf-8", "surrogateescape")
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()


@lru_cache(maxsize=256)
def _slow_digest(value: str) -> str:
    data = value.encode("utf-8", "surrogateescape")
    return hashlib.scrypt(data, salt=b"aioprefetch fingerprint", n=1 << 12, r=8, p=1, dklen=8).hex()


class Scrubber(Protocol):
    """Removes the secrets of one client from a text."""

    def without_secrets(self, text: str) -> str:
        """The text without these secrets."""


class RedactingFilter(logging.Filter):
    """Removes credentials from the log lines of a library: in URLs, in headers, and where clients name them."""

    def __init__(self) -> None:
        super().__init__()
        # Without a lock, which a fork might leave locked: each operation is one step of the interpreter.
        self._scrubbers: weakref.WeakValueDictionary[int, Scrubber] = weakref.WeakValueDictionary()

    def add(self, scrubber: Scrubber) -> None:
        """Remove the secrets of a client too, for as long as the client lives."""
        self._scrubbers[id(scrubber)] = scrubber

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact a record. It is never dropped."""
        try:
            text = record.getMessage()
        except Exception:  # The handler reports a record that cannot be formatted, without its arguments.
            text = str(record.msg)
        record.msg, record.args = self._clean(text), None
        if record.exc_info:
            # The text remains. The exception holds the request, and so do the variables of its frames.
            record.exc_text = self._clean("".join(traceback.format_exception(*record.exc_info)).rstrip())
            record.exc_info = None
        return True

    def _clean(self, text: str) -> str:
        for reference in self._scrubbers.valuerefs():
            scrubber = reference()
            if scrubber is not None:
                text = scrubber.without_secrets(text)
        return redact(text)
