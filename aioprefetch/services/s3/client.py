"""The live client: one aiobotocore client for a runtime, made at first use, and the one place that calls it.

aiobotocore has no types, so ``Any`` stays in here: the rest sees our requests, dictionaries and errors.
"""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any

from aioprefetch.credentials import Secret
from aioprefetch.errors import Closed, ConfigInvalid, Error, MissingDependency, PermissionDenied
from aioprefetch.runtime import Runtime
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.options import sse_key_bytes
from aioprefetch.services.s3.session import answers_closed_on_failure, guard, session_class
from aioprefetch.services.service_accessor import is_unmodified
from aioprefetch.statistics import Timer
from aioprefetch.telemetry import DURATIONS
from aioprefetch.values import Request

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


class S3Client:
    """One client for one runtime. The first call makes it; concurrent first calls wait for the same one.

    It is made in the background, so that a caller that is cancelled takes it from nobody else, and closed with the
    runtime.
    """

    def __init__(self, service: S3, runtime: Runtime) -> None:
        self.service = service
        self.runtime = runtime
        self.explainer = Explainer(service)
        # Counts the clients made anew: what an earlier one signed is not used any more.
        self.generation = 0
        self._client: Any = None
        self._retired: list[Any] = []
        self._making: asyncio.Future[Any] | None = None
        self.ca_bundle: str | None = service.ca_bundle
        self._sse_key: bytes | None = None
        self._closer_known = False

    async def call(self, request: Request, method: str, **parameters: Any) -> Reply:
        """Call one method of the client for ``request``; every failure is one of ours, with operation and path."""
        try:
            client = await self.connected()
            with self._counted(method) as timer:
                return await self._send(client, request, method, parameters, timer)
        except Error as error:
            raise error.add_context(operation=request.operation, path=request.path) from error.__cause__
        except Exception as error:
            raise self.explainer.explain(error, request) from error

    def _counted(self, method: str) -> AbstractContextManager[Timer | None]:
        counter = _COUNTERS.get(method)
        if counter is not None and counter in DURATIONS:
            return self.runtime.timer(counter)
        if counter is not None:
            self.runtime.counters[counter] += 1
        return nullcontext()

    async def _send(
        self, client: Any, request: Request, method: str, parameters: dict[str, Any], timer: Timer | None
    ) -> Reply:
        try:
            with answers_closed_on_failure():
                reply: Reply = await getattr(client, method)(**self._complete(method, parameters))
                return reply
        except Error:
            raise
        except Exception as error:
            explained = self.explainer.explain(error, request)
            if timer is not None and is_unmodified(request, explained):
                timer.end(None)
            raise explained from error

    async def presigned_url(self, request: Request, method: str, **parameters: Any) -> str:
        """A URL that does what ``method`` would do."""
        expires_seconds = parameters.pop("ExpiresIn")
        try:
            client = await self.connected()
            url: str = await client.generate_presigned_url(
                method, Params=self._complete(method, parameters), ExpiresIn=expires_seconds
            )
            return url
        except Error as error:
            raise error.add_context(operation=request.operation, path=request.path) from error.__cause__
        except Exception as error:
            raise self.explainer.explain(error, request) from error

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
        """The client, made now if it is the first time. If cancelled, it is made all the same."""
        if self._client is not None:
            return self._client
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
            raise copy.copy(error) from error.__cause__

    def renew(self, generation: int) -> None:
        """The store calls the credentials of that generation expired: ask the provider chain again, once.

        Keys given as literals cannot be asked for again. Calls that are on their way end with the old client.
        """
        if generation != self.generation or self._client is None or self._has_literal_keys():
            return
        self.generation += 1
        self._retired.append(self._client)
        self._client = self._making = None

    def _has_literal_keys(self) -> bool:
        secret = Secret.of(self.service.access_key_id)
        return self.service.anonymous or (secret is not None and secret.is_literal)

    async def _make(self, made: asyncio.Future[Any]) -> None:
        try:
            client = await self._create()
        except Exception as error:
            self._making = None  # the next caller tries again
            made.set_exception(error)
            made.exception()  # seen, even if every waiter is gone
        else:
            self._client = client
            made.set_result(client)

    async def _create(self) -> Any:
        service = self.service
        keys = self._keys()
        self._sse_key = self._customer_key()
        session, region, self.ca_bundle = await self.runtime.run_blocking(_load_session, service)
        client = await session.create_client(
            "s3",
            region_name=region,
            endpoint_url=service.endpoint_url,
            verify=service.ca_bundle,
            config=_config(service, service.connections(self.runtime.options.concurrency)),
            **keys,
        ).__aenter__()
        try:
            # Botocore may have found the endpoint in the environment or in a profile.
            service.check_endpoint(client.meta.endpoint_url)
        except BaseException:
            await client.close()
            raise
        client.meta.events.register_first("needs-retry.s3", guard)
        return client

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
        clients = [*self._retired, self._client]
        self._client = None
        self._retired.clear()
        for client in clients:
            if client is not None:
                await client.close()


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


def _load_session(service: S3) -> tuple[Any, str | None, str]:
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
    # Given keys need no profile; the one that AWS_PROFILE names may not even exist here.
    own = service.anonymous or service.access_key_id is not None
    session = AioSession(profile=service.profile, session_vars={"profile": (None, None, None, None)} if own else None)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    session.warm_up_loader_caches("s3")
    # Stores other than AWS hardly look at the region, but a signature needs one.
    default = "us-east-1" if service.info.endpoint else None
    bundle = service.ca_bundle or session.get_config_variable("ca_bundle") or get_cert_path(verify=True)
    return session, service.region or session.get_config_variable("region") or default, bundle


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
