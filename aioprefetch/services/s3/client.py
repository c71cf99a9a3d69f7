"""The live client: one aiobotocore client for a runtime, made at first use, and the one place that calls it.

aiobotocore has no types, so ``Any`` stays in here: the rest sees our requests, dictionaries and errors. Its exceptions
stay in here too, since they hold requests with all their secrets.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.credentials import Secret, digest
from aioprefetch.errors import Closed, ConfigInvalid, Error, MissingDependency, PermissionDenied
from aioprefetch.runtime.events import DURATIONS
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Timer
from aioprefetch.services.s3.errors import Explainer, inner_error
from aioprefetch.services.s3.options import sse_key_bytes
from aioprefetch.services.s3.session import (
    calling,
    guard,
    parser_factory,
    redact_logs,
    replace_error_handler,
    session_class,
)
from aioprefetch.values import Request, ServiceInfo

if TYPE_CHECKING:
    from aioprefetch.services.s3.service import S3

Reply = Mapping[str, Any]

_COUNTERS = {
    "get_object": "action_http_get_request",
    "head_object": "action_http_head_request",
    "list_objects_v2": "object_list_request",
    "put_object": "object_put_request",
    "upload_part": "object_put_request",
    "copy_object": "object_copy_request",
    "delete_object": "object_delete_request",
    "delete_objects": "object_delete_request",
}
# Calls that read or write bytes of an object, and so need the customer's key.
_ENCRYPTED = {
    *("get_object", "head_object", "put_object", "copy_object"),
    *("create_multipart_upload", "upload_part", "complete_multipart_upload"),
}


# A store that calls credentials expired is believed once a minute: new ones cost a client, and a store may lie.
RENEW_SECONDS_MIN = 60.0


class LiveClient:
    """A client of aiobotocore, the credentials it was made with, and how many calls and bodies still use it."""

    __slots__ = ("ca_bundle", "client", "identity", "is_retired", "users")

    def __init__(self, client: Any, identity: str, ca_bundle: str) -> None:
        self.client = client
        self.identity = identity
        self.ca_bundle = ca_bundle
        self.users = 0
        self.is_retired = False


class S3Client:
    """One client for one runtime. The first call makes it; concurrent first calls wait for the same one.

    It is made in the background, so that a caller that is cancelled takes it from nobody else, and in a thread, since
    that takes a few hundred milliseconds of computing. It is closed with the runtime, or when its credentials have
    ended and its last call has.
    """

    def __init__(self, service: S3, runtime: Runtime, info: ServiceInfo | None = None) -> None:
        self.service = service
        self.runtime = runtime
        info = info or service.info
        self.explainer = Explainer(service, info)
        # Counts how often new credentials were asked for: what was signed before is not used any more.
        self.generation = 0
        self.ca_bundle: str | None = service.ca_bundle
        # Whose bytes the accessors of this client stand for, in caches too: it stays so for as long as they live.
        self._principal = info.principal
        self._live: LiveClient | None = None
        self._previous: LiveClient | None = None
        self._retired: set[LiveClient] = set()
        self._renewed_at: float | None = None
        self._making: asyncio.Future[LiveClient] | None = None
        self._sse_key: bytes | None = None
        self._closer_known = False

    async def call(self, request: Request, method: str, **parameters: Any) -> Reply:
        """Call one method of the client for ``request``; every failure is one of ours, with operation and path."""
        reply, end = await self._called(request, method, parameters)
        end()
        return reply

    async def open(self, request: Request, method: str, **parameters: Any) -> tuple[Reply, Callable[[], None]]:
        """The same for a reply whose body the caller reads, and the function to call when it has been read."""
        return await self._called(request, method, parameters, streams=True)

    async def _called(
        self, request: Request, method: str, parameters: dict[str, Any], *, streams: bool = False
    ) -> tuple[Reply, Callable[[], None]]:
        live = await self._connected_for(request)
        live.users += 1
        try:
            with self._counted(method) as timer:
                reply = await self._send(live.client, request, method, parameters, timer, streams=streams)
        except BaseException:
            self._end_use(live)
            raise
        return reply, lambda: self._end_use(live)

    def _counted(self, method: str) -> AbstractContextManager[Timer | None]:
        counter = _COUNTERS.get(method)
        if counter is not None and counter in DURATIONS:
            return self.runtime.timer(counter)
        if counter is not None:
            self.runtime.counters[counter] += 1
        return nullcontext()

    async def _send(
        self,
        client: Any,
        request: Request,
        method: str,
        parameters: dict[str, Any],
        timer: Timer | None,
        *,
        streams: bool,
    ) -> Reply:
        try:
            with calling(streams=streams):
                reply: Reply = await getattr(client, method)(**self._complete(method, parameters))
                return reply
        except Exception as error:
            explained = self._explained(error, request)
            if timer is not None and is_unmodified(request, explained):
                timer.end(None)
        # Out here, where Python does not chain what was caught.
        raise explained from explained.__cause__

    async def presigned_url(self, request: Request, method: str, **parameters: Any) -> str:
        """A URL that does what ``method`` would do."""
        expires_seconds = parameters.pop("ExpiresIn")
        live = await self._connected_for(request)
        live.users += 1
        try:
            url: str = await live.client.generate_presigned_url(
                method, Params=self._complete(method, parameters), ExpiresIn=expires_seconds
            )
            return url
        except Exception as error:
            explained = self._explained(error, request)
        finally:
            self._end_use(live)
        raise explained from explained.__cause__

    def _explained(self, error: Exception, request: Request) -> Error:
        """An error of ours, without a trace of the frames and the exceptions that held the request."""
        own = inner_error(error)
        if isinstance(own, Error):
            own.__context__ = None
            return own.with_traceback(None).add_context(operation=request.operation, path=request.path)
        return self.explainer.explain(error, request)

    def _complete(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        complete = {name: value for name, value in parameters.items() if value is not None}
        complete["Bucket"] = self.service.bucket
        if self.service.request_payer:
            complete["RequestPayer"] = "requester"
        if self._sse_key is not None and method in _ENCRYPTED:
            complete |= {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": self._sse_key}
            if method == "copy_object":
                complete |= {"CopySourceSSECustomerAlgorithm": "AES256", "CopySourceSSECustomerKey": self._sse_key}
        return complete

    async def connected(self) -> Any:
        """The client of aiobotocore, made now if it is the first time. If cancelled, it is made all the same."""
        return (await self._connected()).client

    async def _connected_for(self, request: Request) -> LiveClient:
        try:
            return self._live or await self._connected()
        except Exception as error:
            explained = self._explained(error, request)
        raise explained from explained.__cause__

    async def _connected(self) -> LiveClient:
        if self._live is not None:
            return self._live
        if self.runtime.closed:
            raise Closed("the operator is closed")
        if self._making is None:
            if not self._closer_known:
                self._closer_known = True
                self.runtime.supervisor.on_close(self._close)
            self._making = making = self.runtime.loop.create_future()
            self.runtime.supervisor.spawn(self._make(making), name="s3 client", on_end=lambda: _give_up(making))
        try:
            return await asyncio.shield(self._making)
        except Error as error:
            # Every waiter gets its own, to which its operation and path are added.
            own = copy.copy(error)
            own.__cause__ = error.__cause__
        raise own from own.__cause__

    def renew(self, generation: int) -> None:
        """The store calls the credentials of that generation expired: ask the provider chain again.

        Keys given as literals cannot be asked for again, and nobody is asked twice within ``RENEW_SECONDS_MIN``.
        Where the chain still gives the same ones the client stays. Calls on their way end with the old client. Where
        it names another principal by now, the next call fails: see ``_check_principal``.
        """
        live, now = self._live, self.runtime.now()
        if generation != self.generation or live is None or self._has_literal_keys():
            return
        if self._renewed_at is not None and now - self._renewed_at < RENEW_SECONDS_MIN:
            return
        self._renewed_at = now
        self.generation += 1
        self._previous, self._live, self._making = live, None, None

    def _has_literal_keys(self) -> bool:
        secret = Secret.of(self.service.access_key_id)
        return self.service.anonymous or (secret is not None and secret.is_literal)

    async def _make(self, made: asyncio.Future[LiveClient]) -> None:
        try:
            live = await self._create()
        except Exception as error:
            self._making = None  # the next caller tries again
            made.set_exception(error.with_traceback(None))
            made.exception()  # seen, even if every waiter is gone
        else:
            self._live = live
            self.ca_bundle = live.ca_bundle
            previous, self._previous = self._previous, None
            if previous is not None and previous is not live:
                self._retire(previous)
            made.set_result(live)

    async def _create(self) -> LiveClient:
        previous = self._previous
        self._sse_key = self._customer_key()
        maker = _Maker(self.service, self._keys(), previous, self.runtime, self.explainer, self._principal)
        elsewhere = _Elsewhere()
        try:
            made = await self.runtime.run_blocking(elsewhere.run, maker)
        except asyncio.CancelledError:
            elsewhere.cancel()
            raise
        return made or previous  # type: ignore[return-value]  # nothing is made only where there is a previous one

    def _retire(self, live: LiveClient) -> None:
        live.is_retired = True
        self._retired.add(live)
        self._close_if_unused(live)

    def _end_use(self, live: LiveClient) -> None:
        live.users -= 1
        self._close_if_unused(live)

    def _close_if_unused(self, live: LiveClient) -> None:
        if live.is_retired and not live.users:
            self.runtime.supervisor.spawn(self._close_retired(live), name="s3 client closing")

    async def _close_retired(self, live: LiveClient) -> None:
        await live.client.close()
        self._retired.discard(live)

    def _keys(self) -> dict[str, str | None]:
        service = self.service
        given = {
            "aws_access_key_id": Secret.of(service.access_key_id),
            "aws_secret_access_key": Secret.of(service.secret_access_key),
            "aws_session_token": Secret.of(service.session_token),
        }
        if given["aws_access_key_id"] is None:
            return {}
        keys = {name: revealed(secret, name) for name, secret in given.items() if secret is not None}
        # Part of an identity is of no use: without all of its keys the provider chain has to find another one.
        self.explainer.keys_left_behind = None in keys.values()
        return {} if self.explainer.keys_left_behind else keys

    def _customer_key(self) -> bytes | None:
        secret = self.service.sse_customer_key
        if not isinstance(secret, Secret):
            return None
        value = revealed(secret, "sse_customer_key")
        if value is None:
            raise PermissionDenied(
                "sse_customer_key was given as a literal and stayed in the process that pickled this operator; "
                "give it as sse_customer_key='env:NAME' and set that variable here"
            )
        return sse_key_bytes(value)

    async def _close(self) -> None:
        clients = [live for live in (*self._retired, self._previous, self._live) if live is not None]
        self._live = self._previous = None
        self._retired.clear()
        for live in clients:
            await live.client.close()


class _Elsewhere:
    """A loop of its own to make one client, in whichever thread ``run`` is called."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def run(self, maker: _Maker) -> LiveClient | None:
        """Let ``maker`` read its files before there is a loop, and ask for credentials on one."""
        maker.load()
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            self._loop = runner.get_loop()
            return runner.run(self._make(maker))

    async def _make(self, maker: _Maker) -> LiveClient | None:
        self._task = asyncio.current_task()
        if self._cancelled:
            raise asyncio.CancelledError
        return await maker.make()

    def cancel(self) -> None:
        """End it where it waits for the network. May be called on any thread."""
        self._cancelled = True
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # It has just ended by itself.
                self._loop.call_soon_threadsafe(self._task.cancel)


class _Maker:
    """Makes a client: imports, models and files by ``load``, credentials and the rest by ``make``. In a thread."""

    _session: Any
    _region: str | None
    _ca_bundle: str

    def __init__(
        self,
        service: S3,
        keys: dict[str, str | None],
        previous: LiveClient | None,
        runtime: Runtime,
        explainer: Explainer,
        principal: str,
    ) -> None:
        self._service = service
        self._keys = keys
        self._previous = previous
        self._runtime = runtime
        self._connections = service.connections(runtime.options.concurrency)
        self._explainer = explainer
        self._principal = principal

    def load(self) -> None:
        """Read all that has to be read, which blocks."""
        own = self._service.anonymous or bool(self._keys)
        self._session, self._region, self._ca_bundle = _load_session(self._service, own=own)
        self._session.register_component("response_parser_factory", parser_factory(self._runtime))
        redact_logs(self._explainer)

    def _check_principal(self) -> None:
        """Refuse the keys of somebody else: what they read would stand in caches under the first one's name.

        Compared is what names an identity. A role has new keys each time, and stays the same.
        """
        found = self._service.info.principal
        if found != self._principal:
            raise PermissionDenied(
                f"the credentials are those of {found!r} by now, and this operator stands for {self._principal!r}: "
                "make a new Operator for them"
            )

    async def make(self) -> LiveClient | None:
        """A new client; ``None`` where the credentials are those of the previous one."""
        identity = await self._identity()
        if self._previous is not None and identity == self._previous.identity:
            return None
        self._check_principal()
        client = await self._create()
        redact_logs(self._explainer)  # Those of the modules as well that making it has imported.
        return LiveClient(client, identity, self._ca_bundle)

    async def _identity(self) -> str:
        """A digest of the access key and token that requests are signed with."""
        keys = self._keys
        found = (keys.get("aws_access_key_id"), keys.get("aws_session_token"))
        if not keys and not self._service.anonymous:
            # Providers that ask another service for keys need a region for it.
            self._session.set_config_variable("region", self._region)
            credentials = await self._session.get_credentials()
            self._explainer.credentials = credentials
            frozen = None if credentials is None else await credentials.get_frozen_credentials()
            found = (None, None) if frozen is None else (frozen.access_key, frozen.token)
        return digest(*(part or "" for part in found))

    async def _create(self) -> Any:
        service = self._service
        client = await self._session.create_client(
            "s3",
            region_name=self._region,
            endpoint_url=service.endpoint_url,
            verify=service.ca_bundle,
            config=_config(service, self._connections),
            **self._keys,
        ).__aenter__()
        try:
            # Botocore may have found the endpoint in the environment or in a profile.
            service.check_endpoint(client.meta.endpoint_url)
        except BaseException:
            await client.close()
            raise
        client.meta.events.register_first("needs-retry.s3", guard)
        replace_error_handler(client)
        return client


def _give_up(making: asyncio.Future[Any]) -> None:
    """Let nobody wait for a client whose making was cancelled."""
    if not making.done():
        making.set_exception(Closed("the operator was closed before its first request was sent"))
        making.exception()


def revealed(secret: Secret, option: str) -> str | None:
    """The value; ``None`` for a literal that stayed in another process. A variable that is not set is an error."""
    value = secret.reveal()
    if value is None and not secret.is_literal:
        raise ConfigInvalid(f"{option} is {secret.fingerprint()!r}, but that environment variable is not set")
    return value


def _load_session(service: S3, *, own: bool) -> tuple[Any, str | None, str]:
    """The session, the region, and the file of authorities that botocore trusts.

    Runs in a thread: imports and files together take about half a second.
    """
    try:
        from aiobotocore.session import AioSession
        from botocore.httpsession import get_cert_path
    except ImportError as error:
        raise MissingDependency("the S3 service needs aiobotocore: pip install 'aioprefetch[s3]'") from error
    if service.ca_bundle is not None and not os.path.isfile(service.ca_bundle):
        raise ConfigInvalid(f"ca_bundle={service.ca_bundle!r} is not a file")
    # Keys of our own need no profile; the one that AWS_PROFILE names may not even exist here.
    session = AioSession(profile=service.profile, session_vars={"profile": (None, None, None, None)} if own else None)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    session.warm_up_loader_caches("s3")
    # Stores other than AWS hardly look at the region, but a signature needs one.
    info = service.info
    default = "us-east-1" if info.endpoint else None
    bundle = service.ca_bundle or session.get_config_variable("ca_bundle") or get_cert_path(verify=True)
    return session, info.region or session.get_config_variable("region") or default, bundle


@cache
def _loader(data_path: str | None) -> Any:
    """Botocore's reader of its own data, one for the process: parsing megabytes of JSON takes 0.15 seconds."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def _config(service: S3, connections: int) -> Any:
    from aiobotocore.config import AioConfig
    from botocore import UNSIGNED

    proxies = None
    if service.proxies is not None:
        proxies = {scheme: _proxy(scheme, url) for scheme, url in service.proxies.items()}
    return AioConfig(
        http_session_cls=session_class(),
        max_pool_connections=connections,
        connect_timeout=service.connect_timeout_seconds,
        read_timeout=service.read_timeout_seconds,
        retries={"total_max_attempts": 1, "mode": "standard"},
        signature_version=UNSIGNED if service.anonymous else "s3v4",
        s3={"addressing_style": service.addressing_style},
        proxies=proxies,
        # A range carries no checksum that could be checked, and stores other than AWS send wrong ones with it.
        response_checksum_validation="when_required",
        request_checksum_calculation="when_required",
    )


def _proxy(scheme: str, url: str | Secret) -> str:
    value = revealed(url, f"proxies[{scheme!r}]") if isinstance(url, Secret) else url
    if value is None:
        raise ConfigInvalid(
            f"proxies[{scheme!r}] holds a password and stayed in the process that pickled this operator; "
            "give it as 'env:NAME' and set that variable here"
        )
    return value
