"""The keys that sign: from the recipe or its provider, the variables and files of AWS, or from botocore's providers.

Static keys in options, variables and files are read without botocore. For the rest (roles, SSO, processes, web
identities, the metadata of a machine or container) botocore's own chain is asked, on a thread and a loop of its own.

A provider that the caller gives is a session of boto3, botocore or aiobotocore, credentials, or a function. A function
has no parameters and returns keys, or an awaitable of them, in the words of botocore (``access_key``, ``secret_key``,
``token``), of AWS (``AccessKeyId``, ``SecretAccessKey``, ``SessionToken``, ``Expiration``), or of obstore
(``access_key_id``, ``secret_access_key``, ``token``, ``expires_at``). What blocks runs on a thread.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from aioprefetch.credentials import CredentialsProvider, RedactingFilter, Scrubber, Secret
from aioprefetch.errors import (
    Closed,
    ConfigInvalid,
    Error,
    MissingDependency,
    PermissionDenied,
    TimedOut,
    copy_of,
    redact,
)
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.environment import Ambient, keys_in_files
from aioprefetch.services.s3.errors import Explainer, Reported
from aioprefetch.services.s3.options import S3Options, are_credentials, is_session
from aioprefetch.services.s3.sigv4 import AccessKeys
from aioprefetch.values import Request

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs ``make`` in the background, once for all who ask meanwhile.

    A cancelled caller does not end it for the others. A failure is raised by all of them, and the next call begins
    again; so does a call after a success.
    """

    def __init__(self, runtime: Runtime, make: Callable[[], Awaitable[T]], name: str) -> None:
        self._runtime = runtime
        self._make = make
        self._name = name
        self._running: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """The result. Raises what ``make`` raises, and ``Closed`` if the runtime is closed first."""
        running = self.start()
        try:
            return await asyncio.shield(running)
        except Error as error:
            # Every waiter gets a copy, to which its operation and path are added.
            raise copy_of(error) from error.__cause__
        finally:
            del running  # The traceback of its error holds this frame.

    def start(self) -> asyncio.Future[T]:
        """The result in the making, begun now unless it was begun before."""
        if self._running is not None:
            return self._running
        if self._runtime.closed:
            raise Closed("the operator is closed")
        running: asyncio.Future[T] = self._runtime.loop.create_future()
        self._running = running
        self._runtime.supervisor.spawn(self._run(running), name=self._name, on_end=lambda: self._end(running))
        return running

    async def _run(self, running: asyncio.Future[T]) -> None:
        try:
            result = await self._make()
        except Exception as error:
            _fail(running, error.with_traceback(None))
        else:
            running.set_result(result)

    def _end(self, running: asyncio.Future[T]) -> None:
        self._running = None
        if not running.done():
            _fail(running, Closed("the operator was closed before its first request was sent"))


def _fail(running: asyncio.Future[Any], error: Exception) -> None:
    running.set_exception(error)
    running.exception()  # Retrieved, even if every waiter is gone.


# --- keys of a provider -----------------------------------------------------------------------------------------------

_KEY_ID_NAMES = ("access_key_id", "AccessKeyId", "access_key", "aws_access_key_id")
_SECRET_NAMES = ("secret_access_key", "SecretAccessKey", "secret_key", "aws_secret_access_key")
_TOKEN_NAMES = ("session_token", "SessionToken", "token", "Token", "aws_session_token")
_END_NAMES = ("expires_at", "Expiration", "expiration", "expiry_time")


class GivenKeys:
    """The keys of one provider within a runtime: ``ask`` as often as needed."""

    def __init__(self, provider: CredentialsProvider, runtime: Runtime) -> None:
        self._provider = provider
        self._runtime = runtime
        self._credentials: Any = None
        self._end: datetime | None = None
        self._life_seconds = 0.0

    async def ask(self) -> AccessKeys:
        """The keys as they are now. Raises ``PermissionDenied`` for a provider that has none, or that fails.

        Where it fails with an ``OSError`` another attempt may help. Errors of botocore are raised as they are.
        """
        given = self._provider.known(FALLBACK)
        try:
            found = given
            if is_session(given):
                found = await self._called(given.get_credentials)
            elif not are_credentials(given):
                found = await self._called(given)
            self._credentials = found if are_credentials(found) else None
            if self._credentials is not None:
                found = await self._called(found.get_frozen_credentials)
        except Error:
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("botocore", "aiobotocore"):
                raise  # It is explained as all of theirs are.
            raise PermissionDenied(
                f"the provider of credentials, {self._provider!r}, raised {type(error).__name__}",
                status="temporary" if isinstance(error, OSError) else "permanent",
            ) from Reported(f"{type(error).__qualname__}: {redact(str(error))}")
        if found is None:
            raise PermissionDenied(f"the provider of credentials, {self._provider!r}, has none")
        self._end = None if self._credentials is not None else _end_of(found)
        if self._end is not None:
            self._life_seconds = (self._end - datetime.now(UTC)).total_seconds()
        return keys_of(found)

    def is_ending(self, within_seconds: int) -> bool:
        """Whether the keys end within this time, or within half of their life. Those without an end never do."""
        is_needed = getattr(self._credentials, "refresh_needed", None)
        if is_needed is not None:
            return bool(is_needed(within_seconds))
        if self._end is None:
            return False
        return (self._end - datetime.now(UTC)).total_seconds() < min(within_seconds, self._life_seconds / 2)

    async def _called(self, call: Callable[[], Any]) -> Any:
        """The result of code of the caller: on the loop where it is asynchronous, else on a thread."""
        is_asynchronous = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)  # noqa: B004 - whether it is a coroutine function, not whether it is there
        )
        result = call() if is_asynchronous else await self._runtime.run_blocking(call)
        return await result if inspect.isawaitable(result) else result


def keys_of(found: Any) -> AccessKeys:
    """Keys in any of the three forms. Raises ``ConfigInvalid``, which names what is missing and shows nothing."""
    key_id, secret, token = (_value(found, names) for names in (_KEY_ID_NAMES, _SECRET_NAMES, _TOKEN_NAMES))
    for name, value in (("access_key_id", key_id), ("secret_access_key", secret)):
        if not isinstance(value, str) or not value:
            raise ConfigInvalid(f"the provider of credentials returned a {type(found).__name__} without {name}")
    if token is not None and not isinstance(token, str):
        raise ConfigInvalid(f"the provider of credentials returned a token that is a {type(token).__name__}")
    return AccessKeys(key_id, secret, token or None)


def _end_of(found: Any) -> datetime | None:
    end = _value(found, _END_NAMES)
    if isinstance(end, str):
        try:
            end = datetime.fromisoformat(end)
        except ValueError:
            end = ""
    if end is None or (isinstance(end, datetime) and end.tzinfo is not None):
        return end
    raise ConfigInvalid(
        "the provider of credentials returned an invalid end: expires_at must be a datetime with a time zone"
    )


def _value(found: Any, names: tuple[str, ...]) -> Any:
    if isinstance(found, Mapping):
        inside = found.get("Credentials")  # As STS responds.
        values: Mapping[str, Any] = inside if isinstance(inside, Mapping) else found
        return next((values[name] for name in names if values.get(name) is not None), None)
    return next((value for name in names if (value := getattr(found, name, None)) is not None), None)


# --- keys of a recipe -------------------------------------------------------------------------------------------------

# The remedy for keys that stayed in another process, beside references.
FALLBACK = ", or let fallback='ambient' take the credentials of this process in their place"
# Botocore asks the metadata service of a machine once, and takes a failure for its absence.
METADATA_ATTEMPTS = 3
# The keys of a recipe that signs nothing.
ANONYMOUS = AccessKeys("", "")
# New keys are requested once a minute at most: they cost a request of a provider, and a store may be wrong.
RENEW_SECONDS_MIN = 60.0
# Keys with an end are looked at so often; new ones are fetched in the background from the first limit before the end
# on, and waited for from the second. The limits are botocore's.
LOOK_SECONDS = 10.0
RENEWED_BEFORE_SECONDS = 15 * 60
AWAITED_BEFORE_SECONDS = 10 * 60


class KeySource:
    """The keys of one recipe within a runtime. ``generation`` counts the renewals that a store has asked for.

    ``principal`` names the identity in the keys of caches: it stays the same for as long as the accessors live, and
    keys of another one are refused.
    """

    def __init__(self, options: S3Options, runtime: Runtime, principal: str, explainer: Explainer) -> None:
        self.generation = 0
        self._options = options
        self._runtime = runtime
        self._principal = principal
        self._explainer = explainer
        self._now = runtime.now
        self._keys: AccessKeys | None = None
        self._chain: ProviderChain | GivenKeys | None = None
        self._asked = "variables and files"  # For people: the provider of keys.
        self._look_at = 0.0
        self._renewed_at: float | None = None
        # The states of the files of AWS before the keys were found by them; ``None`` for keys of other places.
        self._files: object | None = None
        self._flight = SingleFlight(runtime, self._load, "s3 keys")

    def ready(self) -> AccessKeys | None:
        """The keys, if they can be used at once."""
        if self._chain is None or self._now() < self._look_at:
            return self._keys
        self._look_at = self._now() + LOOK_SECONDS
        if self._chain.is_ending(RENEWED_BEFORE_SECONDS):
            if self._chain.is_ending(AWAITED_BEFORE_SECONDS):
                self._keys = None
            elif not self._runtime.closed:
                self._flight.start()
        return self._keys

    async def get(self, request: Request) -> AccessKeys:
        """The keys, once they are there; ``request`` is named by an error. If cancelled, others go on waiting.

        Raises ``PermissionDenied`` without keys, or with keys of another principal, ``ConfigInvalid`` for files that
        cannot be used, and ``TimedOut``.
        """
        keys = self.ready()
        if keys is not None:
            return keys
        options = self._options
        limit_seconds = options.connect_timeout_seconds + options.read_timeout_seconds
        try:
            async with asyncio.timeout(limit_seconds) as limit:
                return await self._flight.get()
        except Exception as error:
            late = f"the credentials were not there within {limit_seconds:g} seconds; asked: {self._asked}"
            explained = self._explainer.explained(
                TimedOut(late) if limit.expired() else error, request, asked=self._asked
            )
        try:
            raise explained from explained.__cause__
        finally:
            del explained  # Its traceback holds this frame.

    def renew(self, generation: int) -> bool:
        """The store calls the keys of that generation expired: find others for the next request, if that is possible.

        Keys given as literals cannot be found again, and nothing is asked twice within ``RENEW_SECONDS_MIN``, unless
        one of the files has changed.
        """
        now = self._now()
        if generation != self.generation:
            return True
        if self._has_literal_keys():
            return False
        is_early = self._renewed_at is not None and now - self._renewed_at < RENEW_SECONDS_MIN
        if is_early and (self._files is None or self._files == self._options.file_states()):
            return False
        self._renewed_at = now
        self.generation += 1
        self._keys = self._chain = None
        return True

    @property
    def is_renewable(self) -> bool:
        """Whether a file, a process, a role or a provider may have other keys soon, by itself."""
        return self._chain is not None or self._files is not None

    def _has_literal_keys(self) -> bool:
        secret = Secret.of(self._options.access_key_id)
        is_literal = secret is not None and secret.is_literal and not self._options.keys_left_behind
        return self._options.anonymous or is_literal

    async def _load(self) -> AccessKeys:
        options = self._options
        keys = ANONYMOUS if options.anonymous else None
        if keys is None and not (options.fallback and options.keys_left_behind):
            keys = await self._given_keys() if options.credentials is not None else self._own_keys()
        if keys is None:
            keys = self._keys_of_variables() or await self._keys_of_files_or_chain()
        if not all(value.isprintable() and value.isascii() for value in (keys.key_id, keys.token or "")):
            raise ConfigInvalid(
                "access_key_id or session_token holds a character that no header can carry, perhaps the end of a line"
            )
        self._explainer.keys["recipe"] = keys
        self._keys = keys
        self._look_at = self._now() + LOOK_SECONDS
        return keys

    async def _given_keys(self) -> AccessKeys:
        provider: Any = self._options.credentials
        self._asked = f"credentials={provider!r}"
        given = self._chain if isinstance(self._chain, GivenKeys) else GivenKeys(provider, self._runtime)
        keys = await given.ask()
        self._chain = given
        return keys

    def _own_keys(self) -> AccessKeys | None:
        """The keys of the recipe, ``None`` if it has none. Raises as ``Secret.known``."""
        options = self._options
        key_id, secret = Secret.of(options.access_key_id), Secret.of(options.secret_access_key)
        token = Secret.of(options.session_token)
        if key_id is None or secret is None:
            return None
        # No local variable is a value, because tools show the variables of every frame of an error.
        keys = AccessKeys(
            key_id.known("access_key_id", FALLBACK),
            secret.known("secret_access_key", FALLBACK),
            None if token is None else token.known("session_token", FALLBACK),
        )
        self._check_principal(options.principal_of())
        return keys

    def _keys_of_variables(self) -> AccessKeys | None:
        ambient = self._options.ambient(files=False)
        if ambient.key_place != "variables" or not os.environ.get("AWS_SECRET_ACCESS_KEY"):
            return None
        self._check_principal(self._options.principal_of(ambient))
        token = os.environ.get("AWS_SECURITY_TOKEN") or os.environ.get("AWS_SESSION_TOKEN")
        return AccessKeys(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], token or None)

    async def _keys_of_files_or_chain(self) -> AccessKeys:
        if self._chain is None:
            self._files, ambient, keys = await self._runtime.run_blocking(_keys_of_files, self._options)
            self._check_principal(self._options.principal_of(ambient))
            if keys is not None:
                return keys
            self._asked = ambient.provider
            if ambient.mfa:
                raise PermissionDenied(
                    f"{ambient.mfa} takes an MFA code (mfa_serial), for which no person is asked here: get keys by "
                    "other means, such as aws sts get-session-token, or give a session as credentials="
                )
        chain = self._chain if isinstance(self._chain, ProviderChain) else ProviderChain(self._options, self._explainer)
        own_loop = OwnLoop[AccessKeys]()
        try:
            keys = await self._runtime.run_blocking(own_loop.run, chain.load, chain.ask)
        except asyncio.CancelledError:
            own_loop.cancel()
            raise
        self._chain = chain
        return keys

    def _check_principal(self, principal: str) -> None:
        """Refuse the keys of another principal: their bytes would stand in caches under the name of the first one.

        The names of the identities are compared. A role has new keys each time, and stays the same identity.
        """
        if principal != self._principal:
            raise PermissionDenied(
                f"the credentials now belong to {principal!r}, but this operator was made for {self._principal!r}: "
                "make a new Operator for them"
            )


def _keys_of_files(options: S3Options) -> tuple[object, Ambient, AccessKeys | None]:
    states, ambient = options.file_states(), options.ambient(files=True)
    if ambient.key_place != "files" or ambient.problem:
        return states, ambient, None
    return states, ambient, keys_in_files(ambient.profile or "default", *ambient.files)


# Loggers that show requests and responses at DEBUG, with the loggers below them. The other loggers of aiohttp belong to
# its server, and to the application that serves by it.
_LOGGERS = ("aiobotocore", "aiohttp.client", "botocore")

_redacting = RedactingFilter()


def redact_logs(scrubber: Scrubber) -> None:
    """Keep secrets out of the loggers of the libraries that find keys, if their modules are imported by now.

    A filter looks at the lines of its own logger, not of the loggers below, so each of these gets it.
    """
    _redacting.add(scrubber)
    below = tuple(f"{name}." for name in _LOGGERS)
    names = [name for name in list(logging.root.manager.loggerDict) if name.startswith(below)]
    for name in {*_LOGGERS, *names}:
        logging.getLogger(name).addFilter(_redacting)  # Without effect the second time.


class ProviderChain:
    """Botocore's chain of providers of keys, for one recipe: ``load``, then ``ask`` as often as needed."""

    _session: Any
    _credentials: Any = None

    def __init__(self, options: S3Options, explainer: Explainer) -> None:
        self._options = options
        self._explainer = explainer

    def load(self) -> None:
        """Import and read files, which blocks."""
        if self._credentials is not None:
            return
        try:
            from aiobotocore.session import AioSession
        except ImportError as error:
            raise MissingDependency("these credentials need aiobotocore: pip install 'aioprefetch[s3]'") from error
        name = "metadata_service_num_attempts"
        attempts = {name: (name, f"AWS_{name.upper()}", METADATA_ATTEMPTS, int)}  # The user's own setting comes first.
        self._session = AioSession(profile=self._options.profile, session_vars=attempts)
        # Providers that ask another service for keys need a region for it.
        region = self._options.region or self._options.ambient(files=True).region
        self._session.set_config_variable("region", region or None)
        redact_logs(self._explainer)

    async def ask(self) -> AccessKeys:
        """The keys, new ones if the last ones are about to end. Raises the errors of botocore."""
        from botocore.exceptions import NoCredentialsError

        credentials = await self._session.get_credentials()
        frozen = None if credentials is None else await credentials.get_frozen_credentials()
        if frozen is None:
            raise NoCredentialsError
        self._credentials = credentials
        return AccessKeys(frozen.access_key, frozen.secret_key, frozen.token)

    def is_ending(self, within_seconds: int) -> bool:
        """Whether the keys end within this time. Those without an end never do."""
        is_needed = getattr(self._credentials, "refresh_needed", None)
        return is_needed is not None and bool(is_needed(within_seconds))


class OwnLoop(Generic[T]):
    """An event loop in the thread that calls ``run``, for one call of a library that wants one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def run(self, load: Callable[[], None], make: Callable[[], Awaitable[T]]) -> T:
        """Let ``load`` read its files before there is a loop, and then run ``make`` on one."""
        load()
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            self._loop = runner.get_loop()
            return runner.run(self._make(make))

    async def _make(self, make: Callable[[], Awaitable[T]]) -> T:
        self._task = asyncio.current_task()
        if self._cancelled:
            raise asyncio.CancelledError
        return await make()

    def cancel(self) -> None:
        """End a wait for the network. May be called on any thread."""
        self._cancelled = True
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # The loop has just ended.
                self._loop.call_soon_threadsafe(self._task.cancel)


# --- the keys of a session --------------------------------------------------------------------------------------------

# The service in the scope of signatures for directory buckets.
EXPRESS = "s3express"
SESSION_TOKEN = "x-amz-s3session-token"
SESSION_SECONDS = 300.0
# New keys are fetched in the background from the first part of a session's life on, and waited for from the second.
RENEWED_AFTER, AWAITED_AFTER = 0.6, 0.8
# Where that fails it is tried again so often.
SESSION_RENEW_SECONDS_MIN = 10.0


class SessionKeys:
    """The keys of sessions with a directory bucket (S3 Express), which stand for a recipe's keys for five minutes.

    ``generation`` counts the sessions; ``begin`` makes one.
    """

    is_renewable = False  # Another session was begun at once.

    def __init__(self, runtime: Runtime, begin: Callable[[], Awaitable[AccessKeys]]) -> None:
        self.generation = 0
        self._runtime = runtime
        self._begin = begin
        self._keys: AccessKeys | None = None
        self._renew_at = 0.0
        self._flight = SingleFlight(runtime, self._load, "s3 session")

    def ready(self) -> AccessKeys | None:
        """The keys, if they can be used at once."""
        keys, now = self._keys, self._runtime.now()
        if keys is None or now >= keys.until_seconds:
            return None
        if now >= self._renew_at and not self._runtime.closed:
            self._renew_at = now + SESSION_RENEW_SECONDS_MIN
            self._flight.start()
        return keys

    async def get(self, request: Request) -> AccessKeys:
        """The keys, once they are there; ``request`` is named by an error. If cancelled, others go on waiting."""
        try:
            return self.ready() or await self._flight.get()
        except Error as error:
            error.add_context(operation=request.operation, path=request.path)
            raise

    def renew(self, generation: int) -> bool:
        """The store calls the keys of that generation expired: the next request uses another session."""
        if generation == self.generation:
            self._keys = None
        return True

    async def _load(self) -> AccessKeys:
        self._keys = keys = await self._begin()
        self.generation += 1
        now = self._runtime.now()
        self._renew_at = now + (keys.until_seconds - now) * RENEWED_AFTER / AWAITED_AFTER
        return keys


def session_seconds(end: datetime | None, now: datetime | None) -> float:
    """The time for which the keys of a new session are used; both times are the store's."""
    life_seconds = SESSION_SECONDS if end is None or now is None else (end - now).total_seconds()
    return max(min(life_seconds, SESSION_SECONDS), 0.0) * AWAITED_AFTER
