"""The client: one aiobotocore client for a runtime, made at first use, and the only place that calls it.

aiobotocore has no types, so ``Any`` ends here: the rest sees our requests, dictionaries and errors. Its exceptions end
here too, since they hold requests with all their secrets.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.credentials import Secret
from aioprefetch.errors import Closed, Error, PermissionDenied
from aioprefetch.runtime.events import DURATIONS
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Timer
from aioprefetch.services.s3.client_maker import ClientMaker, LiveClient, OwnLoop, revealed
from aioprefetch.services.s3.errors import Explainer, inner_error
from aioprefetch.services.s3.options import S3Options, sse_key_bytes
from aioprefetch.services.s3.session import calling
from aioprefetch.values import Request

Response = Mapping[str, Any]

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


# New credentials are requested once a minute at most: they cost a client, and a store may be wrong.
RENEW_SECONDS_MIN = 60.0


class S3Client:
    """One client for one runtime. The first call makes it; concurrent first calls wait for the same one.

    It is made in the background, so that a cancelled caller does not end it for the others, and in a thread, since it
    takes a few hundred milliseconds of computing. It is closed with the runtime, or when its credentials have
    ended and its last call has.
    """

    def __init__(self, options: S3Options, runtime: Runtime, principal: str | None = None) -> None:
        self.options = options
        self.runtime = runtime
        principal = options.info.principal if principal is None else principal
        self.explainer = Explainer(options, principal)
        # The number of renewals of credentials: signatures of an earlier generation are not used.
        self.generation = 0
        self.ca_bundle: str | None = options.ca_bundle
        # The principal in the keys of caches: it stays the same for as long as the accessors live.
        self._principal = principal
        self._live: LiveClient | None = None
        self._previous: LiveClient | None = None
        self._retired: set[LiveClient] = set()
        self._renewed_at: float | None = None
        self._making: asyncio.Future[LiveClient] | None = None
        self._sse_key: bytes | None = None
        self._closer_known = False

    async def call(self, request: Request, method: str, **parameters: Any) -> Response:
        """Call one method of the client for ``request``; raises errors of ours, with operation and path."""
        response, end = await self._called(request, method, parameters)
        end()
        return response

    async def open(self, request: Request, method: str, **parameters: Any) -> tuple[Response, Callable[[], None]]:
        """Call like ``call``, but leave the body to the caller; also returns the function to call when it is read."""
        return await self._called(request, method, parameters, streams=True)

    async def _called(
        self, request: Request, method: str, parameters: dict[str, Any], *, streams: bool = False
    ) -> tuple[Response, Callable[[], None]]:
        live = await self._connected_for(request)
        live.users += 1
        try:
            with self._counted(method) as timer:
                response = await self._send(live.client, request, method, parameters, timer, streams=streams)
        except BaseException:
            self._end_use(live)
            raise
        return response, lambda: self._end_use(live)

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
    ) -> Response:
        try:
            with calling(streams=streams):
                response: Response = await getattr(client, method)(**self._complete(method, parameters))
                return response
        except Exception as error:
            explained = self._explained(error, request)
            if timer is not None and is_unmodified(request, explained):
                timer.end(None)
        # Outside of the handler, where Python does not chain the exception.
        raise explained from explained.__cause__

    async def presigned_url(self, request: Request, method: str, **parameters: Any) -> str:
        """A URL for a call of ``method``."""
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
        """An error of ours, without the frames and exceptions that hold the request."""
        own = inner_error(error)
        if isinstance(own, Error):
            own.__context__ = None
            return own.with_traceback(None).add_context(operation=request.operation, path=request.path)
        return self.explainer.explain(error, request)

    def _complete(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        complete = {name: value for name, value in parameters.items() if value is not None}
        complete["Bucket"] = self.options.bucket
        if self.options.request_payer:
            complete["RequestPayer"] = "requester"
        if self._sse_key is not None and method in _ENCRYPTED:
            complete |= {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": self._sse_key}
            if method == "copy_object":
                complete |= {"CopySourceSSECustomerAlgorithm": "AES256", "CopySourceSSECustomerKey": self._sse_key}
        return complete

    async def _connected_for(self, request: Request) -> LiveClient:
        try:
            return self._live or await self.connected()
        except Exception as error:
            explained = self._explained(error, request)
        raise explained from explained.__cause__

    async def connected(self) -> LiveClient:
        """The client of aiobotocore that is in use, made at the first call. If cancelled, the making goes on."""
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
            # Every waiter gets a copy, to which its operation and path are added.
            own = copy.copy(error)
            own.__cause__ = error.__cause__
        raise own from own.__cause__

    def renew(self, generation: int) -> None:
        """The store calls the credentials of that generation expired: ask the provider chain again.

        Keys given as literals cannot be asked for again, and no provider is asked twice within ``RENEW_SECONDS_MIN``.
        If the chain still returns the same credentials, the client stays. Calls in flight end with the old client. If
        the chain names another principal by now, the next call fails (``_check_principal`` in ``client_maker``).
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
        secret = Secret.of(self.options.access_key_id)
        return self.options.anonymous or (secret is not None and secret.is_literal)

    async def _make(self, outcome: asyncio.Future[LiveClient]) -> None:
        try:
            live = await self._create()
        except Exception as error:
            self._making = None  # The next caller tries again.
            outcome.set_exception(error.with_traceback(None))
            outcome.exception()  # Retrieved, even if every waiter is gone.
        else:
            self._live = live
            self.ca_bundle = live.ca_bundle
            previous, self._previous = self._previous, None
            if previous is not None and previous is not live:
                self._retire(previous)
            outcome.set_result(live)

    async def _create(self) -> LiveClient:
        previous = self._previous
        self._sse_key = self._customer_key()
        maker = ClientMaker(self.options, self._keys(), previous, self.runtime, self.explainer, self._principal)
        own_loop = OwnLoop()
        try:
            live = await self.runtime.run_blocking(own_loop.run, maker)
        except asyncio.CancelledError:
            own_loop.cancel()
            raise
        return live or previous  # type: ignore[return-value]  # nothing is made only where there is a previous one

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
        options = self.options
        secrets = {
            "aws_access_key_id": Secret.of(options.access_key_id),
            "aws_secret_access_key": Secret.of(options.secret_access_key),
            "aws_session_token": Secret.of(options.session_token),
        }
        if secrets["aws_access_key_id"] is None:
            return {}
        keys = {name: revealed(secret, name) for name, secret in secrets.items() if secret is not None}
        # Part of an identity is useless: without all of its keys the provider chain has to find another identity.
        self.explainer.keys_left_behind = None in keys.values()
        return {} if self.explainer.keys_left_behind else keys

    def _customer_key(self) -> bytes | None:
        secret = self.options.sse_customer_key
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


def _give_up(making: asyncio.Future[Any]) -> None:
    """End the wait for a client whose making was cancelled."""
    if not making.done():
        making.set_exception(Closed("the operator was closed before its first request was sent"))
        making.exception()
