"""A bucket of S3 in memory, for servers of tests: the requests that change it, or list it.

Objects with MD5 ETags, conditions, copies, uploads in parts, listings, deletions of many. Pure: a server brings the
requests, and sends what is answered.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape


@dataclass(frozen=True)
class Answer:
    """A response of the bucket; without a body, ``None``, the connection is cut in its place."""

    status: int = 200
    body: bytes | None = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def failed(status: int, code: str, extra: str = "") -> Answer:
    """An error of S3."""
    return Answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message>{extra}</Error>".encode())


@dataclass(frozen=True)
class Call:
    """A request: its method, key and query, and what of it decides what it means."""

    number: int
    method: str
    key: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def verb(self) -> str:
        """The name of the request in S3's words."""
        if self.method == "PUT":
            what = "Part" if "partNumber" in self.query else "Object"
            copies = {"Part": "UploadPartCopy", "Object": "CopyObject"}
            return copies[what] if self.source else f"Put{what}"
        if self.method == "POST":
            return "Delete" if "delete" in self.query else "Begin" if "uploads" in self.query else "Complete"
        if self.method == "DELETE":
            return "Abort" if "uploadId" in self.query else "DeleteObject"
        if self.key:
            return "HeadObject" if self.method == "HEAD" else "GetObject"
        return "ListUploads" if "uploads" in self.query else "List"

    @property
    def source(self) -> str:
        """The key that is copied."""
        return unquote(self.headers.get("x-amz-copy-source", "").partition("?")[0]).lstrip("/").partition("/")[2]


def etag_of(data: bytes) -> str:
    """The ETag of an object that was written at once."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


class Bucket:
    """A bucket, and what it answers. ``uploads`` are the unfinished ones, each with its key and its parts.

    ``etag`` makes the ETags of objects, ``now`` is the time of the last write. ``objects`` may be changed from outside.
    """

    clock_step_seconds = 7
    fraction = ".000Z"  # of the times in a listing

    def __init__(self, objects: dict[str, bytes] | None = None) -> None:
        self.objects = {} if objects is None else objects
        self.uploads: dict[str, tuple[str, dict[int, bytes]]] = {}
        self.now = 1_700_000_000
        self.times: dict[str, int] = {}
        self.etag: Callable[[bytes], str] = etag_of
        self._ids = itertools.count()

    def put(self, key: str, data: bytes) -> None:
        """Another client writes an object."""
        self.now += self.clock_step_seconds
        self.objects[key], self.times[key] = data, self.now

    def answer(self, call: Call) -> Answer:
        """Perform a request and answer it, except a GET or HEAD of an object, which the server handles."""
        handlers: dict[str, Callable[[Call], Answer]] = {
            "PutObject": self.put_object,
            "CopyObject": self.copy_object,
            "PutPart": self._put_part,
            "UploadPartCopy": self._put_part,
            "Begin": self.begin_upload,
            "Complete": self.complete_upload,
            "Abort": self._abort,
            "Delete": self._delete_many,
            "DeleteObject": self.delete_one,
            "List": self.list_objects,
            "ListUploads": lambda call: Answer(200, b"<R><IsTruncated>false</IsTruncated></R>"),
        }
        return handlers[call.verb](call)

    def refused(self, key: str, headers: Mapping[str, str]) -> Answer | None:
        """The response to a condition on the target that does not hold."""
        data = self.objects.get(key)
        match, none_match = headers.get("if-match"), headers.get("if-none-match")
        if none_match == "*" and data is not None:
            return failed(412, "PreconditionFailed")
        if match is not None and data is None:
            return failed(404, "NoSuchKey")
        if match is not None and data is not None and match.strip('"') not in ("*", self.etag(data)):
            return failed(412, "PreconditionFailed")
        return None

    def put_object(self, call: Call) -> Answer:
        """Write an object."""
        if refused := self.refused(call.key, call.headers):
            return refused
        self.put(call.key, call.body)
        return Answer(200, headers={"ETag": f'"{self.etag(call.body)}"'})

    def _copied(self, call: Call) -> bytes | Answer:
        data = self.objects.get(call.source)
        if data is None:
            return failed(404, "NoSuchKey")
        wanted = call.headers.get("x-amz-copy-source-if-match", "").strip('"')
        if wanted and wanted not in ("*", self.etag(data)):
            return failed(412, "PreconditionFailed", "<Condition>x-amz-copy-source-If-Match</Condition>")
        return data

    def copy_object(self, call: Call) -> Answer:
        """Copy an object."""
        data = self._copied(call)
        if isinstance(data, Answer):
            return data
        if refused := self.refused(call.key, call.headers):
            return refused
        self.put(call.key, data)
        return Answer(200, f"<CopyObjectResult><ETag>&quot;{self.etag(data)}&quot;</ETag></CopyObjectResult>".encode())

    def begin_upload(self, call: Call) -> Answer:
        """Begin an upload in parts."""
        upload = f"u{next(self._ids)}"
        self.uploads[upload] = (call.key, {})
        text = f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
        return Answer(200, text.encode())

    def _put_part(self, call: Call) -> Answer:
        if call.query["uploadId"] not in self.uploads:
            return failed(404, "NoSuchUpload")
        data = self._copied(call) if call.source else call.body
        if isinstance(data, Answer):
            return data
        if ends := call.headers.get("x-amz-copy-source-range"):
            start, end = map(int, ends.removeprefix("bytes=").split("-"))
            data = data[start : end + 1]
        self.uploads[call.query["uploadId"]][1][int(call.query["partNumber"])] = data
        etag = etag_of(data)
        if call.source:
            return Answer(200, f"<CopyPartResult><ETag>&quot;{etag}&quot;</ETag></CopyPartResult>".encode())
        return Answer(200, headers={"ETag": f'"{etag}"'})

    def complete_upload(self, call: Call) -> Answer:
        """Make an object of the parts that are named."""
        upload = call.query["uploadId"]
        if upload not in self.uploads:
            return failed(404, "NoSuchUpload")
        if refused := self.refused(call.key, call.headers):
            return refused
        named = [int(item.text or 0) for item in ET.fromstring(call.body).iter() if item.tag.endswith("PartNumber")]
        parts = self.uploads.pop(upload)[1]
        self.put(call.key, b"".join(parts[number] for number in named))
        etag = self.etag(self.objects[call.key])
        text = f"<CompleteMultipartUploadResult><ETag>&quot;{etag}&quot;</ETag></CompleteMultipartUploadResult>"
        return Answer(200, text.encode())

    def _abort(self, call: Call) -> Answer:
        upload = self.uploads.pop(call.query["uploadId"], None)
        return failed(404, "NoSuchUpload") if upload is None else Answer(204)

    def delete_one(self, call: Call) -> Answer:
        """Delete an object."""
        if call.key in self.objects and (refused := self.refused(call.key, call.headers)):
            return refused
        self.objects.pop(call.key, None)
        return Answer(204)

    def _delete_many(self, call: Call) -> Answer:
        rows = []
        for item in ET.fromstring(call.body).iter():
            if not item.tag.endswith("Object"):
                continue
            fields = {child.tag.rpartition("}")[2]: child.text or "" for child in item}
            key, etag = fields["Key"], fields.get("ETag", "").strip('"')
            if etag and key in self.objects and etag != self.etag(self.objects[key]):
                rows.append(f"<Error><Key>{escape(key)}</Key><Code>PreconditionFailed</Code></Error>")
                continue
            self.objects.pop(key, None)
            rows.append(f"<Deleted><Key>{escape(key)}</Key></Deleted>")
        return Answer(200, f"<DeleteResult>{''.join(rows)}</DeleteResult>".encode())

    def list_objects(self, call: Call) -> Answer:
        """List a page of names."""
        after = max(call.query.get("start-after", ""), call.query.get("continuation-token", ""))
        rows = self.rows(call.query.get("prefix", ""), call.query.get("delimiter", ""))
        left = [name for name in rows if name > after]
        limit = int(call.query.get("max-keys", 1000))
        return self.page(rows, left[:limit], left[limit - 1] if len(left) > limit else None)

    def rows(self, prefix: str, delimiter: str) -> dict[str, str]:
        """The lines of a listing by their names, in the order of these."""
        rows: dict[str, str] = {}
        for key in sorted(self.objects):
            if not key.startswith(prefix):
                continue
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if end < 0 else key[: end + 1]
            if name in rows:
                continue
            if end < 0:
                stamp = (
                    datetime.fromtimestamp(self.times.get(key, self.now), UTC).strftime("%Y-%m-%dT%H:%M:%S")
                    + self.fraction
                )
                etag = self.etag(self.objects[key])
                rows[name] = (
                    f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
                    f"<LastModified>{stamp}</LastModified><ETag>&quot;{etag}&quot;</ETag></Contents>"
                )
            else:
                rows[name] = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
        return rows

    def page(self, rows: dict[str, str], names: list[str], token: str | None) -> Answer:
        """A page with some lines. ``token`` leads to the next page."""
        text = "".join(rows[name] for name in names)
        if token is not None:
            text += f"<NextContinuationToken>{escape(token)}</NextContinuationToken>"
        is_cut = "false" if token is None else "true"
        text = f"<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>{text}</ListBucketResult>"
        return Answer(200, text.encode())
