"""Deletions of several objects and versions: one request, each by its own name."""

import re

import pytest

import aioprefetch as ap
from aioprefetch.errors import InvalidArgument, InvalidType, PermissionDenied
from aioprefetch.services.s3 import S3
from aioprefetch.testing import CountingS3Server
from tests.stores.key_server import Bent, KeyServer, Said, error
from tests.stores.stacks import MotoBucket

DOOMED: list[str | tuple[str, str | None]] = [("k", "v1"), ("k", "v2"), "k", ("l", None)]
NAMES = [("k", "v1"), ("k", "v2"), ("k", ""), ("l", "")]


def asked_for(body: bytes) -> list[tuple[str, str]]:
    rows = re.findall(r"<Object>(.*?)</Object>", body.decode())
    return [
        (row.partition("<Key>")[2].partition("<")[0], row.partition("<VersionId>")[2].partition("<")[0]) for row in rows
    ]


def deleted(*rows: tuple[str, str], more: str = "") -> Said:
    texts = (
        f"<Deleted><Key>{key}</Key>{version and f'<VersionId>{version}</VersionId>'}</Deleted>" for key, version in rows
    )
    return Said(200, f"<DeleteResult>{''.join(texts)}{more}</DeleteResult>".encode())


async def test_they_are_one_request() -> None:
    async with KeyServer({}, Bent("deletes", deleted(*NAMES))) as server, server.operator() as op:
        await op.delete(DOOMED)
        assert server.verbs == ["deletes"]
        assert asked_for(server.asked[0].body) == NAMES


async def test_what_the_response_does_not_name_is_deleted_alone() -> None:
    """A store that leaves the versions out, and one that has no such request."""
    for said in (deleted(("k", "")), error(501, "NotImplemented")):
        async with KeyServer({}, Bent("deletes", said)) as server, server.operator() as op:
            await op.delete(DOOMED)
            alone = [(asked.key, asked.query.get("versionId", [""])[0]) for asked in server.asked[1:]]
            assert sorted(alone) == sorted(set(NAMES) - ({("k", "")} if said.status == 200 else set()))


async def test_those_that_are_left_are_named() -> None:
    """By path and version; a version that is gone is no failure."""
    refused = "<Error><Key>k</Key><VersionId>v1</VersionId><Code>AccessDenied</Code></Error>"
    gone = "<Error><Key>k</Key><VersionId>v2</VersionId><Code>NoSuchVersion</Code></Error>"
    said = deleted(("k", ""), ("l", ""), more=refused + gone)
    async with KeyServer({}, Bent("deletes", said)) as server, server.operator() as op:
        with pytest.raises(PermissionDenied) as caught:
            await op.delete(DOOMED)
        assert caught.value.path == "k"
        assert caught.value.context["failures"] == {("k", "v1"): "PermissionDenied"}
        assert server.verbs == ["deletes"]


async def test_a_name_that_is_refused_leaves_the_others() -> None:
    async with KeyServer({}, Bent("deletes", deleted(("k", "v1"), ("k", "")))) as server, server.operator() as op:
        with pytest.raises(ap.Error) as caught:
            await op.delete([("k", "v1"), ("", "v2"), "k"])
        assert caught.value.context["failures"] == {("", "v2"): "IsADirectory"}
        assert asked_for(server.asked[0].body) == [("k", "v1"), ("k", "")]


@pytest.mark.parametrize("wrong", [("k",), ("k", "v", 1), ("k", 1), (1, "v"), 1, None, b"k"])
async def test_what_names_no_object_deletes_none(wrong: object) -> None:
    async with KeyServer({}) as server, server.operator() as op:
        with pytest.raises(InvalidType):
            await op.delete(["a", wrong])  # type: ignore[list-item]
        with pytest.raises(InvalidArgument):
            await op.delete(["a", ("k", "")])
        assert server.asked == []


def test_the_twin_without_await(s3_server: CountingS3Server) -> None:
    bucket = MotoBucket("versions-of-many", versioned=True)
    for number in range(4):
        bucket.put("k", b"%d" % number)
    service = S3(
        bucket=bucket.name,
        endpoint_url=s3_server.endpoint_url,
        region="us-east-1",
        access_key_id="a",
        secret_access_key="b",
    )
    with ap.sync.BlockingOperator(ap.Operator(service)) as op:
        versions = [entry.version for entry in op.list("k", versions=True)]
        assert op.read_at("k", 0, 1) == b"3"  # By a reader that is kept.
        before = len(s3_server.requests)
        op.delete([("k", versions[0]), ("k", versions[2])])
        assert len(s3_server.requests) == before + 1
        assert op.read("k") == op.read_at("k", 0, 1) == b"2"
