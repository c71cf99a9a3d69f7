"""Stores with keys that no verb of ours writes, put there by a raw client; it also tells what the store holds."""

from collections.abc import Mapping
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import S3Backend, s3_backends

from aioprefetch import Operator
from aioprefetch.operator.options import UriOptions
from aioprefetch.services import Memory
from aioprefetch.testing import CountingS3Server
from aioprefetch.values import WriteRequest
from tests.stores.s3_options import options_of


class Planted:
    """A store, and a client of it that knows no rules for names."""

    def __init__(self, url: str, options: UriOptions | None = None) -> None:
        self.url = url
        self.options = options or {}
        self.operator = Operator.from_uri(url, **self.options)

    def plant(self, objects: Mapping[str, bytes]) -> None:
        """Store objects."""
        raise NotImplementedError

    def objects(self) -> dict[str, bytes]:
        """All that the store holds."""
        raise NotImplementedError


class PlantedMemory(Planted):
    """A store in memory."""

    def __init__(self, name: str) -> None:
        super().__init__(f"memory://{name}")
        assert isinstance(self.operator.service, Memory)
        self._store = self.operator.service.store

    def plant(self, objects: Mapping[str, bytes]) -> None:
        for key, data in objects.items():
            self._store.put(WriteRequest(path=key), data)

    def objects(self) -> dict[str, bytes]:
        return {key: stored.data for key, stored in self._store.objects.items()}


class PlantedBucket(Planted):
    """A bucket of moto in this process."""

    def __init__(self, server: CountingS3Server, name: str) -> None:
        server.create_bucket(name)
        self.server = server
        self.name = name
        self._backend: S3Backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        options: Any = options_of(server)
        super().__init__(f"s3://{name}", options)

    def plant(self, objects: Mapping[str, bytes]) -> None:
        for key, data in objects.items():
            self._backend.put_object(self.name, key, data)

    def objects(self) -> dict[str, bytes]:
        return {key: found.value for key, found in self._backend.get_bucket(self.name).keys.items()}

    def keep_versions(self) -> None:
        """Keep all versions from now on."""
        self._backend.put_bucket_versioning(self.name, "Enabled")

    def versions(self) -> dict[str, list[tuple[str, bytes | None]]]:
        """The versions of each key and what they hold, the oldest first; ``None`` stands for a delete marker."""
        lists = self._backend.get_bucket(self.name).keys.lists()
        return {key: [(one.version_id, getattr(one, "value", None)) for one in held] for key, held in lists}

    def uploads(self) -> int:
        """The number of uploads that have begun, and not come to an end."""
        return len(self._backend.get_bucket(self.name).multiparts)

    def requests(self) -> list[str]:
        """Methods and statuses of the requests since the last call."""
        found = [f"{request.method} {request.status}" for request in self.server.requests]
        self.server.reset()
        return found
