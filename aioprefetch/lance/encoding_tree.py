"""Trees of encodings: one table says which messages a tree is made of, and which class each of them becomes.

An encoding is a message of alternatives, and an alternative may hold encodings again. A row of the table is one
alternative: its number and name, its fields, and the class or function that takes the values of the fields in the order
of the row. Trees are read strictly: an unknown alternative or field is ``Unsupported`` and named, since skipping it
would mean decoding something else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.wire import FieldRule, MessageTable, Parsed, message, one_of, parse

T = TypeVar("T")

_DEFAULTS: dict[str, Any] = {"bool": False, "bytes": b"", "text": "", "message": {}}


@dataclass(frozen=True, slots=True)
class _Alternative(Generic[T]):
    fields: Collection[FieldRule]
    make: Callable[..., T]
    convert: Mapping[str, Callable[[Any], Any]]
    optional: Collection[str]
    refused: Collection[str]


class EncodingTree(MessageTable, Generic[T]):
    """A message of alternatives, each of which becomes a ``T``.

    ``refusal`` is the text of the error for an alternative that is not decoded; ``{}`` in it is the alternative's name.
    """

    def __init__(self, name: str, refusal: str) -> None:
        super().__init__(name)
        self._refusal = refusal
        self._alternatives: dict[str, _Alternative[T]] = {}

    def add(
        self,
        number: int,
        name: str,
        make: Callable[..., T],
        fields: Mapping[int, FieldRule] | None = None,
        *,
        convert: Mapping[str, Callable[[Any], Any]] | None = None,
        optional: Collection[str] = (),
        refused: Collection[str] = (),
    ) -> None:
        """Add an alternative. ``make`` gets the values of ``fields`` in their order, encodings as trees.

        ``convert`` has a function for the value of a field, by the field's name.
        An absent field has the default of its type; one that is ``optional`` is ``None`` then. An absent encoding is
        ``UntrustedMetadata``, unless it is optional. A field in ``refused`` is not passed on; its presence is
        ``Unsupported``.
        """
        fields = fields or {}
        self.rules[number] = message(name, MessageTable(name, dict(fields)))
        self._alternatives[name] = _Alternative(tuple(fields.values()), make, convert or {}, optional, refused)

    def delegate(self, number: int, name: str, tree: EncodingTree[T]) -> None:
        """Add an alternative that is a message of alternatives itself."""
        self.rules[number] = message(name, tree)

    def refuse(self, number: int, name: str) -> None:
        """Add an alternative that is part of the format and not decoded."""
        self.rules[number] = FieldRule(name, "bytes")

    def read(self, data: bytes) -> T:
        """The tree of a serialized message.

        ``Unsupported`` names what is not decoded; ``UntrustedMetadata`` is for bytes that are not such a message.
        """
        return self.build(parse(self, data, strict=True))

    def build(self, parsed: Parsed) -> T:
        """The tree of a parsed message. Raises as ``read`` does."""
        name, content = one_of(parsed, self)
        alternative = self._alternatives.get(name)
        if alternative is not None:
            return alternative.make(*_values(name, alternative, content))
        for rule in self.rules.values():
            if rule.name == name and isinstance(rule.table, EncodingTree):
                tree: EncodingTree[T] = rule.table
                return tree.build(content)
        raise Unsupported(self._refusal.format(name))


def _values(name: str, alternative: _Alternative[Any], content: Parsed) -> Iterator[Any]:
    for rule in alternative.fields:
        if rule.name in alternative.refused:
            if content.get(rule.name, False) is not False:
                raise Unsupported(f"{name} with a field {rule.name} is not supported")
        elif rule.name not in content and rule.name in alternative.optional:
            yield None
        elif not isinstance(rule.table, EncodingTree):
            value = content.get(rule.name, () if rule.repeated else _DEFAULTS.get(rule.kind, 0))
            yield alternative.convert[rule.name](value) if rule.name in alternative.convert else value
        elif rule.repeated:
            yield tuple(rule.table.build(child) for child in content.get(rule.name, ()))
        elif rule.name in content:
            yield rule.table.build(content[rule.name])
        else:
            raise UntrustedMetadata(f"{name} without the encoding of its {rule.name}")
