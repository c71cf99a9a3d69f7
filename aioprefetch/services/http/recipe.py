"""The recipe of the http service."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Unpack

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.options import given
from aioprefetch.runtime.runtime import Runtime
from aioprefetch.services.http.accessor import HttpAccessor
from aioprefetch.services.http.options import HttpOptions
from aioprefetch.services.proxies import check_installed
from aioprefetch.transport.pool import HttpClient

if TYPE_CHECKING:
    from aioprefetch.services.uri_options import HttpUriOptions


@dataclass(frozen=True, slots=True, repr=False)
class Http(HttpOptions):
    """Objects below ``base_url``, to be read only: a key is appended to its path, percent-encoded.

    Raises ``ConfigInvalid`` for an option that cannot work; no message shows a secret. Pickles carry secrets by
    reference: pass ``env:NAME`` for headers that another process needs. ``ConnectionOptions`` documents ``ca_bundle``,
    ``proxies`` and the timeouts.

    Parameters
    ----------
    base_url
        ``http://`` or ``https://``. A query (of a shared access signature, say) is kept, sent with each request and
        shown nowhere; user and password become ``auth``.
    headers
        Sent to the origin of ``base_url`` alone, never to a target of its redirects.
    auth
        ``(user, password)``, or a bearer token; as text or ``Secret``, ``env:NAME`` for an environment variable.
    follow_redirects
        Follow up to five, never from https to http. At another origin ``auth``, ``headers`` and the query are not
        sent. ``False``: a redirect is ``RedirectRefused``.
    decode
        Decode what is sent in gzip or deflate against our wish. Each read receives all of such an object, of 64 MiB at
        most, and ``stat`` has no size. ``False``: the bytes are as sent.
    skip_bytes_max
        The maximum of bytes that are read and dropped to reach an offset on a server that ignores ranges.
    stat_method
        ``head``, ``get`` (a GET of one byte), or ``auto``: HEAD unless the server refuses it.
    """

    schemes: ClassVar[tuple[str, ...]] = ("http", "https")

    @classmethod
    def from_uri(cls, uri: str, **options: Unpack[HttpUriOptions]) -> Http:
        """The recipe for ``http(s)://host/base/``."""
        return cls(uri, **given(options))

    def build(self, runtime: Runtime) -> Accessor:
        check_installed("the http service", "http", "aiohappyeyeballs", "httptools")  # The transport needs them.
        options = self.client_options(runtime.options.concurrency)
        client = runtime.shared(("http client", options), lambda: HttpClient(runtime, options))
        return HttpAccessor(self, runtime, client, stall_seconds=options.wait_timeout_seconds)
