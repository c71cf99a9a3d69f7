"""The keys that sign: from the recipe or its provider, the variables and files of AWS, or from botocore's providers.

Static keys in options, variables and files are read without botocore. For the rest (roles, SSO, processes, web
identities, the metadata of a machine or container) botocore's own chain is asked, on a thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aioprefetch.credentials import Secret
from aioprefetch.errors import ConfigInvalid, Error, MissingDependency, PermissionDenied, TimedOut
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.aws_files import keys_in_files
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.identity import Ambient
from aioprefetch.services.s3.options import S3Options, revealed
from aioprefetch.services.s3.sigv4 import AccessKeys
from aioprefetch.services.s3.single_flight import SingleFlight
from aioprefetch.values import Request

if TYPE_CHECKING:  # It loads where it is given.
    from aioprefetch.services.s3.given_keys import GivenKeys

T = TypeVar("T")

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
        self._look_at = 0.0
        self._renewed_at: float | None = None
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

        Raises ``PermissionDenied`` without keys, or with those of another principal, ``ConfigInvalid`` for files that
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
        except TimeoutError:
            if not limit.expired():
                raise
            text = f"the credentials were not there within {limit_seconds:g} seconds"
            explained: Error = TimedOut(text, operation=request.operation, path=request.path)
        except Exception as error:
            explained = self._explainer.explained(error, request)
        raise explained from explained.__cause__

    def renew(self, generation: int) -> bool:
        """The store calls the keys of that generation expired: find others for the next request, if that is possible.

        Keys given as literals cannot be found again, and nothing is asked twice within ``RENEW_SECONDS_MIN``.
        """
        now = self._now()
        if generation != self.generation:
            return True
        if self._has_literal_keys():
            return False
        if self._renewed_at is not None and now - self._renewed_at < RENEW_SECONDS_MIN:
            return False
        self._renewed_at = now
        self.generation += 1
        self._keys = self._chain = None
        return True

    def _has_literal_keys(self) -> bool:
        secret = Secret.of(self._options.access_key_id)
        # Literals that stayed in another process are not used: other keys stand in for them.
        is_used = secret is not None and secret.is_literal and not self._explainer.keys_left_behind
        return self._options.anonymous or is_used

    async def _load(self) -> AccessKeys:
        keys = ANONYMOUS if self._options.anonymous else await self._given_keys()
        if keys is None:
            keys = self._own_keys() or self._keys_of_variables() or await self._keys_of_files_or_chain()
        if not all(value.isprintable() and value.isascii() for value in (keys.key_id, keys.token or "")):
            raise ConfigInvalid(
                "access_key_id or session_token holds a character that no header can carry, perhaps the end of a line"
            )
        self._explainer.keys = keys
        self._keys = keys
        self._look_at = self._now() + LOOK_SECONDS
        return keys

    async def _given_keys(self) -> AccessKeys | None:
        """The keys of the provider in the recipe, ``None`` if there is none, or if it stayed in another process."""
        provider = self._options.credentials
        if provider is None or provider.given is None:
            self._explainer.keys_left_behind = provider is not None
            return None
        from aioprefetch.services.s3.given_keys import GivenKeys

        given = self._chain if isinstance(self._chain, GivenKeys) else GivenKeys(provider, self._runtime)
        keys = await given.ask()
        self._chain = given
        return keys

    def _own_keys(self) -> AccessKeys | None:
        """The keys of the recipe, ``None`` if it has none, or if they stayed in another process."""
        options = self._options
        key_id, secret = Secret.of(options.access_key_id), Secret.of(options.secret_access_key)
        given = {
            "access_key_id": key_id,
            "secret_access_key": secret,
            "session_token": Secret.of(options.session_token),
        }
        # No local variable holds a value, because tools show those of every frame of an error.
        is_left = [revealed(one, name) is None for name, one in given.items() if one is not None]
        if key_id is None or secret is None:
            return None
        # Part of an identity is useless: without all of its keys another identity has to be found.
        self._explainer.keys_left_behind = any(is_left)
        if self._explainer.keys_left_behind:
            return None
        self._check_principal(options.own_principal)
        return AccessKeys(*(revealed(one, name) or "" for name, one in given.items() if one is not None))

    def _keys_of_variables(self) -> AccessKeys | None:
        ambient = self._options.ambient(files=False)
        if ambient.key_place != "variables" or not os.environ.get("AWS_SECRET_ACCESS_KEY"):
            return None
        self._check_principal(self._options.principal_of(ambient))
        token = os.environ.get("AWS_SECURITY_TOKEN") or os.environ.get("AWS_SESSION_TOKEN")
        return AccessKeys(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], token or None)

    async def _keys_of_files_or_chain(self) -> AccessKeys:
        if self._chain is None:
            ambient, keys = await self._runtime.run_blocking(_keys_of_files, self._options)
            self._check_principal(self._options.principal_of(ambient))
            if keys is not None:
                return keys
        chain = self._chain if isinstance(self._chain, ProviderChain) else ProviderChain(self._options)
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
                f"the credentials are those of {principal!r} by now, and this operator stands for {self._principal!r}: "
                "make a new Operator for them"
            )


def _keys_of_files(options: S3Options) -> tuple[Ambient, AccessKeys | None]:
    ambient = options.ambient(files=True)
    if ambient.key_place != "files" or ambient.problem:
        return ambient, None
    return ambient, keys_in_files(ambient.profile or "default", *ambient.files)


class ProviderChain:
    """Botocore's chain of providers of keys, for one recipe: ``load``, then ``ask`` as often as needed."""

    _session: Any
    _credentials: Any = None

    def __init__(self, options: S3Options) -> None:
        self._options = options

    def load(self) -> None:
        """Import and read files, which blocks."""
        if self._credentials is not None:
            return
        try:
            from aiobotocore.session import AioSession
        except ImportError as error:
            raise MissingDependency("these credentials need aiobotocore: pip install 'aioprefetch[s3]'") from error
        self._session = AioSession(profile=self._options.profile)
        # Providers that ask another service for keys need a region for it.
        region = self._options.region or self._options.ambient(files=True).region
        self._session.set_config_variable("region", region or None)

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
