"""The one table from the errors of S3, and of botocore where it finds keys, to ours.

A row is found by the code in the response's body, else by its status; a failure that brought no response by the name of
its class, or of one it derives from. Messages say what to do. They hold a sentence of the store's own where ours would
be too general, with every secret that this process knows cut out of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote, urlsplit

from aioprefetch import errors
from aioprefetch.accessor.http_headers import parse_content_range, parse_http_date, parse_retry_after
from aioprefetch.accessor.service_base import EXISTS_ALREADY
from aioprefetch.errors import Error, Status, excerpt
from aioprefetch.lean_dataclass import dataclass
from aioprefetch.ranges import OFFSET_MAX
from aioprefetch.services.response_bodies import text_of
from aioprefetch.services.s3.options import S3Options
from aioprefetch.services.s3.responses import parse_error
from aioprefetch.services.s3.sigv4 import AccessKeys
from aioprefetch.values import (
    CopyRequest,
    DeleteRequest,
    ListRequest,
    PartRequest,
    ReadRequest,
    RenameRequest,
    Request,
    StatRequest,
    WriteRequest,
)

# A shorter text may stand in a response by chance.
SECRET_LENGTH_MIN = 4


class ListBucketsRequest(ListRequest):
    """A request for the buckets of an account, which names none of them."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``{names}`` in the text are filled in; ``quotes`` adds the store's own sentence."""

    kind: type[Error]
    text: str
    quotes: bool = False
    status: Status | None = None


_NO_OBJECT = Row(errors.NotFound, "there is no such object")
_NO_OBJECT_OR_BUCKET = Row(
    errors.NotFound, "there is no such object, or no bucket {bucket!r}: the response does not say which"
)
_NO_BUCKET = Row(
    errors.NotFound, "there is no bucket {bucket!r} here: create it, or check bucket, region and endpoint_url"
)
_DENIED = Row(
    errors.PermissionDenied,
    "the store refuses the identity {identity!r} for bucket {bucket!r}: check its permissions (reading takes "
    "s3:GetObject, listing s3:ListBucket, writing s3:PutObject), or {other_identity}",
    quotes=True,
)
_QUOTA = Row(errors.PermissionDenied, "a quota of the bucket or its owner is used up", quotes=True)
_EXPIRED = Row(
    errors.CredentialsExpired,
    "the credentials have expired: give new ones, or let a profile or role renew them",
)
_THROTTLED = Row(errors.Throttled, "the store asks for fewer requests")
_FAILED = Row(errors.Unavailable, "the store failed with {code}")
_ARCHIVED = Row(
    errors.PermissionDenied,
    "the object is archived ({storage_class}): restore it first (S3 RestoreObject), then read it",
)
_WRONG_REGION = Row(errors.ConfigInvalid, "bucket {bucket!r} is not served from the configured region: {set_region}")
_REDIRECT = Row(
    errors.RedirectRefused, "the store responded {http_status} for bucket {bucket!r} and was not followed: {set_region}"
)
_NO_PRESIGNING = Row(
    errors.Unsupported, "the store does not accept presigned URLs: leave signing='header', which is the default"
)
_LACKING = Row(errors.Unsupported, "the store does not support this", quotes=True)
_LACKING_UNTOLD = Row(
    errors.Unsupported, "the store does not support this, or endpoint_url leads to a server without S3", quotes=True
)
# The same of an account, whose buckets are asked for: no bucket is named.
_OF_ACCOUNT = {
    _DENIED: Row(
        errors.PermissionDenied,
        "the store refuses the identity {identity!r}: listing buckets takes s3:ListAllMyBuckets",
        quotes=True,
    ),
    _NO_BUCKET: Row(errors.NotFound, "the buckets are not listed here: check endpoint_url"),
    _WRONG_REGION: Row(errors.ConfigInvalid, "the buckets are not listed in the configured region: {set_region}"),
    _REDIRECT: Row(
        errors.RedirectRefused,
        "the store responded {http_status} to a list of buckets and was not followed: {set_region}",
    ),
}
# For a body of another kind of server.
_SPEAKS_TLS = Row(
    errors.ConfigInvalid, "the server speaks TLS, and was asked without: endpoint_url begins with https://"
)
_FOREIGN_TEXT = (
    "the server responded {http_status} as no store of S3 does ({foreign!r}): check endpoint_url, which may lead to "
    "a console, a website or a proxy"
)
_NO_S3 = Row(errors.ConfigInvalid, _FOREIGN_TEXT)
_NO_OBJECT_OF_S3 = Row(errors.NotFound, f"there is no such object; {_FOREIGN_TEXT}")
_DENIED_BY_ANOTHER = Row(errors.PermissionDenied, _FOREIGN_TEXT)
_CORRUPTED = Row(errors.Unavailable, "what was sent arrived damaged", quotes=True)
_NEEDS_CHECKSUM = Row(
    errors.InvalidArgument,
    "bucket {bucket!r} takes no object without a checksum, as under Object Lock: give checksum='sha256' to the "
    "operator, or to the write",
    quotes=True,
)
# The sentences of S3, MinIO and moto for that, whose codes differ.
_CHECKSUM_DEMANDED = re.compile(
    r"(content-md5|checksum)\b.*\brequired\b|\brequired\b.*(content-md5|checksum)\b", re.I | re.S
)
_BAD_ARGUMENT = Row(errors.InvalidArgument, "the store does not accept the request", quotes=True)

# The codes of conflicting changes: the refused one may be sent again.
_CONFLICTS = ("ConditionalRequestConflict", "OperationAborted")

BY_CODE: Mapping[str, Row] = {
    "NoSuchKey": _NO_OBJECT,
    "NoSuchVersion": Row(errors.NotFound, "there is no such version of the object"),
    "NoSuchBucket": _NO_BUCKET,
    "BucketAlreadyOwnedByYou": Row(errors.AlreadyExists, "the bucket {bucket!r} exists"),
    "BucketAlreadyExists": Row(
        errors.AlreadyExists,
        "the bucket {bucket!r} exists, of another account: all accounts share the names of buckets",
    ),
    "BucketNotEmpty": Row(errors.IsADirectory, "the bucket {bucket!r} is not empty"),
    "NoSuchUpload": Row(errors.Unexpected, "the multipart upload is gone: something else aborted it"),
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "QuotaExceeded": _QUOTA,
    "XMinioAdminBucketQuotaExceeded": _QUOTA,
    "TooManyBuckets": _QUOTA,
    "AccountProblem": _DENIED,
    "UnsupportedAlgorithm": _DENIED,  # the response of rclone to a request without a signature
    "SignatureDoesNotMatch": Row(
        errors.PermissionDenied,
        "the store does not accept the signature of {identity!r}: check secret_access_key, and region if it is not AWS",
    ),
    "InvalidAccessKeyId": Row(
        errors.PermissionDenied,
        "the store does not know the access key of {identity!r}: check access_key_id, endpoint_url, and whether the "
        "key needs a session_token",
    ),
    "InvalidToken": Row(errors.PermissionDenied, "the session_token does not belong to the keys of {identity!r}"),
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": Row(
        errors.ClockSkew,
        "this machine's clock is wrong: it says {own_date}, and the store says it is {server_date}; set the clock",
    ),
    "InvalidObjectState": _ARCHIVED,
    "PermanentRedirect": _REDIRECT,
    "TemporaryRedirect": _REDIRECT,
    "AuthorizationHeaderMalformed": _WRONG_REGION,
    "IllegalLocationConstraintException": _WRONG_REGION,
    "SlowDown": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "ThrottledException": _THROTTLED,
    "RequestThrottled": _THROTTLED,
    "RequestThrottledException": _THROTTLED,
    "KMS.ThrottlingException": _THROTTLED,
    "ProvisionedThroughputExceededException": _THROTTLED,
    "TooManyRequests": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "BandwidthLimitExceeded": _THROTTLED,
    "InternalError": _FAILED,
    "RequestTimeout": _FAILED,
    "BadDigest": _CORRUPTED,
    "IncompleteBody": _CORRUPTED,
    "XAmzContentSHA256Mismatch": _CORRUPTED,
    "XAmzContentChecksumMismatch": _CORRUPTED,
    "KeyTooLongError": Row(errors.InvalidPath, "the store finds the key too long"),
    "InvalidBucketName": Row(errors.ConfigInvalid, "the store does not accept bucket={bucket!r} as a name"),
    "EntityTooLarge": Row(errors.InvalidArgument, "the object is too large for one request", quotes=True),
    "AuthorizationQueryParametersError": _NO_PRESIGNING,
    "UnsupportedSignature": _NO_PRESIGNING,
    "NotImplemented": _LACKING,
    "MethodNotAllowed": _LACKING,
    "InvalidArgument": _BAD_ARGUMENT,
    "InvalidRequest": _BAD_ARGUMENT,
}

BY_STATUS: Mapping[int, Row] = {
    # The response to a HEAD has no body, so there is no code.
    400: Row(
        errors.PermissionDenied,
        "the store finds the request bad and says no more: expired credentials, a wrong region, an object under "
        "SSE-C read without sse_customer_key, or an endpoint_url that has to begin with https://",
    ),
    401: _DENIED,
    403: _DENIED,
    404: _NO_OBJECT_OR_BUCKET,
    405: _LACKING_UNTOLD,
    408: _FAILED,
    429: _THROTTLED,
    460: _FAILED,  # of load balancers of AWS, and the next one of Tigris: the client is said to have gone
    499: _FAILED,
    501: _LACKING_UNTOLD,
    503: _THROTTLED,
}

# The rows of the failures to find keys, and of botocore where it reads the files of AWS, by the names of their classes.
_NOT_FETCHED = "the credentials could not be fetched (asked: {asked})"
_REFUSED_KEYS = Row(errors.PermissionDenied, _NOT_FETCHED, quotes=True)
_NO_KEYS_NOW = Row(errors.PermissionDenied, _NOT_FETCHED, quotes=True, status="temporary")
BY_CLASS: Mapping[str, Row] = {
    "NoCredentialsError": Row(
        errors.PermissionDenied,
        "{no_keys} (asked last: {asked}): give access_key_id and secret_access_key (env:NAME names a variable), a "
        "profile, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or set anonymous=True for a public bucket",
    ),
    "PartialCredentialsError": Row(errors.ConfigInvalid, "the credentials are not complete", quotes=True),
    "TokenRetrievalError": Row(errors.PermissionDenied, f"{_NOT_FETCHED}: log in again", quotes=True),
    "SSOError": Row(errors.PermissionDenied, f"{_NOT_FETCHED}: log in again (aws sso login)", quotes=True),
    "LoginError": Row(errors.PermissionDenied, f"{_NOT_FETCHED}: log in again (aws login)", quotes=True),
    "ProfileNotFound": Row(
        errors.ConfigInvalid,
        "a profile is not in the AWS configuration files: check profile= and AWS_PROFILE",
        quotes=True,
    ),
    "ConfigParseError": Row(errors.ConfigInvalid, "the AWS configuration file cannot be read", quotes=True),
    "InvalidConfigError": Row(errors.ConfigInvalid, "a profile of AWS cannot give credentials", quotes=True),
    "NoRegionError": Row(errors.ConfigInvalid, "no region is configured: set region='...' or AWS_REGION"),
    "InvalidRegionError": Row(errors.ConfigInvalid, "the configured region is not a valid region", quotes=True),
    # Another attempt may help.
    "CredentialRetrievalError": _NO_KEYS_NOW,
    "MetadataRetrievalError": _NO_KEYS_NOW,
    "SSLError": _REFUSED_KEYS,
    "HTTPClientError": _NO_KEYS_NOW,
    "ConnectionError": _NO_KEYS_NOW,
    "OSError": _NO_KEYS_NOW,
}


class Reported(Exception):
    """The message of a library without secrets: the cause of an error of ours."""


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """The code, message and headers of an error response. It may repeat the request, so its repr is the code."""

    code: str
    http_status: int
    message: str = field(repr=False)
    fields: Mapping[str, Any] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    request_id: str = field(repr=False)
    # A body of another kind of server; ``b""`` for an error of S3.
    foreign_body: bytes = field(default=b"", repr=False)

    @classmethod
    def of_fields(
        cls, status: int, headers: Mapping[str, str], fields: Mapping[str, Any], foreign_body: bytes = b""
    ) -> ErrorResponse:
        """From a status, headers with names in lower case, and the elements of an error."""
        code = str(fields.get("Code") or "")
        ids = (headers.get("x-amz-request-id"), headers.get("x-amzn-requestid"), fields.get("RequestId"))
        return cls(
            code=code if re.fullmatch(r"[\w.-]{1,64}", code) else "",
            http_status=status,
            message=str(fields.get("Message") or ""),
            fields=fields,
            headers=headers,
            request_id=next((request_id for request_id in ids if request_id), ""),
            foreign_body=foreign_body,
        )

    @classmethod
    def from_http(cls, status: int, headers: Mapping[str, str], body: bytes) -> ErrorResponse:
        """From a response of the transport; names of headers are in lower case."""
        error = parse_error(body)
        return cls.of_fields(status, headers, error, b"" if error else body)

    @property
    def region(self) -> str | None:
        """The bucket's region, if the response names it."""
        region = self.headers.get("x-amz-bucket-region") or self.fields.get("Region")
        return region if isinstance(region, str) and re.fullmatch(r"[\w-]{1,63}", region) else None

    @property
    def redirected_to(self) -> str:
        """The origin that a redirect leads to, ``""`` for none: the rest of the URL may be signed."""
        parts = urlsplit(self.headers.get("location", ""))
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.scheme and parts.netloc else ""

    @property
    def total(self) -> int | None:
        """The object's size, where a response to a range beyond its end names it."""
        parsed = parse_content_range(self.headers.get("content-range", ""))
        if parsed is not None:
            return parsed[1]
        size = str(self.fields.get("ActualObjectSize", ""))
        return int(size) if re.fullmatch(r"[0-9]{1,19}", size) and int(size) <= OFFSET_MAX else None

    @property
    def retry_after_seconds(self) -> float | None:
        """How long the store asks to wait; AWS's own header counts milliseconds."""
        milliseconds = parse_retry_after(self.headers.get("x-amz-retry-after"))
        if milliseconds is not None:
            return milliseconds / 1000
        return parse_retry_after(self.headers.get("retry-after"))


class Explainer:
    """Makes the errors of one recipe; ``principal`` is the identity that its messages name.

    ``keys`` are the signing keys, of the recipe and of a session.
    """

    def __init__(self, options: S3Options, principal: str) -> None:
        self._options = options
        self._principal = principal
        self.keys: dict[str, AccessKeys] = {}

    def explained(self, error: Exception, request: Request, *, asked: str = "") -> Error:
        """The error for one of ours, or of botocore during ``request``; ``asked`` is what was asked for keys.

        Its cause is the message of botocore's, and not the exception, which holds what was sent.
        """
        if isinstance(error, Error):
            error.__context__ = None
            return error.with_traceback(None).add_context(operation=request.operation, path=request.path)
        said = self.scrub(str(error))
        facts: dict[str, Any] = {"operation": request.operation, "path": request.path}
        row = _row_of_failure(error, _REFUSED_KEYS if asked else Row(errors.Unexpected, type(error).__name__, True))
        text = row.text.format(no_keys=_no_keys(self._options), asked=asked)
        quoted = f"; it says: {said or type(error).__name__}" if row.quotes else ""
        explained = row.kind(f"{text}{quoted}", status=row.status, **facts)
        explained.__cause__ = Reported(f"{type(error).__module__}.{type(error).__qualname__}: {said}")
        return explained

    def from_response(self, response: ErrorResponse, request: Request) -> Error:
        """The error for a response without success."""
        context = {
            "http_status": response.http_status,
            "code": response.code,
            "request_id": self.scrub(response.request_id),
        }
        facts: dict[str, Any] = {
            "operation": request.operation,
            "path": request.path,
            "context": {name: value for name, value in context.items() if value},
            "retry_after_seconds": response.retry_after_seconds,
        }
        conditional = _condition(response, request, facts)
        if conditional is not None:
            return conditional
        if response.code == "InvalidRange" or response.http_status == 416:
            size = f"; the object has {response.total} bytes" if response.total is not None else ""
            text = f"the range starts at or beyond the end{size}"
            return errors.RangeNotSatisfied(text, total=response.total, **facts)
        foreign = text_of(response.foreign_body, self.without_secrets)
        if foreign:
            facts["context"] |= {"response": foreign}
        row = _row(response, request, is_foreign=bool(foreign))
        if self._lacks_checksum(response, request):
            row = _NEEDS_CHECKSUM
        if isinstance(request, ListBucketsRequest):
            row = _OF_ACCOUNT.get(row, row)
        return row.kind(self._text(row, response, response.message), status=row.status, **facts)

    def _lacks_checksum(self, response: ErrorResponse, request: Request) -> bool:
        """Whether the store demands a checksum of a request that had none."""
        if response.http_status != 400 or not isinstance(request, (WriteRequest, PartRequest, CopyRequest)):
            return False
        has_none = request.checksum is self._options.checksum is None
        return has_none and _CHECKSUM_DEMANDED.search(response.message) is not None

    def _text(self, row: Row, response: ErrorResponse, said: str) -> str:
        options = self._options
        where = f"set region={response.region!r}" if response.region else "set region to the bucket's region"
        if options.endpoint_url:
            where += ", or check endpoint_url"
        if response.redirected_to:
            where += f"; it leads to {response.redirected_to}"
        text = row.text.format(
            bucket=options.bucket,
            identity=self._principal,
            other_identity="give keys or a profile" if options.anonymous else "set anonymous=True for a public bucket",
            code=response.code or response.http_status,
            http_status=response.http_status,
            storage_class=self.scrub(str(response.fields.get("StorageClass") or "GLACIER")),
            own_date=datetime.now(UTC).replace(microsecond=0),
            server_date=parse_http_date(response.headers.get("date")) or "another time",
            set_region=where,
            foreign=text_of(response.foreign_body, self.without_secrets),
        )
        return f"{text}; it says: {self.scrub(said)}" if row.quotes and said else text

    def scrub(self, text: str) -> str:
        """A foreign text, short, without the secrets that this process knows."""
        return excerpt(self.without_secrets(text))

    def without_secrets(self, text: str) -> str:
        """A text without the secrets that this process knows, in the forms in which they travel."""
        for form in _forms_of(frozenset(self._known_secrets())):
            text = text.replace(form, "***")
        return text

    def _known_secrets(self) -> set[str]:
        values = [value for keys in self.keys.values() for value in (keys.key_id, keys.secret, keys.token)]
        secrets = (*self._options.known_secrets(), *values)
        return {value for value in secrets if value is not None and len(value) >= SECRET_LENGTH_MIN}


@lru_cache(maxsize=64)
def _forms_of(secrets: frozenset[str]) -> tuple[str, ...]:
    """All forms of all secrets, the longest secrets first. Kept, since each line of a log at DEBUG needs them."""
    return tuple(form for secret in sorted(secrets, key=len, reverse=True) for form in _forms(secret))


def _forms(secret: str) -> set[str]:
    """The forms of a secret in a URL, in XML or HTML, in JSON, and as a Python literal."""
    quoted = quote(secret, safe="")
    import html
    import json

    slashes = json.dumps(secret)[1:-1].replace("/", "\\/")
    return {secret, quoted, quoted.lower(), quote(secret), html.escape(secret), slashes, repr(secret)[1:-1]}


def _condition(response: ErrorResponse, request: Request, facts: dict[str, Any]) -> Error | None:
    """The error for a precondition that does not hold, ``None`` if the response is about something else."""
    if response.code in _CONFLICTS or (response.http_status == 409 and response.code in ("409", "")):
        facts["context"]["written"] = False
        return errors.Unavailable("another change of the object is going on: nothing was written", **facts)
    if isinstance(request, WriteRequest | CopyRequest | RenameRequest):
        is_of_source = "-source-" in str(response.fields.get("Condition"))
        if request.if_not_exists and not is_of_source and response.http_status == 412:
            return errors.AlreadyExists(EXISTS_ALREADY, **facts)
        if isinstance(request, WriteRequest) and request.if_match is not None and response.code in ("NoSuchKey", "404"):
            return errors.ConditionNotMatch(f"there is no object with the ETag {request.if_match!r}", **facts)
    if response.http_status == 304:
        return errors.ConditionNotMatch("the object is unchanged", **facts)
    if response.http_status == 412 or response.code == "PreconditionFailed":
        wanted, until = getattr(request, "if_match", None), getattr(request, "if_unmodified_since", None)
        wanted = wanted.get(request.path) if isinstance(wanted, Mapping) else wanted
        if wanted is None and until is not None:
            return errors.ConditionNotMatch(f"the object was modified after {until}", **facts)
        return errors.ConditionNotMatch(f"the object's ETag is not {wanted!r}", **facts)
    return None


def _row(response: ErrorResponse, request: Request, *, is_foreign: bool) -> Row:
    version = request.version if isinstance(request, (ReadRequest, StatRequest)) else None
    if isinstance(request, DeleteRequest) and len(request.versions) == 1:
        version = request.versions[0]
    if version is not None and (response.code == "InvalidArgument" or response.http_status in (400, 405)):
        # An identifier that the store cannot even parse, or the identifier of a delete marker.
        return BY_CODE["NoSuchVersion"]
    if isinstance(request, CopyRequest) and response.code == "InvalidRequest" and "itself" in response.message:
        return Row(errors.IsSameFile, "source and target are the same object")
    if response.code not in BY_CODE and response.http_status == 400 and response.region is not None:
        return _WRONG_REGION
    if 300 <= response.http_status < 400:
        return _REDIRECT
    if is_foreign and 400 <= response.http_status < 500 and response.http_status not in (408, 429, 460, 499):
        return _foreign_row(response, request)
    row = BY_CODE.get(response.code)
    if response.http_status == 404 and row is None and isinstance(request, (ListRequest, WriteRequest, PartRequest)):
        return _NO_BUCKET
    if row is None and (response.code in ("", str(response.http_status)) or response.http_status != 400):
        row = BY_STATUS.get(response.http_status)
    if row is None:
        row = (
            _FAILED
            if response.http_status >= 500
            else Row(errors.Unexpected, "the store responded {code}", quotes=True)
        )
    return row


def _foreign_row(response: ErrorResponse, request: Request) -> Row:
    """The row of a refusal by another kind of server, which may stand before the store."""
    body = response.foreign_body.lower()
    if response.http_status == 400 and b"https" in body and b"http " in body:
        return _SPEAKS_TLS
    if response.http_status in (401, 403):
        return _DENIED_BY_ANOTHER
    return _NO_OBJECT_OF_S3 if response.http_status == 404 and isinstance(request, ReadRequest) else _NO_S3


def _no_keys(options: S3Options) -> str:
    if options.keys_left_behind:
        return "the operator was pickled without its keys, and this process has none of its own"
    return "no credentials were found"


def _row_of_failure(error: Exception, otherwise: Row) -> Row:
    """The row of a failure of botocore, which for a response that another service gave is temporary or not."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0
        row = BY_CODE.get(response.get("Error", {}).get("Code", ""))
        return _NO_KEYS_NOW if status >= 500 or status == 429 or row in (_THROTTLED, _FAILED) else _REFUSED_KEYS
    rows = (BY_CLASS.get(kind.__name__) for kind in type(error).__mro__)
    return next(filter(None, rows), otherwise)
