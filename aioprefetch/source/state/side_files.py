"""Small JSON files beside a state, such as the schema that was inferred: written once, by whoever comes first."""

from __future__ import annotations

from typing import Any

from aioprefetch.errors import AlreadyExists, ConditionNotMatch, Error, NotFound
from aioprefetch.operator.operator import Operator
from aioprefetch.source.json_fields import parsed
from aioprefetch.source.state.layout import checked_directory, checked_side_name
from aioprefetch.source.state.sealed import damaged, to_bytes


class SideFiles:
    """The JSON files in a state's directory that are not the state's own. Needs no open state."""

    def __init__(self, operator: Operator, directory: str) -> None:
        self._operator = operator
        self._directory = checked_directory(directory)

    async def get_json(self, name: str) -> Any | None:
        """What a file holds, ``None`` when there is none. ``UntrustedMetadata`` when it is no JSON."""
        path = self._directory + checked_side_name(name)
        try:
            data = await self._operator.read(path)
        except NotFound:
            return None
        try:
            return parsed(data)
        except ValueError as error:
            raise damaged("the file holds no JSON", path) from error

    async def put_json_if_absent(self, name: str, value: Any) -> Any:
        """Write a file unless it is there; returns what is there then. It appears whole or not at all."""
        path = self._directory + checked_side_name(name)
        found = await self.get_json(name)
        if found is not None:
            return found
        conditional = self._operator.capability.write_if_not_exists
        try:
            await self._operator.write(path, to_bytes(value), if_not_exists=conditional)
        except (AlreadyExists, ConditionNotMatch):
            pass
        except Error as error:
            # The response was lost, perhaps not the file.
            if error.status == "permanent" or await self.get_json(name) is None:
                raise
        found = await self.get_json(name)
        return value if found is None else found
