"""The recipes of Google Cloud Storage and Azure, by URI: stores that obstore makes, where it is installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from aioprefetch.credentials import CredentialsProvider, Secret, frameless
from aioprefetch.errors import ConfigInvalid, MissingDependency, excerpt, printable, redact
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import ByteCount
from aioprefetch.runtime.options import checked_seconds
from aioprefetch.services.obspec.options import VARIABLES, CloudFactory
from aioprefetch.services.obspec.recipe import ObspecStore
from aioprefetch.services.proxies import check_transport

if TYPE_CHECKING:
    from aioprefetch.services.uri_options import AzureUriOptions, ContainerOptions, GcsUriOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeStore(CloudFactory):
    """Makes obstore's store of one bucket or container. It pickles, with references in place of secrets.

    ``settings`` are named as obstore names them, and ``client`` are those of its HTTP client.
    """

    scheme: str
    container: str
    settings: Mapping[str, Any]
    client: Mapping[str, Any]
    credentials: CredentialsProvider | None = None

    def __call__(self) -> Any:
        from obstore import store

        kind = "GCSStore" if self.scheme == "gs" else "AzureStore"
        provider = None if self.credentials is None else self.credentials.known()
        config = {
            name: value.known(name) if isinstance(value, Secret) else value for name, value in self.settings.items()
        }
        try:
            # Retry tries again, within its budget; obstore's time-out of 30 s would be for a whole body.
            return getattr(store, kind)(
                self.container,
                config=config,
                client_options=dict(self.client),
                retry_config={"max_retries": 0},
                credential_provider=provider,
            )
        except Exception as error:
            said = self._said_by(error)
        # Raised here, so that the exception of obstore is not its context: that may hold a secret.
        raise ConfigInvalid(
            f"obstore cannot use these options for {self.scheme}://{self.container}: {said}. Keys and accounts are"
            f" options, or come from variables whose names begin with {VARIABLES[kind]}",
            operation="configure",
        )

    def _said_by(self, error: Exception) -> str:
        """The message of obstore, without the secrets among the settings."""
        text = str(error).partition("\n\nDebug source:")[0]
        for name, value in self.settings.items():
            secret = value.reveal() if isinstance(value, Secret) else None
            if secret:
                text = text.replace(secret, f"<{name}>")
        return excerpt(redact(text).rstrip("."))


class CloudStore(ObspecStore):
    """A bucket or container of a cloud. Subclasses name the options of theirs; ``None`` leaves them to obstore.

    obstore takes what is not given from the environment, by its own names.
    """

    # Annotations without fields: they tell ``from_uri`` how to parse an environment variable.
    anonymous: bool
    allow_http: bool
    endpoint_url: str
    connect_timeout_seconds: float
    read_timeout_seconds: float

    scheme: ClassVar[str]
    # The names of the options, and obstore's.
    _settings: ClassVar[Mapping[str, str]]
    _secrets: ClassVar[tuple[str, ...]]

    @frameless
    def __init__(
        self,
        container: str,
        settings: Mapping[str, object],
        *,
        prefix: str = "",
        allow_http: bool | None = None,
        connect_timeout_seconds: float = 5.0,
        read_timeout_seconds: float = 20.0,
        part_bytes: ByteCount = 8 << 20,
        credentials: Callable[[], Any] | CredentialsProvider | None = None,
    ) -> None:
        _check_installed(self.scheme)
        if not container:
            raise ConfigInvalid(f"{self.scheme}:// needs the name of a container", operation="configure")
        given = {self._settings[name]: _text(value) for name, value in settings.items() if value is not None}
        for name in self._secrets:
            if self._settings[name] in given:
                given[self._settings[name]] = Secret.of(given[self._settings[name]])
        client = {
            "allow_http": bool(allow_http) or _goes_without_tls(settings, allow_http),
            "connect_timeout": _seconds("connect_timeout_seconds", connect_timeout_seconds),
            "read_timeout": _seconds("read_timeout_seconds", read_timeout_seconds),
            "timeout": timedelta(hours=1),
        }
        factory = MakeStore(
            scheme=self.scheme,
            container=container,
            settings=given,
            client=client,
            credentials=None if credentials is None else _checked_provider(credentials),
        )
        super().__init__(factory, name=container, prefix=prefix, part_bytes=part_bytes)


class Gcs(CloudStore):
    """A bucket of Google Cloud Storage, or a prefix of it, through obstore.

    Parameters
    ----------
    container
        The name of the bucket.
    service_account
        The path of a key file.
    application_credentials
        The path of application default credentials.
    service_account_key
        The text of a key file; ``env:NAME`` for a variable.
    credentials
        A provider of obstore, such as ``obstore.auth.google.GoogleCredentialProvider``, or a function like one.
    anonymous
        Send no credentials: a public bucket.
    endpoint_url
        Another address, such as that of an emulator.
    allow_http
        As for ``S3``: whether keys may go without TLS, ``None`` for to this machine alone.
    connect_timeout_seconds
        As for ``S3``.
    read_timeout_seconds
        As for ``S3``.
    part_bytes
        As for ``S3``.
    """

    schemes: ClassVar[tuple[str, ...]] = ("gs", "gcs")
    scheme = "gs"
    uri_options: ClassVar[tuple[str, ...]] = (
        *("service_account", "service_account_key", "application_credentials", "anonymous"),
        *("credentials", "endpoint_url", "allow_http"),
        *("connect_timeout_seconds", "read_timeout_seconds", "part_bytes"),
    )
    service_account: str
    service_account_key: Secret
    application_credentials: str
    _settings: ClassVar[Mapping[str, str]] = {
        "service_account": "service_account",
        "service_account_key": "service_account_key",
        "application_credentials": "application_credentials",
        "anonymous": "skip_signature",
        "endpoint_url": "base_url",
    }
    _secrets: ClassVar[tuple[str, ...]] = ("service_account_key",)

    @frameless
    def __init__(
        self,
        container: str,
        *,
        service_account: str | os.PathLike[str] | None = None,
        service_account_key: str | Secret | None = None,
        application_credentials: str | os.PathLike[str] | None = None,
        anonymous: bool | None = None,
        endpoint_url: str | None = None,
        **options: Unpack[ContainerOptions],
    ) -> None:
        settings = {
            "service_account": service_account,
            "service_account_key": service_account_key,
            "application_credentials": application_credentials,
            "anonymous": anonymous,
            "endpoint_url": endpoint_url,
        }
        super().__init__(container, settings, **options)

    @classmethod
    def from_uri(cls, uri: str, **options: Unpack[GcsUriOptions]) -> Gcs:
        """The recipe for ``gs://bucket/prefix``."""
        bucket, prefix = _place(uri)
        return cls(bucket, prefix=prefix, **options)


class Azure(CloudStore):
    """A container of Azure Blob Storage, or a prefix of it, through obstore.

    Parameters
    ----------
    container
        The name of the container.
    account_name
        The storage account; a URI ``abfss://container@account.dfs.core.windows.net/prefix`` names it too.
    account_key
        A shared key; ``env:NAME`` for a variable, here and below.
    sas_key
        A shared access signature.
    client_id
        The identifier of an application.
    client_secret
        The secret of that application.
    tenant_id
        The tenant of that application.
    credentials
        A provider of obstore, such as ``obstore.auth.azure.AzureCredentialProvider``, or a function like one.
    anonymous
        Send no credentials: a public container.
    use_emulator
        Azurite on this machine.
    endpoint_url
        Another address.
    allow_http
        As for ``S3``: whether keys may go without TLS, ``None`` for to this machine alone.
    connect_timeout_seconds
        As for ``S3``.
    read_timeout_seconds
        As for ``S3``.
    part_bytes
        As for ``S3``.
    """

    schemes: ClassVar[tuple[str, ...]] = ("az", "azure", "abfs", "abfss", "adl")
    scheme = "az"
    uri_options: ClassVar[tuple[str, ...]] = (
        *("account_name", "account_key", "sas_key", "client_id", "client_secret", "tenant_id"),
        *("credentials", "anonymous", "use_emulator", "endpoint_url", "allow_http"),
        *("connect_timeout_seconds", "read_timeout_seconds", "part_bytes"),
    )
    account_name: str
    account_key: Secret
    sas_key: Secret
    client_id: str
    client_secret: Secret
    tenant_id: str
    use_emulator: bool
    _settings: ClassVar[Mapping[str, str]] = {
        **{name: name for name in ("account_name", "account_key", "sas_key", "client_id", "client_secret")},
        "tenant_id": "tenant_id",
        "use_emulator": "use_emulator",
        "anonymous": "skip_signature",
        "endpoint_url": "endpoint",
    }
    _secrets: ClassVar[tuple[str, ...]] = ("account_key", "sas_key", "client_secret")

    @frameless
    def __init__(
        self,
        container: str,
        *,
        account_name: str | None = None,
        account_key: str | Secret | None = None,
        sas_key: str | Secret | None = None,
        client_id: str | None = None,
        client_secret: str | Secret | None = None,
        tenant_id: str | None = None,
        use_emulator: bool | None = None,
        anonymous: bool | None = None,
        endpoint_url: str | None = None,
        **options: Unpack[ContainerOptions],
    ) -> None:
        settings = {
            "account_name": account_name,
            "account_key": account_key,
            "sas_key": sas_key,
            "client_id": client_id,
            "client_secret": client_secret,
            "tenant_id": tenant_id,
            "use_emulator": use_emulator,
            "anonymous": anonymous,
            "endpoint_url": endpoint_url,
        }
        super().__init__(container, settings, **options)

    @classmethod
    def from_uri(cls, uri: str, **options: Unpack[AzureUriOptions]) -> Azure:
        """The recipe for ``az://container/prefix``, and ``abfss://container@account.dfs.core.windows.net/prefix``."""
        place, prefix = _place(uri)
        container, at, host = place.partition("@")
        if at:
            options.setdefault("account_name", host.partition(".")[0])
        return cls(container, prefix=prefix, **options)


def _check_installed(scheme: str) -> None:
    from importlib.util import find_spec

    if find_spec("obstore") is None:
        raise MissingDependency(f"{scheme}:// needs obstore: pip install 'aioprefetch[obspec]'", operation="configure")


def _place(uri: str) -> tuple[str, str]:
    scheme, _, rest = uri.partition("://")
    if "?" in rest or "#" in rest:
        raise ConfigInvalid(
            f"{printable(redact(uri))!r} has a query or a fragment: give credentials as options of {scheme}://",
            operation="configure",
        )
    place, _, prefix = rest.partition("/")
    return place, prefix


def _checked_provider(given: object) -> CredentialsProvider:
    if isinstance(given, CredentialsProvider):
        return given
    if isinstance(given, type) or not callable(given):
        raise ConfigInvalid(
            "credentials must be a provider of obstore, or a function as obstore takes it, not a"
            f" {type(given).__name__}",
            operation="configure",
        )
    return CredentialsProvider(given)


def _goes_without_tls(settings: Mapping[str, object], allow_http: bool | None) -> bool:
    """Whether the endpoint is one of plain http. ``ConfigInvalid`` for one to which no keys may be sent."""
    endpoint = settings.get("endpoint_url")
    if not isinstance(endpoint, str) or not endpoint.lower().startswith("http://"):
        return False
    check_transport(redact(endpoint), allow_http=allow_http, carries="" if settings.get("anonymous") else "credentials")
    return True


def _text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _seconds(name: str, value: float) -> timedelta:
    return timedelta(seconds=checked_seconds(name, value))
