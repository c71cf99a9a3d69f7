"""The requests of S3 for objects, pages, uploads, deletions of many, URLs and buckets, and their results.

A success is its result: an ETag, the name of an upload, the keys that are gone, or nothing at all where S3 says
nothing. Anything else is ``ProtocolError``, or the error that stands in its place.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from aioprefetch.accessor.http_headers import headers_about, http_date, quote_etag
from aioprefetch.accessor.response_check import DATED, bare_etag
from aioprefetch.errors import Error, InvalidArgument
from aioprefetch.services.keys import checked_key
from aioprefetch.services.s3.errors import ErrorResponse, ListBucketsRequest
from aioprefetch.services.s3.exchange import Exchange
from aioprefetch.services.s3.outcomes import GONE, may_have_happened
from aioprefetch.services.s3.responses import (
    USER_METADATA,
    ListedPage,
    described,
    metadata_of,
    no_success,
    no_token,
    parse_list_page,
    time_of,
    version_of,
    written_etag,
)
from aioprefetch.services.s3.signed_targets import COPY_SOURCE
from aioprefetch.services.s3.sigv4 import UNSIGNED_PAYLOAD, encoded_path, payload_hash
from aioprefetch.values import (
    AbortUploadRequest,
    Checksum,
    CompleteUploadRequest,
    CopyPartRequest,
    CopyRequest,
    CreateDirRequest,
    DeleteRequest,
    ListUploadsRequest,
    Metadata,
    PartRequest,
    PresignRequest,
    RenameRequest,
    Request,
    StatRequest,
    Upload,
    UploadedPart,
    UploadPage,
    WriteRequest,
)

if TYPE_CHECKING:
    from aioprefetch.transport.responses import ResponseHead

# A longer body is hashed in a thread.
LOOP_HASH_BYTES_MAX = 256 << 10

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
# The codes of a deletion of what is not there.
GONE_KEYS = ("NoSuchKey", "NoSuchVersion")
# A path, and one version of it or the current one.
Version = tuple[str, str | None]
# Some servers want a length with every PUT and POST.
_EMPTY = memoryview(b"")
# The response of a store that has one for deletions of one and of many.
_NO_FAILURE = re.compile(rb"\s*(<\?xml[^<>]*>\s*)?<DeleteResult[^<>]*/>\s*")
_BEGIN, _COMPLETE = "begin_upload", "complete_upload"
# The region whose buckets are made without a word about it; it is an error to name it.
_UNNAMED_REGION = "us-east-1"


class Requests(Exchange):
    """The requests of one recipe within a runtime. ``key`` is the key of the request's path."""

    # --- objects and pages --------------------------------------------------------------------------------------

    async def stat(self, request: StatRequest, key: str) -> Metadata:
        """The metadata of an object."""
        query = _given({"versionId": request.version})
        head, _ = await self.exchange(request, "HEAD", key, query)
        return metadata_of(head.headers, request, self.etags)

    async def list_page(self, request: Request, root: str, path: str, parameters: Mapping[str, str]) -> ListedPage:
        """One page of the keys that begin with ``root`` and ``path``."""
        kind = {} if "versions" in parameters else {"list-type": "2"}
        query = {**kind, "encoding-type": "url", "prefix": root + path, **parameters}
        head, body = await self.exchange(request, "GET", None, query, counter="object_list_request")
        page = await self._parsed(parse_list_page, body, request, root, path)
        if page.is_error:
            raise self._error_within(head, body, request)
        return page

    async def put(self, request: WriteRequest, key: str, data: bytes | bytearray | memoryview) -> Metadata:
        """Write an object whole. Its bytes are hashed and the hash is signed, so that the store checks them."""
        checked_metadata(request)
        head, _ = await self._send(request, key, {}, _written(request), memoryview(data))
        etag, version = written_etag(head.text("etag"), request), version_of(head.text("x-amz-version-id"))
        return described(request, etag, version, len(data))

    async def put_part(self, request: PartRequest, key: str, data: bytes | bytearray | memoryview) -> UploadedPart:
        """Send a part of an upload, hashed and signed as an object is."""
        query = {"partNumber": str(request.number), "uploadId": request.upload_id}
        head, checksum = await self._send(request, key, query, {}, memoryview(data))
        return uploaded_part(request, head.text("etag"), len(data), checksum)

    async def _send(
        self,
        request: WriteRequest | PartRequest,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        view: memoryview,
    ) -> tuple[ResponseHead, str | None]:
        """Send a body: the head of the response, and the checksum that went with it."""
        algorithm, is_signed = request.checksum or self._options.checksum, not self.targets.is_anonymous
        if len(view) <= LOOP_HASH_BYTES_MAX or not (algorithm or is_signed):
            digest, checksum = _digests(view, algorithm, is_signed)
        else:
            digest, checksum = await self._runtime.run_blocking(_digests, view, algorithm, is_signed)
        if algorithm and checksum:
            headers = {
                **headers,
                "x-amz-sdk-checksum-algorithm": algorithm.upper(),  # Under Object Lock S3 looks at this one.
                f"x-amz-checksum-{algorithm}": checksum,
            }
        # The first one of a write with a condition may have been seen, and the second would be refused for it.
        resends = not (isinstance(request, WriteRequest) and _conditions(request))
        head, body = await self.exchange(
            request, "PUT", key, query, headers=headers, body=view, payload=digest, resends=resends
        )
        self._check_empty(head, body, request)
        self._runtime.counters["stream_write_bytes"] += len(view)
        return head, checksum

    async def delete(self, request: DeleteRequest, key: str) -> None:
        """Delete the one object of a request, which may be missing, or one version of it."""
        query, condition = _given({"versionId": request.versions[0]}), _given({"if-match": condition_of(request)})
        head, body = await self.exchange(request, "DELETE", key, query, headers=condition)
        self._check_empty(head, body if _NO_FAILURE.fullmatch(body) is None else bytearray(), request)

    # --- uploads ------------------------------------------------------------------------------------------------

    async def begin(self, request: WriteRequest, key: str) -> str:
        """Begin an upload; returns its name."""
        checked_metadata(request)
        headers = {**_attributes(request), **self._kept_checksum(request)}
        try:
            # Sent once: a second one would leave the upload of the first behind.
            head, body = await self.exchange(
                request, "POST", key, {"uploads": ""}, headers=headers, body=_EMPTY, resends=False, operation=_BEGIN
            )
            upload_id: str | None = (await self._result(head, body, request)).findtext("UploadId")
            if not upload_id:
                raise no_success("names no upload", request)
        except (Error, asyncio.CancelledError) as error:
            if not isinstance(error, Error) or may_have_happened(error):
                # It may have been begun, without a name here: any upload in a listing may be another client's.
                self._runtime.counters["uploads_unnamed"] += 1
                self._events.publish("s3.upload_unnamed", request.path)
            raise
        return upload_id

    async def complete(self, request: CompleteUploadRequest, key: str) -> Metadata:
        """Let the object appear. A failure with the code ``GONE`` may come after an attempt that has worked."""
        algorithm = request.checksum or self._options.checksum
        parts = [
            {"ETag": part.etag, "PartNumber": part.number}
            | ({f"Checksum{algorithm.upper()}": part.checksum} if algorithm and part.checksum else {})
            for part in request.parts
        ]
        query, headers = {"uploadId": request.upload_id}, _conditions(request)
        document = memoryview(_document("CompleteMultipartUpload", "Part", parts))
        head, body = await self.exchange(
            request, "POST", key, query, headers=headers, body=document, resends=not headers, operation=_COMPLETE
        )
        etag = (await self._result(head, body, request)).findtext("ETag")
        version = version_of(head.text("x-amz-version-id"))
        return described(request, written_etag(etag, request), version, request.size)

    async def abort(self, request: AbortUploadRequest, key: str) -> None:
        """Forget an upload and its parts. A missing one is ignored."""
        query = {"uploadId": request.upload_id}
        try:
            head, body = await self.exchange(request, "DELETE", key, query)
        except Error as error:
            if error.context.get("code") != GONE:
                raise
            return
        self._check_empty(head, body, request)

    async def uploads_page(self, request: ListUploadsRequest) -> UploadPage:
        """One page of the uploads below a prefix."""
        root = self._options.root
        query = {"uploads": "", "encoding-type": "url", "prefix": root + request.path, **_markers_of(request)}
        try:
            head, body = await self.exchange(request, "GET", None, query)
        except Error as error:
            if error.context.get("code") != GONE:
                raise
            return UploadPage(uploads=())  # rclone says so of a bucket that never had an upload.
        import json

        result = await self._result(head, body, request)
        if result.find("IsTruncated") is result.find("Bucket") is result.find("Upload") is None:
            raise no_success("is not a list of uploads", request)
        decoded = unquote_plus if result.findtext("EncodingType") == "url" else str
        uploads = tuple(
            Upload(path=key.removeprefix(root), upload_id=name, started=time_of(item.findtext("Initiated")))
            for item in result.findall("Upload")
            if (key := decoded(item.findtext("Key") or "")).startswith(root + request.path)
            and (name := item.findtext("UploadId"))
        )
        token, marker = None, decoded(result.findtext("NextKeyMarker") or "")
        if result.findtext("IsTruncated") == "true" and marker:
            token = json.dumps([marker, result.findtext("NextUploadIdMarker")])
            if token == request.page_token:
                raise no_success("names itself as the next page", request)
        return UploadPage(uploads=uploads, next_token=token)

    # --- copies -------------------------------------------------------------------------------------------------

    async def copy(self, request: CopyRequest, key: str) -> Metadata:
        """Let the store copy an object to ``key``."""
        headers = {**self._source(request, request.path), **_placement(request), **self._kept_checksum(request)}
        if request.if_not_exists:
            headers["if-none-match"] = "*"
        resends, source = not request.if_not_exists, self._own_keys  # S3 Express copies by no session.
        head, body = await self.exchange(
            request, "PUT", key, {}, headers=headers, body=_EMPTY, resends=resends, source=source
        )
        result = await self._result(head, body, request)
        etag, modified = written_etag(result.findtext("ETag"), request), time_of(result.findtext("LastModified"))
        return Metadata(
            path=request.target,
            etag=self.etags.dated(etag, request.target, None, modified),
            version=version_of(head.text("x-amz-version-id")),
            last_modified=modified,
        )

    async def copy_part(self, request: CopyPartRequest, key: str) -> UploadedPart:
        """Let the store copy a range of an object into a part of an upload."""
        headers = self._source(request, request.source)
        headers["x-amz-copy-source-range"] = f"bytes={request.start}-{request.end - 1}"
        query = {"partNumber": str(request.number), "uploadId": request.upload_id}
        head, body = await self.exchange(
            request, "PUT", key, query, headers=headers, body=_EMPTY, source=self._own_keys
        )
        result = await self._result(head, body, request)
        algorithm = request.checksum or self._options.checksum
        checksum = None if algorithm is None else result.findtext(f"Checksum{algorithm.upper()}")
        return uploaded_part(request, result.findtext("ETag"), request.end - request.start, checksum)

    async def rename(self, request: RenameRequest, key: str) -> None:
        """Let a directory bucket give an object the name ``key``."""
        source = self._options.key_of(request.path, operation=request.operation)
        headers = {"x-amz-rename-source": encoded_path(f"/{self._options.bucket}/{source}")}
        if request.if_match is not None:
            headers["x-amz-rename-source-if-match"] = quote_etag(bare_etag(request.if_match))
        if request.if_not_exists:
            headers["if-none-match"] = "*"
        # Sent once: the second one would find nothing to rename.
        head, body = await self.exchange(
            request, "PUT", key, {"renameObject": ""}, headers=headers, body=_EMPTY, resends=False
        )
        self._check_empty(head, body, request)

    def _source(self, request: CopyRequest | CopyPartRequest, path: str) -> dict[str, str]:
        """The headers for the object that is copied, in this bucket and root, or in ``store``."""
        store, etag, options = request.store, request.if_match, self._options
        if store is None:
            bucket, key = options.bucket, options.key_of(path, operation=request.operation)
        else:
            root = f"{store.root}/" if store.root else ""
            bucket, key = store.name, root + checked_key(path, operation=request.operation)
        source = encoded_path(f"{bucket}/{'object/' if bucket.startswith('arn:') else ''}{key}")
        if request.version is not None:
            source += f"?versionId={request.version}"
        headers = {COPY_SOURCE: source}
        seconds = (etag or "").partition(DATED)[2]
        if seconds.isdecimal() and len(seconds) < 12:  # The store compares what is compared here.
            headers["x-amz-copy-source-if-unmodified-since"] = http_date(datetime.fromtimestamp(int(seconds), UTC))
        elif etag is not None:
            headers["x-amz-copy-source-if-match"] = quote_etag(etag)
        return headers

    def _kept_checksum(self, request: WriteRequest | CopyRequest) -> dict[str, str]:
        """The checksum that the store is to keep, where it is not sent with the bytes."""
        algorithm = request.checksum or self._options.checksum
        return {} if algorithm is None else {"x-amz-checksum-algorithm": algorithm.upper()}

    # --- deletions of many --------------------------------------------------------------------------------------

    async def delete_many(self, request: DeleteRequest, keys: Mapping[Version, str]) -> dict[Version, Error | None]:
        """Delete paths and versions, by their keys: of each that the response names its error, ``None`` for none."""
        objects = [
            _given({"Key": key, "VersionId": version, "ETag": condition_of(replace(request, path=path))})
            for (path, version), key in keys.items()
        ]
        document = _document("Delete", "Object", objects, end="<Quiet>false</Quiet>")
        headers = self._checked(document)
        head, body = await self.exchange(
            request, "POST", None, {"delete": ""}, headers=headers, body=memoryview(document)
        )
        result = await self._result(head, body, request)
        found: dict[Version, Error | None] = {}
        asked = {(key, version): (path, version) for (path, version), key in keys.items()}
        for answer in (*result.findall("Deleted"), *result.findall("Error")):
            fields = {element.tag: element.text or "" for element in answer}
            key = fields.get("Key", "")
            pair = asked.get((key, fields.get("VersionId"))) or asked.get((key, None))
            if pair is not None and fields.get("Code", GONE_KEYS[0]) in GONE_KEYS:
                found[pair] = None
            elif pair is not None:
                refusal = ErrorResponse.of_fields(head.status, head.headers, fields)
                found[pair] = self._explainer.from_response(refusal, of_pair(request, pair))
        return found

    def _checked(self, document: bytes) -> dict[str, str]:
        """The header by which a store sees that a document has arrived. S3 Express knows no MD5, many others no CRC."""
        if self.is_express:
            return {"x-amz-sdk-checksum-algorithm": "CRC32", "x-amz-checksum-crc32": checksum_of(document, "crc32")}
        md5 = hashlib.md5(document, usedforsecurity=False).digest()
        return {"content-md5": base64.b64encode(md5).decode()}

    # --- URLs and buckets ---------------------------------------------------------------------------------------

    async def presigned_url(self, request: PresignRequest, key: str) -> str:
        """A URL for one request of the bearer. It costs no request."""
        parameters = {
            "versionId": None if request.method == "PUT" else request.version,
            "response-content-type": request.content_type,
            "response-content-disposition": request.content_disposition,
            "response-cache-control": request.cache_control,
        }
        return await self.targets.presigned_url(request, key, _given(parameters))

    async def bucket_names(self, request: ListBucketsRequest) -> list[str]:
        """All buckets of the account, in order; the endpoint is the account's."""
        found: list[str] = []
        token: str | None = None
        while True:
            query = {} if token is None else {"continuation-token": token}
            head, body = await self.exchange(request, "GET", None, query, counter="")
            result = await self._result(head, body, request)
            if (buckets := result.find("Buckets")) is None:
                raise no_success("is not a list of buckets", request)
            found += [bucket.findtext("Name") or "" for bucket in buckets.iter("Bucket")]
            before, token = token, result.findtext("ContinuationToken")
            if not token:
                return sorted(found)
            if token == before:
                raise no_success("names itself as the next page", request)

    async def create_bucket(self, request: CreateDirRequest) -> None:
        """Make the bucket, in its region."""
        region, name = self.targets.region, "CreateBucketConfiguration"
        where = f"<LocationConstraint>{region}</LocationConstraint>"
        document = "" if region == _UNNAMED_REGION else f'<{name} xmlns="{_NAMESPACE}">{where}</{name}>'
        await self.exchange(request, "PUT", None, {}, body=memoryview(document.encode()))

    async def is_versioned(self, request: StatRequest) -> bool:
        """Whether the bucket keeps the versions of its objects."""
        head, body = await self.exchange(request, "GET", None, {"versioning": ""}, counter="")
        return (await self._result(head, body, request)).findtext("Status") == "Enabled"

    async def delete_bucket(self, request: DeleteRequest) -> None:
        """Delete the bucket, which has to be empty."""
        await self.exchange(request, "DELETE", None, {}, counter="")


def checksum_of(body: bytes | bytearray | memoryview, algorithm: Checksum) -> str:
    """The checksum of a body as S3 writes it, in base64."""
    if algorithm == "sha256":
        return base64.b64encode(hashlib.sha256(body).digest()).decode()
    return base64.b64encode(binascii.crc32(body).to_bytes(4, "big")).decode()


def uploaded_part(request: PartRequest, etag: object, size: int, checksum: str | None) -> UploadedPart:
    """The part that the store has. ``ProtocolError`` for a response without an ETag."""
    written_etag(etag, request)
    return UploadedPart(number=request.number, etag=str(etag), size=size, checksum=checksum)


def of_pair(request: DeleteRequest, pair: Version) -> DeleteRequest:
    """The deletion of one path of a request."""
    return replace(request, path=pair[0], paths=pair[:1], versions=pair[1:])


def condition_of(request: WriteRequest | DeleteRequest) -> str | None:
    """The ETag that a write or a deletion has as its condition, in quotes, as the store knows it."""
    wanted = request.if_match
    etag = wanted.get(request.path) if isinstance(wanted, Mapping) else wanted
    return None if etag is None else quote_etag(bare_etag(etag))


def checked_metadata(request: WriteRequest) -> None:
    """Raise ``InvalidArgument`` for names of a user's metadata that are one header."""
    seen: dict[str, str] = {}
    for name in request.user_metadata:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidArgument(
                f"the user metadata has {other!r} and {name!r}: names travel as headers, in which case makes no "
                "difference; give one of them",
                operation=request.operation,
                path=request.path,
            )


# --- headers and documents --------------------------------------------------------------------------------------------


def _digests(view: memoryview, algorithm: Checksum | None, is_signed: bool) -> tuple[str, str | None]:
    """The hash of a body for its signature, and its checksum. SHA-256 is computed once for both."""
    digest = payload_hash(view) if is_signed else UNSIGNED_PAYLOAD
    if algorithm is None:
        return digest, None
    if algorithm == "sha256" and is_signed:
        return digest, base64.b64encode(bytes.fromhex(digest)).decode()
    return digest, checksum_of(view, algorithm)


def _attributes(request: WriteRequest) -> dict[str, str]:
    """The headers of what describes a new object, by names in lower case."""
    metadata = {f"{USER_METADATA}{name.lower()}": value for name, value in request.user_metadata.items()}
    return {**headers_about(request), **metadata, **_placement(request)}


def _placement(request: WriteRequest | CopyRequest) -> dict[str, str]:
    """The headers of how a new object is stored: its class, and the key that encrypts it."""
    headers = {
        "x-amz-storage-class": request.storage_class,
        "x-amz-server-side-encryption": None if request.sse_kms_key_id is None else "aws:kms",
        "x-amz-server-side-encryption-aws-kms-key-id": request.sse_kms_key_id,
    }
    return _given(headers)


def _given(parameters: Mapping[str, str | None]) -> dict[str, str]:
    """The parameters that are not ``None``."""
    return {name: value for name, value in parameters.items() if value is not None}


def _written(request: WriteRequest) -> dict[str, str]:
    """The headers of a new object."""
    return {} if request.is_plain else {**_attributes(request), **_conditions(request)}


def _conditions(request: WriteRequest) -> dict[str, str]:
    """The preconditions of a write. They belong to the request that lets the object appear."""
    return _given({"if-match": condition_of(request), "if-none-match": "*" if request.if_not_exists else None})


def _document(name: str, each: str, items: Iterable[Mapping[str, object]], end: str = "") -> bytes:
    """A document of S3: a list of items of one kind."""
    import html

    def element(name: str, content: str) -> str:
        return f"<{name}>{content}</{name}>"

    def fields(item: Mapping[str, object]) -> str:
        return "".join(element(field, html.escape(str(text), quote=False)) for field, text in item.items())

    rows = "".join(element(each, fields(item)) for item in items)
    return f'<{name} xmlns="{_NAMESPACE}">{rows}{end}</{name}>'.encode()


def _markers_of(request: ListUploadsRequest) -> dict[str, str]:
    """The parameters for the page of a token. Raises ``InvalidArgument`` for another text."""
    if request.page_token is None:
        return {}
    import json

    try:
        key_marker, id_marker = json.loads(request.page_token)
    except ValueError:
        raise no_token(request) from None
    markers = {"key-marker": key_marker, "upload-id-marker": id_marker}
    return {name: marker for name, marker in markers.items() if marker}
