"""The values of a request: what they hold, that they compare and pickle, and that no layer changes one."""

import ast
import copy
import dataclasses
import inspect
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import pytest

import aioprefetch as ap
from aioprefetch import layers, values
from aioprefetch.accessor.sink import CollectSink
from aioprefetch.layers import Layer
from aioprefetch.values import ReadHead, ReadReply, ReadRequest, Request
from tests.repository.source_tree import PACKAGE, ROOT, parse, python_files

HEAD = ReadHead(start=3, size=5, total=None)
VALUES: dict[type, dict[str, Any]] = {
    ReadRequest: {"path": "k", "offset": 3, "lane": "prefetch"},
    ReadHead: {"start": 3, "size": 5, "total": None},
    ReadReply: {"head": HEAD, "received": 5},
}
KINDS = pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)

# No code changes one of these, frozen or not; an UncheckedHead is filled as it is parsed.
VALUE_KINDS = {
    name: kind
    for name, kind in vars(values).items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind is not values.UncheckedHead
}
FIELDS = {field.name for kind in VALUE_KINDS.values() for field in fields(kind)}
NAMES = ("request", "head", "reply", "entry")


@KINDS
def test_each_field_has_its_argument_or_its_default(kind: type) -> None:
    value = kind(**VALUES[kind])
    for field in fields(kind):
        assert getattr(value, field.name) == VALUES[kind].get(field.name, field.default)
    numbered = {field.name: number for number, field in enumerate(fields(kind))}
    assert astuple(kind(**numbered)) == tuple(numbered.values())
    assert list(inspect.signature(kind).parameters) == [field.name for field in fields(kind)]
    assert not hasattr(value, "__dict__")


@KINDS
def test_they_copy_pickle_compare_and_hash(kind: type) -> None:
    value = kind(**VALUES[kind])
    others = [copy.copy(value), copy.deepcopy(value), replace(value), pickle.loads(pickle.dumps(value))]
    assert others == [value] * 4
    assert {type(other) for other in others} == {kind}
    assert {hash(other) for other in others} == {hash(value)}


@KINDS
def test_wrong_arguments_are_refused(kind: type) -> None:
    with pytest.raises(TypeError, match="missing"):
        kind()
    with pytest.raises(TypeError, match="positional"):
        kind("k")
    with pytest.raises(TypeError, match="unexpected"):
        kind(**VALUES[kind], other=1)


def changed_values(nodes_of_a_file: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """The attributes of requests, heads and replies that are assigned, deleted, or set by ``setattr``."""
    for node in nodes_of_a_file:
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            if node.attr in FIELDS and _is_value(node.value):
                yield node
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr") and _is_value(node.args[0]):
            yield node


def _is_value(node: ast.expr) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name.endswith(NAMES)


def test_no_code_changes_a_request_or_a_response() -> None:
    """By name: whatever is called a request, a head or a reply is left as it is."""
    assert {"ReadRequest", "ReadHead", "ReadReply"} <= VALUE_KINDS.keys()
    assert {"path", "deadline", "offset", "lane", "etag", "received"} <= FIELDS
    changes = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path in python_files(PACKAGE)
        for node in changed_values(ast.walk(parse(path)))
    ]
    assert changes == []
    for text in ("request.offset = 1", "self._request.lane = x", "del head.size", "setattr(read_request, 'a', 1)"):
        assert list(changed_values(ast.walk(ast.parse(text)))), text


LAYERS = [each for each in vars(layers).values() if inspect.isclass(each) and issubclass(each, Layer)]


@pytest.mark.parametrize("kind", [each for each in LAYERS if each is not Layer], ids=lambda kind: kind.__name__)
async def test_no_layer_changes_a_request(kind: type, tmp_path: Path) -> None:
    """Each layer over a store, with every request: the request is afterwards what it was."""
    cache = ap.Operator.from_uri(f"file://{tmp_path}")
    needed: dict[type, dict[str, Any]] = {
        layers.LruCacheLayer: {"cache": cache, "capacity_bytes": 1 << 20},
        layers.ThrottleLayer: {"bytes_per_second": 1 << 30},
    }
    async with cache, ap.Operator.bare(ap.services.Memory()).layer(kind(**needed.get(kind, {}))) as operator:
        accessor = operator.accessor()
        requests: list[Request] = []

        def remembered(request: Any) -> Any:
            requests.extend((request, copy.copy(request)))
            return request

        await accessor.write(remembered(values.WriteRequest(path="k", user_metadata={"a": "b"})), b"0123456789")
        for part in ({}, {"offset": 3}, {"offset": 3, "size": 4}, {"suffix": 4}, {"lane": "prefetch"}):
            request = ReadRequest(path="k", **part)
            await accessor.read(remembered(request), CollectSink(operator.runtime().budget))
        await accessor.stat(remembered(values.StatRequest(path="k")))
        await accessor.list_page(remembered(values.ListRequest(path="")))
        await accessor.copy(remembered(values.CopyRequest(path="k", target="t")))
        await accessor.create_dir(remembered(values.CreateDirRequest(path="d/")))
        await accessor.delete(remembered(values.DeleteRequest(path="k", paths=("k", "t"))))
        assert requests[::2] == requests[1::2]
