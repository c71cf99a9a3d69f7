"""One signature for all ranges of an object: a presigned URL signs the host alone, so ranges and conditions go free.

A URL is used for a few minutes and replaced long before it expires; botocore never signs with credentials that have
less than ten minutes to live, so it does not outlive those either. It is a bearer token and shown nowhere.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from aioprefetch.errors import TimedOut
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.client import S3Client
from aioprefetch.transport import DEFAULT_PORTS, Origin, Target
from aioprefetch.values import ReadRequest

EXPIRES_SECONDS = 900
RENEWED_AFTER_SECONDS = 300.0
OBJECTS_MAX = 10_000


class Signed:
    """A signed target, and the time until which it is used."""

    __slots__ = ("generation", "made_at", "target", "until_seconds")

    def __init__(self, target: Target, made_seconds: float, generation: int) -> None:
        self.target = target
        self.generation = generation
        # Wall-clock time: unlike ``loop.time()`` it advances during suspend.
        self.made_at = time.time()
        self.until_seconds = made_seconds + RENEWED_AFTER_SECONDS


class PresigningRefused(Exception):
    """A presigned URL cannot serve: the store refuses it, or lies behind a proxy. Nothing was read."""


class Signatures:
    """The signed targets of one service within a runtime, ``objects_max`` at most: the least recently used go first."""

    def __init__(self, client: S3Client, runtime: Runtime, *, objects_max: int = OBJECTS_MAX) -> None:
        self._objects_max = objects_max
        self._client = client
        self._runtime = runtime
        self._now = runtime.loop.time
        self._signed: OrderedDict[tuple[str, str | None], Signed] = OrderedDict()
        self._signing = asyncio.Lock()

    def find(self, request: ReadRequest) -> Signed | None:
        """The target of an object, if it was signed recently."""
        identity = (request.path, request.version)
        signed = self._signed.get(identity)
        if signed is None or signed.until_seconds <= self._now() or signed.generation != self._client.generation:
            return None
        # The order of use matters only when a target may have to be dropped.
        if len(self._signed) > self._objects_max // 2:
            self._signed.move_to_end(identity)
        return signed

    async def sign(self, request: ReadRequest, key: str) -> Signed:
        """The target of an object, signed now unless a concurrent read has signed it.

        Raises ``PresigningRefused``, and errors of ours for missing or expired credentials.
        """
        options = self._client.options
        limit_seconds = options.connect_timeout_seconds + options.read_timeout_seconds
        try:
            async with asyncio.timeout(limit_seconds) as limit:
                # One at a time: signing is a millisecond of computing, and a wait for the same object finds it signed.
                async with self._signing:
                    return self.find(request) or await self._sign(request, key)
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimedOut(
                f"the credentials were not there within {limit_seconds:g} seconds", operation="read", path=request.path
            ) from None

    async def _sign(self, request: ReadRequest, key: str) -> Signed:
        generation = self._client.generation
        url = await self._client.presigned_url(
            request, "get_object", Key=key, VersionId=request.version, ExpiresIn=EXPIRES_SECONDS
        )
        self._runtime.counters["transport_signatures"] += 1
        signed = Signed(self._target(url), self._runtime.now(), generation)
        self._signed[request.path, request.version] = signed
        while len(self._signed) > self._objects_max:
            self._signed.popitem(last=False)
        return signed

    def forget(self, request: ReadRequest, signed: Signed) -> None:
        """Drop a target that the store calls expired."""
        if self._signed.get((request.path, request.version)) is signed:
            del self._signed[request.path, request.version]

    def _target(self, url: str) -> Target:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if self._is_proxied(parts.scheme, host):
            raise PresigningRefused
        origin = Origin(parts.scheme, host, parts.port or DEFAULT_PORTS[parts.scheme])
        return Target(origin, f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}")

    def _is_proxied(self, scheme: str, host: str) -> bool:
        proxies = self._client.options.proxies
        if proxies is not None:
            return scheme in proxies
        return scheme in getproxies() and not proxy_bypass(host)
