"""The client: one aiobotocore client for a runtime, made at first use, and the only place that calls it.

aiobotocore has no types, so ``Any`` ends here: the rest sees our requests, dictionaries and errors. Its exceptions end
here too, since they hold requests with all their secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.errors import CredentialsExpired
from aioprefetch.runtime.events import DURATIONS
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Timer
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.key_source import KeySource, OwnLoop
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.single_flight import SingleFlight
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


class S3Client:
    """One client for one runtime. The first call makes it; concurrent first calls wait for the same one.

    It is made in the background, so that a cancelled caller does not end it for the others, and in a thread, since it
    takes a few hundred milliseconds of computing. It is closed with the runtime. It signs with the keys of ``keys``,
    whichever these are at a request.
    """

    def __init__(self, options: S3Options, runtime: Runtime, keys: KeySource, explainer: Explainer) -> None:
        self.options = options
        self.runtime = runtime
        self.explainer = explainer
        self._keys = keys
        self._client: Any = None
        self._customer_key: bytes | None = None
        self._making = SingleFlight(runtime, self._make, "s3 client")

    async def call(self, request: Request, method: str, **parameters: Any) -> Response:
        """Call one method of the client for ``request``; raises errors of ours, with operation and path."""
        return await self._called(request, method, parameters, streams=False)

    async def open(self, request: Request, method: str, **parameters: Any) -> Response:
        """Call like ``call``, but leave the body to the caller."""
        return await self._called(request, method, parameters, streams=True)

    async def _called(self, request: Request, method: str, parameters: dict[str, Any], *, streams: bool) -> Response:
        from aioprefetch.services.s3.session import calling

        generation = self._keys.generation
        client = await self.connected(request)
        with self._counted(method) as timer:
            try:
                with calling(streams=streams):
                    response: Response = await getattr(client, method)(**self._complete(method, parameters))
                    return response
            except Exception as error:
                explained = self.explainer.explained(error, request)
                if timer is not None and is_unmodified(request, explained):
                    timer.end(None)
            if isinstance(explained, CredentialsExpired):
                self._keys.renew(generation)
            # Outside of the handler, where Python does not chain the exception.
            raise explained from explained.__cause__

    def _counted(self, method: str) -> AbstractContextManager[Timer | None]:
        counter = _COUNTERS.get(method)
        if counter is not None and counter in DURATIONS:
            return self.runtime.timer(counter)
        if counter is not None:
            self.runtime.counters[counter] += 1
        return nullcontext()

    async def presigned_url(self, request: Request, method: str, **parameters: Any) -> str:
        """A URL for a call of ``method``."""
        expires_seconds = parameters.pop("ExpiresIn")
        client = await self.connected(request)
        try:
            url: str = await client.generate_presigned_url(
                method, Params=self._complete(method, parameters), ExpiresIn=expires_seconds
            )
            return url
        except Exception as error:
            explained = self.explainer.explained(error, request)
        raise explained from explained.__cause__

    def _complete(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        complete = {name: value for name, value in parameters.items() if value is not None}
        complete["Bucket"] = self.options.bucket
        if self.options.request_payer:
            complete["RequestPayer"] = "requester"
        key = self._customer_key
        if key is not None and method in _ENCRYPTED:
            complete |= {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
            if method == "copy_object":
                complete |= {"CopySourceSSECustomerAlgorithm": "AES256", "CopySourceSSECustomerKey": key}
        return complete

    async def connected(self, request: Request) -> Any:
        """The client of aiobotocore, made at the first call. If cancelled, the making goes on."""
        if self._client is not None:
            return self._client
        await self._keys.get(request)
        try:
            return await self._making.get()
        except Exception as error:
            explained = self.explainer.explained(error, request)
        raise explained from explained.__cause__

    async def _make(self) -> Any:
        from aioprefetch.services.s3.client_maker import ClientMaker

        if self._client is None:
            maker = ClientMaker(self.options, self._keys, self.runtime, self.explainer)
            own_loop = OwnLoop[Any]()
            try:
                client = await self.runtime.run_blocking(own_loop.run, maker.load, maker.make)
            except asyncio.CancelledError:
                own_loop.cancel()
                raise
            self._customer_key = maker.customer_key
            self._client = client
            self.runtime.supervisor.on_close(self._close)
        return self._client

    async def _close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
