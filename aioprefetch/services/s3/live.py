"""The live parts of one recipe within a runtime: keys, connections, and the client of aiobotocore."""

from __future__ import annotations

from aioprefetch.errors import Error
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.client import S3Client
from aioprefetch.services.s3.configuration import configuration_of
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.key_source import KeySource
from aioprefetch.services.s3.object_requests import ObjectRequests
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.signed_requests import SignedRequests
from aioprefetch.services.s3.single_flight import SingleFlight
from aioprefetch.values import Request


class S3Live:
    """The live parts of one recipe for one principal. ``requests`` are there once the configuration has been read."""

    def __init__(self, options: S3Options, runtime: Runtime, principal: str) -> None:
        self.options = options
        self.explainer = Explainer(options, principal)
        self.keys = KeySource(options, runtime, principal, self.explainer)
        self.client = S3Client(options, runtime, self.keys, self.explainer)
        self.requests: ObjectRequests | None = None
        self._runtime = runtime
        self._opening = SingleFlight(runtime, self._open, "s3 configuration")

    async def opened(self, request: Request) -> ObjectRequests:
        """The way of requests for objects. Raises ``ConfigInvalid`` for a configuration that cannot work."""
        if self.requests is not None:
            return self.requests
        try:
            return await self._opening.get()
        except Error as error:
            explained = self.explainer.explained(error, request)
        raise explained from explained.__cause__

    async def _open(self) -> ObjectRequests:
        configuration = await self._runtime.run_blocking(configuration_of, self.options)
        if configuration.why_aiobotocore:
            self._runtime.events.publish("s3.through_aiobotocore", "", why=configuration.why_aiobotocore)
            from aioprefetch.services.s3.client_requests import ClientRequests

            self.requests = ClientRequests(self.options, self.client, self.explainer, self._runtime)
        else:
            self.requests = SignedRequests(self.options, configuration, self.keys, self.explainer, self._runtime)
        return self.requests
