"""Deletions of many: what is refused keeps nothing else, and a name that became an object's stays."""

import pytest

from aioprefetch.accessor.protocols import Accessor
from aioprefetch.errors import InvalidPath
from aioprefetch.layers import ErrorContextLayer
from aioprefetch.values import DeleteRequest
from aioprefetch.verbs.listing import delete_empty
from tests.stores.key_server import KeyServer
from tests.stores.verb_layer import VerbLayer
from tests.unit.transfer.trees import memory, put_tree, tree_of


class Refusing(VerbLayer):
    """A store that refuses a request for a name that it cannot have."""

    async def delete(self, inner: Accessor, request: DeleteRequest) -> None:
        for path in request.paths:
            if path.startswith("bad"):
                raise InvalidPath("the store has no such names", operation="delete", path=path)
        await inner.delete(request)


async def test_a_refused_name_keeps_no_other_one_of_its_batch() -> None:
    async with memory() as op:
        await put_tree(op, "", dict.fromkeys(("a", "bad", "c", "bad too", "e"), b"x"))
        with pytest.raises(InvalidPath) as refused:
            await op.layer(Refusing(), inside=ErrorContextLayer).delete(["a", "bad", "c", "bad too", "e"])
        assert refused.value.context["failures"] == {"bad": "InvalidPath", "bad too": "InvalidPath"}
        assert list(await tree_of(op, "")) == ["bad", "bad too"]


async def test_a_directory_that_became_an_object_stays() -> None:
    """A listing may have shown it before it got bytes."""
    async with KeyServer({"d/": b"bytes", "e/": b""}) as server, server.operator() as op:
        await delete_empty(op.accessor(), ["d/", "e/"])
        assert server.objects == {"d/": b"bytes"}
