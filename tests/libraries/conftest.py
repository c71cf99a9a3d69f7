"""What other libraries read here: objects on counting S3 servers, opened as files by their URLs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.stores.stored_object import StoredObject, stored

Store = Callable[[bytes], StoredObject]


@pytest.fixture
def store() -> Iterator[Store]:
    """A function that stores an object on a server of its own."""
    with ExitStack() as servers:
        yield lambda data: servers.enter_context(stored(data))
