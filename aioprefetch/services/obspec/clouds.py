"""The recipes of Google Cloud Storage and Azure, by URI: stores that obstore makes, where it is installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from aioprefetch.credentials import CredentialsProvider, Secret, frameless
from aioprefetch.errors import excerpt, printable, redact
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import FILE, FLAG, SECONDS, SECRET, TEXT, Checked, checked_options, invalid, option, table_of
from aioprefetch.services.obspec.options import PART_BYTES, VARIABLES, CloudFactory
from aioprefetch.services.obspec.recipe import ObspecStore
from aioprefetch.services.proxies import check_installed, check_transport

if TYPE_CHECKING:
    from aioprefetch.services.uri_options import AzureUriOptions, GcsUriOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeStore(CloudFactory):
    """Makes obstore's store of one bucket or container. It pickles, with references in place of secrets.

    ``settings`` are named as obstore names them, and ``client`` are settings of its HTTP client.
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
        raise invalid(
            f"obstore cannot use these options for {self.scheme}://{self.container}: {said}. Keys and accounts are"
            f" options, or come from variables whose names begin with {VARIABLES[kind]}"
        )

    def _said_by(self, error: Exception) -> str:
        """The message of obstore, without the secrets among the settings."""
        text = str(error).partition("\n\nDebug source:")[0]
        for name, value in self.settings.items():
            secret = value.reveal() if isinstance(value, Secret) else None
            if secret:
                text = text.replace(secret, f"<{name}>")
        return excerpt(redact(text).rstrip("."))


def _checked_provider(given: object, name: str) -> CredentialsProvider:
    if isinstance(given, CredentialsProvider):
        return given
    if isinstance(given, type) or not callable(given):
        raise invalid(
            f"{name} must be a provider of obstore, or a function as obstore takes it, not a {type(given).__name__}"
        )
    return CredentialsProvider(given)


class CloudStore(ObspecStore):
    """A bucket or container of a cloud. The rows of a subclass are settings of obstore; ``None`` leaves them to it.

    obstore takes what is not given from the environment, by its own names.

    Parameters
    ----------
    credentials
        A provider of obstore, such as ``GoogleCredentialProvider`` of ``obstore.auth.google`` and
        ``AzureCredentialProvider`` of ``obstore.auth.azure``, or a function like one.
    anonymous
        Send no credentials: a public bucket or container.
    endpoint_url
        Another address, such as an emulator's.
    allow_http
        As for ``S3``: whether keys may go without TLS, ``None`` for to this machine alone.
    connect_timeout_seconds
        As for ``S3``.
    read_timeout_seconds
        As for ``S3``.
    part_bytes
        As for ``S3``.
    """

    schemes: ClassVar[tuple[str, ...]]

    credentials: Callable[[], Any] | CredentialsProvider | None = option(
        None,
        Checked(_checked_provider, is_text=False),
        also="obstore:credential_provider other:session,token,bearer_token,credential,credentials_provider",
        hint="a provider of obstore, which gives tokens too",
    )
    allow_http: bool | None = option(None, FLAG)
    connect_timeout_seconds: float = option(5.0, SECONDS, also="boto3:connect_timeout other:connection_timeout")
    read_timeout_seconds: float = option(20.0, SECONDS, also="boto3:read_timeout other:request_timeout")
    part_bytes: int = option(
        8 << 20, PART_BYTES, also="boto3:multipart_chunksize,multipart_threshold obstore:part_size"
    )

    @frameless
    def __init__(self, container: str, *, prefix: str = "", **options: object) -> None:
        scheme, cls = self.schemes[0], type(self)
        check_installed(f"{scheme}://", "obspec", "obstore")
        if not container:
            raise invalid(f"{scheme}:// needs the name of a container")
        rows = table_of(cls)  # type: ignore[arg-type]  # A class has a hash.
        if unknown := min(options.keys() - rows.keys(), default=""):
            raise TypeError(f"{cls.__name__} got an unexpected keyword argument {unknown!r}")
        given = checked_options(cls, {**dict.fromkeys(rows), **options})
        for name, value in given.items():
            object.__setattr__(self, name, value)
        own = {name: given.pop(name) for name in tuple(given) if name not in vars(CloudStore)}
        client = {
            "allow_http": bool(given["allow_http"]) or _goes_without_tls(own, given["allow_http"]),
            "connect_timeout": timedelta(seconds=given["connect_timeout_seconds"]),
            "read_timeout": timedelta(seconds=given["read_timeout_seconds"]),
            "timeout": timedelta(hours=1),
        }
        factory = MakeStore(
            scheme=scheme,
            container=container,
            settings={
                next(rows[name].words("obstore"), name): value for name, value in own.items() if value is not None
            },
            client=client,
            credentials=given["credentials"],
        )
        super().__init__(factory, name=container, prefix=prefix, part_bytes=given["part_bytes"])


class Gcs(CloudStore):
    """A bucket of Google Cloud Storage, or a prefix of it, through obstore. ``CloudStore`` documents what it shares.

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
    """

    schemes: ClassVar[tuple[str, ...]] = ("gs", "gcs")

    service_account: str | os.PathLike[str] | None = option(
        None,
        FILE,
        also="other:service_account_path,token,security_token,session_token",
        hint="the path of a key file; service_account_key is its contents, anonymous=True sends no keys, and without"
        " any of them the environment has them",
    )
    service_account_key: str | Secret | None = option(None, SECRET, also="spark:serviceAccountSecretKey")
    application_credentials: str | os.PathLike[str] | None = option(None, FILE)
    anonymous: bool | None = option(None, FLAG, also="obstore:skip_signature fsspec:anon")
    endpoint_url: str | None = option(None, TEXT, also="obstore:base_url other:endpoint")

    if TYPE_CHECKING:

        def __init__(self, container: str, *, prefix: str = "", **options: Unpack[GcsUriOptions]) -> None: ...

    @classmethod
    def from_uri(cls, uri: str, **options: Unpack[GcsUriOptions]) -> Gcs:
        """The recipe for ``gs://bucket/prefix``."""
        bucket, prefix = _place(uri)
        return cls(bucket, prefix=prefix, **options)


class Azure(CloudStore):
    """A container of Azure Blob Storage, or a prefix of it, through obstore. ``CloudStore`` documents what it shares.

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
    use_emulator
        Azurite on this machine.
    """

    schemes: ClassVar[tuple[str, ...]] = ("az", "azure", "abfs", "abfss", "adl")

    account_name: str | None = option(None, TEXT, also="other:account,storage_account_name,username,user")
    account_key: str | Secret | None = option(
        None,
        SECRET,
        also="spark:accountSecretKey other:storage_account_key,key,access_key,secret,secret_key,password",
    )
    sas_key: str | Secret | None = option(
        None, SECRET, also="fsspec:sas_token spark:sasToken other:shared_access_signature"
    )
    client_id: str | None = option(None, TEXT)
    client_secret: str | Secret | None = option(None, SECRET)
    tenant_id: str | None = option(None, TEXT)
    anonymous: bool | None = option(None, FLAG, also="obstore:skip_signature fsspec:anon")
    use_emulator: bool | None = option(None, FLAG)
    endpoint_url: str | None = option(None, TEXT, also="obstore:endpoint")

    if TYPE_CHECKING:

        def __init__(self, container: str, *, prefix: str = "", **options: Unpack[AzureUriOptions]) -> None: ...

    @classmethod
    def from_uri(cls, uri: str, **options: Unpack[AzureUriOptions]) -> Azure:
        """The recipe for ``az://container/prefix``, and ``abfss://container@account.dfs.core.windows.net/prefix``."""
        place, prefix = _place(uri)
        container, at, host = place.partition("@")
        if at:
            options.setdefault("account_name", host.partition(".")[0])
        return cls(container, prefix=prefix, **options)


def _place(uri: str) -> tuple[str, str]:
    scheme, _, rest = uri.partition("://")
    if "?" in rest or "#" in rest:
        raise invalid(
            f"{printable(redact(uri))!r} has a query or a fragment: give credentials as options of {scheme}://"
        )
    place, _, prefix = rest.partition("/")
    return place, prefix


def _goes_without_tls(settings: Mapping[str, object], allow_http: bool | None) -> bool:
    """Whether the endpoint is one of plain http. ``ConfigInvalid`` for one to which no keys may be sent."""
    endpoint = settings.get("endpoint_url")
    if not isinstance(endpoint, str) or not endpoint.lower().startswith("http://"):
        return False
    check_transport(redact(endpoint), allow_http=allow_http, carries="" if settings.get("anonymous") else "credentials")
    return True
