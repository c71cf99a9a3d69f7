"""The making of a client of aiobotocore: imports, files and credentials, on a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import cache
from typing import Any

from aioprefetch.credentials import Secret, digest
from aioprefetch.errors import ConfigInvalid, MissingDependency, PermissionDenied
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.s3.errors import Explainer
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.session import (
    guard,
    parser_factory,
    redact_logs,
    replace_error_handler,
    session_class,
)


class LiveClient:
    """A client of aiobotocore, the credentials it was made with, and how many calls and bodies still use it."""

    __slots__ = ("ca_bundle", "client", "identity", "is_retired", "users")

    def __init__(self, client: Any, identity: str, ca_bundle: str) -> None:
        self.client = client
        self.identity = identity
        self.ca_bundle = ca_bundle
        self.users = 0
        self.is_retired = False


class OwnLoop:
    """An event loop that makes one client, in the thread that calls ``run``."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def run(self, maker: ClientMaker) -> LiveClient | None:
        """Let ``maker`` read its files before there is a loop, and ask for credentials on one."""
        maker.load()
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            self._loop = runner.get_loop()
            return runner.run(self._make(maker))

    async def _make(self, maker: ClientMaker) -> LiveClient | None:
        self._task = asyncio.current_task()
        if self._cancelled:
            raise asyncio.CancelledError
        return await maker.make()

    def cancel(self) -> None:
        """End a wait for the network. May be called on any thread."""
        self._cancelled = True
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # The loop has just ended.
                self._loop.call_soon_threadsafe(self._task.cancel)


class ClientMaker:
    """Makes a client in a thread: ``load`` imports and reads files, ``make`` asks for credentials and does the rest."""

    _session: Any
    _region: str | None
    _ca_bundle: str

    def __init__(
        self,
        options: S3Options,
        keys: dict[str, str | None],
        previous: LiveClient | None,
        runtime: Runtime,
        explainer: Explainer,
        principal: str,
    ) -> None:
        self._options = options
        self._keys = keys
        self._previous = previous
        self._runtime = runtime
        self._connections = options.connections(runtime.options.concurrency)
        self._explainer = explainer
        self._principal = principal

    def load(self) -> None:
        """Import and read files, which blocks."""
        own = self._options.anonymous or bool(self._keys)
        self._session, self._region, self._ca_bundle = _load_session(self._options, own=own)
        self._session.register_component("response_parser_factory", parser_factory(self._runtime))
        redact_logs(self._explainer)

    def _check_principal(self) -> None:
        """Refuse the keys of another principal: their bytes would stand in caches under the name of the first one.

        The names of the identities are compared. A role has new keys each time, and stays the same identity.
        """
        principal = self._options.info.principal
        if principal != self._principal:
            raise PermissionDenied(
                f"the credentials are those of {principal!r} by now, and this operator stands for {self._principal!r}: "
                "make a new Operator for them"
            )

    async def make(self) -> LiveClient | None:
        """A new client; ``None`` if the credentials are those of the previous one."""
        identity = await self._identity()
        if self._previous is not None and identity == self._previous.identity:
            return None
        self._check_principal()
        client = await self._create()
        redact_logs(self._explainer)  # Also the loggers of modules that were imported meanwhile.
        return LiveClient(client, identity, self._ca_bundle)

    async def _identity(self) -> str:
        """A digest of the access key and token that requests are signed with."""
        keys = self._keys
        identity = (keys.get("aws_access_key_id"), keys.get("aws_session_token"))
        if not keys and not self._options.anonymous:
            # Providers that ask another service for keys need a region for it.
            self._session.set_config_variable("region", self._region)
            credentials = await self._session.get_credentials()
            self._explainer.credentials = credentials
            frozen = None if credentials is None else await credentials.get_frozen_credentials()
            identity = (None, None) if frozen is None else (frozen.access_key, frozen.token)
        return digest(*(part or "" for part in identity))

    async def _create(self) -> Any:
        options = self._options
        client = await self._session.create_client(
            "s3",
            region_name=self._region,
            endpoint_url=options.endpoint_url,
            verify=options.ca_bundle,
            config=_config(options, self._connections),
            **self._keys,
        ).__aenter__()
        try:
            # Botocore may have found the endpoint in the environment or in a profile.
            options.check_endpoint(client.meta.endpoint_url)
        except BaseException:
            await client.close()
            raise
        client.meta.events.register_first("needs-retry.s3", guard)
        replace_error_handler(client)
        return client


def revealed(secret: Secret, option: str) -> str | None:
    """The value; ``None`` for a literal that stayed in another process. A variable that is not set is an error."""
    value = secret.reveal()
    if value is None and not secret.is_literal:
        raise ConfigInvalid(f"{option} is {secret.fingerprint()!r}, but that environment variable is not set")
    return value


def _load_session(options: S3Options, *, own: bool) -> tuple[Any, str | None, str]:
    """The session, the region, and the file of authorities that botocore trusts.

    Runs in a thread: imports and files together take about half a second.
    """
    try:
        from aiobotocore.session import AioSession
        from botocore.httpsession import get_cert_path
    except ImportError as error:
        raise MissingDependency("the S3 service needs aiobotocore: pip install 'aioprefetch[s3]'") from error
    if options.ca_bundle is not None and not os.path.isfile(options.ca_bundle):
        raise ConfigInvalid(f"ca_bundle={options.ca_bundle!r} is not a file")
    # Keys of our own need no profile; the profile in AWS_PROFILE may not even exist here.
    session = AioSession(profile=options.profile, session_vars={"profile": (None, None, None, None)} if own else None)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    session.warm_up_loader_caches("s3")
    # Stores other than AWS hardly use the region, but a signature needs it.
    info = options.info
    default = "us-east-1" if info.endpoint else None
    bundle = options.ca_bundle or session.get_config_variable("ca_bundle") or get_cert_path(verify=True)
    return session, info.region or session.get_config_variable("region") or default, bundle


@cache
def _loader(data_path: str | None) -> Any:
    """Botocore's reader of its own data, one for the process: parsing megabytes of JSON takes 0.15 seconds."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def _config(options: S3Options, connections: int) -> Any:
    from aiobotocore.config import AioConfig
    from botocore import UNSIGNED

    proxies = None
    if options.proxies is not None:
        proxies = {scheme: _proxy(scheme, url) for scheme, url in options.proxies.items()}
    return AioConfig(
        http_session_cls=session_class(),
        max_pool_connections=connections,
        connect_timeout=options.connect_timeout_seconds,
        read_timeout=options.read_timeout_seconds,
        retries={"total_max_attempts": 1, "mode": "standard"},
        signature_version=UNSIGNED if options.anonymous else "s3v4",
        s3={"addressing_style": options.addressing_style},
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
