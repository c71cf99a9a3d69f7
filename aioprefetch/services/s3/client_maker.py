"""The making of a client of aiobotocore: imports and files, on a thread and an event loop of its own."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from aioprefetch.errors import ConfigInvalid, MissingDependency
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.configuration import customer_key, proxy_urls
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.key_source import KeySource
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.session import (
    guard,
    parser_factory,
    redact_logs,
    replace_error_handler,
    session_class,
)
from aioprefetch.services.s3.sigv4 import AccessKeys
from aioprefetch.values import Request


class ClientMaker:
    """Makes a client in a thread: ``load`` imports and reads files, ``make`` does the rest."""

    _session: Any
    _region: str | None

    def __init__(self, options: S3Options, keys: KeySource, runtime: Runtime, explainer: Explainer) -> None:
        self.customer_key: bytes | None = None
        self._options = options
        self._keys = keys
        self._runtime = runtime
        self._connections = options.connections(runtime.options.concurrency)
        self._explainer = explainer

    def load(self) -> None:
        """Import and read files, which blocks."""
        self.customer_key = customer_key(self._options)
        self._session, self._region = _load_session(self._options)
        self._session.register_component("response_parser_factory", parser_factory(self._runtime))
        if not self._options.anonymous:
            self._session.register_component("credential_provider", _Provider(self._keys))
        redact_logs(self._explainer)

    async def make(self) -> Any:
        """A new client."""
        options = self._options
        client = await self._session.create_client(
            "s3",
            region_name=self._region,
            endpoint_url=options.endpoint_url,
            verify=options.ca_file,
            config=_config(options, self._connections),
        ).__aenter__()
        try:
            # Botocore may have found the endpoint in the environment or in a profile.
            options.check_endpoint(client.meta.endpoint_url)
        except BaseException:
            await client.close()
            raise
        client.meta.events.register_first("needs-retry.s3", guard)
        replace_error_handler(client)
        redact_logs(self._explainer)  # Also the loggers of modules that were imported meanwhile.
        return client


class _Provider:
    """The provider of keys for botocore: those that our own requests are signed with."""

    def __init__(self, keys: KeySource) -> None:
        self._keys = keys

    async def load_credentials(self) -> Any:
        return _credentials_class()(self._keys)


@cache
def _credentials_class() -> type[Any]:
    from aiobotocore.credentials import AioCredentials
    from botocore.credentials import ReadOnlyCredentials

    class SourcedCredentials(AioCredentials):  # type: ignore[misc]  # aiobotocore has no types
        """Credentials that are looked up for each signature."""

        def __init__(self, keys: KeySource) -> None:
            super().__init__("", "", method="aioprefetch")
            self._source = keys

        async def get_frozen_credentials(self) -> Any:
            keys: AccessKeys = await self._source.get(Request(path=""))
            return ReadOnlyCredentials(keys.key_id, keys.secret, keys.token)

    return SourcedCredentials


def _load_session(options: S3Options) -> tuple[Any, str | None]:
    """The session and the region. Runs in a thread: imports and files together take about half a second."""
    try:
        from aiobotocore.session import AioSession
    except ImportError as error:
        raise MissingDependency("this needs aiobotocore: pip install 'aioprefetch[s3]'") from error
    if options.ca_file is not None and not os.path.isfile(options.ca_file):
        raise ConfigInvalid(f"ca_bundle={options.ca_file!r} is not a file")
    ambient = options.ambient(files=True)
    # Keys of our own need no profile; the profile in AWS_PROFILE may not even exist here.
    unnamed = {"profile": (None, None, None, None)} if not ambient.profile else None
    session = AioSession(profile=options.profile, session_vars=unnamed)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    session.warm_up_loader_caches("s3")
    # Stores other than AWS hardly use the region, but a signature needs it.
    default = "us-east-1" if options.endpoint_url or ambient.endpoint else None
    return session, options.region or ambient.region or session.get_config_variable("region") or default


@cache
def _loader(data_path: str | None) -> Any:
    """Botocore's reader of its own data, one for the process: parsing megabytes of JSON takes 0.15 seconds."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def _config(options: S3Options, connections: int) -> Any:
    from aiobotocore.config import AioConfig
    from botocore import UNSIGNED

    urls = proxy_urls(options)
    style = options.addressing_style
    return AioConfig(
        http_session_cls=session_class(),
        max_pool_connections=connections,
        connect_timeout=options.connect_timeout_seconds,
        read_timeout=options.read_timeout_seconds,
        retries={"total_max_attempts": 1, "mode": "standard"},
        signature_version=UNSIGNED if options.anonymous else "s3v4",
        # Without a style of its own the recipe has that of the profile.
        s3=None if style == "auto" else {"addressing_style": style},
        proxies=None if urls is None else dict(urls),
        # A range carries no checksum that could be checked, and stores other than AWS send wrong ones with it.
        response_checksum_validation="when_required",
        request_checksum_calculation="when_required",
    )
