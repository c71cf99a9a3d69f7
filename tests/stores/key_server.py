"""The bucket of `faulty_bucket` in shorter words; a test bends its next responses, after the deed or instead of it."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aioprefetch import Operator
from aioprefetch.services.s3 import S3
from aioprefetch.testing.bucket import Answer, Call, failed
from tests.reliability.scripted import NO_PAUSES
from tests.stores.faulty_bucket import PAGE, FaultyBucket

PART = 5 << 20
DESCRIBING = ("content-disposition", "content-encoding", "content-language", "content-type", "cache-control", "expires")
# What S3 calls a request, in a word, with its method.
WORDS: Mapping[str, tuple[str, str]] = {
    "PutObject": ("put", "PUT"),
    "CopyObject": ("copy", "PUT"),
    "PutPart": ("part", "PUT"),
    "UploadPartCopy": ("copypart", "PUT"),
    "Begin": ("begin", "POST"),
    "Complete": ("complete", "POST"),
    "Delete": ("deletes", "POST"),
    "Abort": ("abort", "DELETE"),
    "DeleteObject": ("delete", "DELETE"),
    "HeadObject": ("head", "HEAD"),
    "GetObject": ("get", "GET"),
    "List": ("list", "GET"),
}
METHODS = dict(WORDS.values())

Said = Answer
error = failed


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. ``verb`` names what S3 calls it, in a word."""

    verb: str
    key: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes

    @classmethod
    def of(cls, call: Call) -> "Asked":
        """A request of the bucket."""
        verb = WORDS.get(call.verb, ("list", ""))[0]
        if "session" in call.query or "renameObject" in call.query:
            verb = "session" if "session" in call.query else "rename"
        elif call.method == "HEAD":
            verb = "head"
        query = {name: [value] for name, value in call.query.items()}
        return cls(verb, call.key, query, call.headers, call.body)


HOLLOW: Mapping[str, Said] = {
    "a page": Said(200, PAGE, {"Content-Type": "text/html"}),
    "a page with a document type": Said(200, b"<!DOCTYPE html>" + PAGE, {"Content-Type": "text/html", "ETag": '"p"'}),
    "nothing": Said(200, b""),
    "lost": Said(200, None),
}


@dataclass(slots=True)
class Bent:
    """What becomes of the ``times`` next requests with this verb: ``said``, after the ``deed`` or in its place.

    A function of the request and of the right response makes another one.
    """

    verb: str
    said: Said | Callable[[Asked, Said], Said]
    deed: bool = False
    times: int = 1


class KeyServer(FaultyBucket):
    """The store: ``objects`` by key, and the headers that describe them, as ``descriptions``."""

    bucket = "bkt"
    clock_step_seconds = 1
    fraction = ".500Z"

    def __init__(self, objects: Mapping[str, bytes] | None = None, *bent: Bent) -> None:
        super().__init__(name=self.bucket)
        self.objects.update(objects or {})
        self.times.update(dict.fromkeys(self.objects, self.now))
        self.descriptions: dict[str, Mapping[str, str]] = {}
        self.bent = list(bent)
        self.asked: list[Asked] = []

    @property
    def verbs(self) -> list[str]:
        """The words of the requests that came."""
        return [one.verb for one in self.asked]

    def operator(self, **options: Any) -> Operator:
        """The default stack over the store, without pauses."""
        keys: dict[str, Any] = {"region": "us-east-1", "access_key_id": "id", "secret_access_key": "secret"}
        service = S3(bucket=self.bucket, endpoint_url=self.endpoint_url, part_bytes=PART, **keys)
        return Operator(service, **options).layer(NO_PAUSES)

    def respond(self, call: Call) -> Said:
        asked = Asked.of(call)
        self.asked.append(asked)
        bent = next((one for one in self.bent if one.verb == asked.verb and one.times > 0), None)
        if bent is None:
            return self.done(asked)
        bent.times -= 1
        right = self.done(asked) if bent.deed else Said()
        return bent.said if isinstance(bent.said, Said) else bent.said(asked, right)

    def done(self, asked: Asked) -> Said:
        """Do what was asked; the right response."""
        if asked.verb not in METHODS:  # of a subclass
            return getattr(self, f"_{asked.verb}")(asked)  # type: ignore[no-any-return]
        query = {name: values[0] for name, values in asked.query.items()}
        call = Call(0, METHODS[asked.verb], asked.key, query, dict(asked.headers), asked.body)
        return Said(404) if asked.verb == "head" and not asked.key else self.answer(call)

    def described(self, key: str) -> Mapping[str, str]:
        return self.descriptions.get(key, {})

    def _describe(self, key: str, headers: Mapping[str, str]) -> None:
        kept = (*DESCRIBING, "x-amz-meta-")
        self.descriptions[key] = {name: text for name, text in headers.items() if name.startswith(kept)}

    def put_object(self, call: Call) -> Said:
        said = super().put_object(call)
        if said.status == 200:
            self._describe(call.key, call.headers)
        return said

    def copy_object(self, call: Call) -> Said:
        said = super().copy_object(call)
        if said.status == 200:
            self._describe(call.key, self.described(call.source))
        return said

    def begin_upload(self, call: Call) -> Said:
        self._describe(call.key, call.headers)
        return super().begin_upload(call)

    def complete_upload(self, call: Call) -> Said:
        """As S3 does, an object in parts has an ETag of its parts' digests and their number."""
        parts = self.uploads.get(call.query["uploadId"], ("", {}))[1]
        digests = b"".join(hashlib.md5(data).digest() for _, data in sorted(parts.items()))
        whole, made, before = b"".join(data for _, data in sorted(parts.items())), f"-{len(parts)}", self.etag
        made = hashlib.md5(digests).hexdigest() + made
        self.etag = lambda data: made if data == whole else before(data)
        said = super().complete_upload(call)
        if said.status != 200:
            self.etag = before
        return said

    def list_objects(self, call: Call) -> Said:
        """All keys on one page."""
        return super().list_objects(replace(call, query={**call.query, "max-keys": str(1 << 30)}))

    def delete_one(self, call: Call) -> Said:
        if (refused := self.refused(call.key, call.headers)) is not None:
            return refused
        return super().delete_one(call)
