"""The client: one aiobotocore client for a runtime, made at first use, and the only place that calls it.

aiobotocore has no types, so ``Any`` ends here: the rest sees our requests, dictionaries and errors. Its exceptions end
here too, since they hold requests with all their secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from urllib.parse import urlsplit

from aioprefetch.accessor.request_events import ReportedRequest
from aioprefetch.accessor.service_base import is_unmodified
from aioprefetch.accessor.sink import Sink
from aioprefetch.errors import CredentialsExpired
from aioprefetch.runtime.events import DURATIONS
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.runtime.statistics import Timer
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.key_source import KeySource, OwnLoop, SingleFlight
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.responses import no_success
from aioprefetch.values import Request

Response = Mapping[str, Any]

# Of each call its counter, its HTTP method, and the operation in events where the request has another.
_SENT = {
    "get_object": ("action_http_get_request", "GET", ""),
    "head_object": ("action_http_head_request", "HEAD", ""),
    "list_objects_v2": ("object_list_request", "GET", ""),
    "list_object_versions": ("object_list_request", "GET", ""),
    "put_object": ("object_put_request", "PUT", ""),
    "upload_part": ("object_put_request", "PUT", ""),
    "create_multipart_upload": ("object_multipart_initiated", "POST", "begin_upload"),
    "complete_multipart_upload": ("multipart_upload_completed", "POST", "complete_upload"),
    "abort_multipart_upload": ("object_multipart_aborted", "DELETE", ""),
    "list_multipart_uploads": ("object_multipart_list", "GET", ""),
    "copy_object": ("object_copy_request", "PUT", ""),
    "upload_part_copy": ("object_copy_request", "PUT", ""),
    "delete_object": ("object_delete_request", "DELETE", ""),
    "delete_objects": ("object_delete_request", "POST", ""),
}
# Calls that read or write bytes of an object, and so need the customer's key.
_ENCRYPTED = {
    *("get_object", "head_object", "put_object", "copy_object"),
    *("create_multipart_upload", "upload_part", "upload_part_copy", "complete_multipart_upload"),
}
# Calls whose success has no body: another server's would pass for it.
_WITHOUT_BODY = {"put_object", "upload_part", "delete_object", "abort_multipart_upload"}
# Calls for a bucket itself, which know nothing of payers and keys.
_OF_BUCKETS = {"create_bucket", "delete_bucket"}


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
        response, reported = await self._called(request, method, parameters, None)
        if reported is not None:
            reported.finished()
        return response

    async def open(
        self, request: Request, method: str, sink: Sink, **parameters: Any
    ) -> tuple[Response, ReportedRequest | None]:
        """Call like ``call``, but leave the body to the caller, and the end of the request in events."""
        return await self._called(request, method, parameters, sink)

    async def _called(
        self, request: Request, method: str, parameters: dict[str, Any], sink: Sink | None
    ) -> tuple[Response, ReportedRequest | None]:
        """``sink``: that of the body, if it is received by the caller."""
        from aioprefetch.services.s3.client_maker import calling

        generation = self._keys.generation
        client = await self.connected(request)
        reported = (
            self._report(request, method, parameters.get("Body"), sink) if self.runtime.events.wants_requests else None
        )
        with self._counted(method) as timer:
            try:
                with calling(streams=sink is not None) as call:
                    response: Response = await getattr(client, method)(**self._complete(method, parameters))
                    if method in _WITHOUT_BODY and (call.body_bytes or _status_of(response) not in (200, 204)):
                        raise no_success(f"({_status_of(response)}) has a body of {call.body_bytes} bytes", request)
                if reported is not None:
                    reported.responded(_status_of(response), None)
                return response, reported
            except Exception as error:
                explained = self.explainer.explained(error, request)
                if timer is not None and is_unmodified(request, explained):
                    timer.end(None)
                if reported is not None and (status := _status_of(getattr(error, "response", None))) is not None:
                    reported.responded(status, None)
            except asyncio.CancelledError as error:
                if reported is not None:
                    reported.failed(error)
                raise
        if reported is not None:
            reported.failed(explained)
        if isinstance(explained, CredentialsExpired):
            self._keys.renew(generation)
        # Outside of the handler, where Python does not chain the exception.
        try:
            raise explained from explained.__cause__
        finally:
            del explained  # Its traceback holds this frame.

    def _report(self, request: Request, method: str, body: Sized | None, sink: Sink | None) -> ReportedRequest | None:
        if method not in _SENT:
            return None
        _, http_method, operation = _SENT[method]
        parts = urlsplit(self._client.meta.endpoint_url)
        return ReportedRequest(
            self.runtime,
            request,
            sink,
            operation=operation,
            method=http_method,
            url=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}",
            sent_bytes=0 if body is None else len(body),
        )

    def _counted(self, method: str) -> AbstractContextManager[Timer | None]:
        if method not in _SENT:
            return nullcontext()
        counter = _SENT[method][0]
        if counter in DURATIONS:
            return self.runtime.timer(counter)
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
        try:
            raise explained from explained.__cause__
        finally:
            del explained  # Its traceback holds this frame.

    def _complete(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        complete = {name: value for name, value in parameters.items() if value is not None}
        if method == "list_buckets":
            return complete
        complete["Bucket"] = self.options.bucket
        if method in _OF_BUCKETS:
            return complete
        if self.options.request_payer:
            complete["RequestPayer"] = "requester"
        key = self._customer_key
        if key is not None and method in _ENCRYPTED:
            complete |= {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key}
            if method in ("copy_object", "upload_part_copy"):
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
        try:
            raise explained from explained.__cause__
        finally:
            del explained  # Its traceback holds this frame.

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


def _status_of(response: Any) -> int | None:
    """The status of a response as botocore shows it; ``None`` where it shows none."""
    metadata = response.get("ResponseMetadata") if isinstance(response, Mapping) else None
    status = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
    return status if isinstance(status, int) else None
