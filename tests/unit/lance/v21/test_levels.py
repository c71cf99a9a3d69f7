"""Unravelling levels that are made from nested Python values by the rules of the format."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from aioprefetch.errors import UntrustedMetadata
from aioprefetch.lance.structural.decoded_rows import Unraveler
from aioprefetch.lance.structural.layouts import RepDefLayer, max_repetition, max_visible

ITEM, NULL_ITEM = RepDefLayer.ALL_VALID_ITEM, RepDefLayer.NULLABLE_ITEM
LISTS = (
    RepDefLayer.ALL_VALID_LIST,
    RepDefLayer.NULLABLE_LIST,
    RepDefLayer.EMPTYABLE_LIST,
    RepDefLayer.NULL_AND_EMPTY_LIST,
)
_HAS_NULLS = (RepDefLayer.NULLABLE_LIST, RepDefLayer.NULL_AND_EMPTY_LIST)
_HAS_EMPTY = (RepDefLayer.EMPTYABLE_LIST, RepDefLayer.NULL_AND_EMPTY_LIST)


def random_value(layers: list[RepDefLayer], rng: np.random.Generator) -> Any:
    """A value of the outer-most (last) layer: ``None``, a list, or for an item layer a tuple of what is inside."""
    layer, inner = layers[-1], layers[:-1]
    if layer.is_list:
        draw = rng.random()
        if layer in _HAS_NULLS and draw < 0.2:
            return None
        if layer in _HAS_EMPTY and draw < 0.4:
            return []
        return [random_value(inner, rng) for _ in range(int(rng.integers(1, 4)))]
    if layer is NULL_ITEM and rng.random() < 0.25:
        return None
    return (random_value(inner, rng),) if inner else "value"


def levels_of(value: Any, layers: list[RepDefLayer], rep: int) -> list[tuple[int, int]]:
    """Repetition and definition of every entry, ``rep`` being that of the first."""
    layer, inner = layers[-1], layers[:-1]
    code = sum(one.codes for one in inner)
    if layer.is_list:
        if value is None:
            return [(rep, code + 1)]
        if not value:
            return [(rep, code + layer.codes)]
        entries: list[tuple[int, int]] = []
        below = sum(one.is_list for one in inner)
        for index, one in enumerate(value):
            entries += levels_of(one, inner, rep if index == 0 else below)
        return entries
    if value is None:
        return [(rep, code + 1)]
    return levels_of(value[0], inner, rep) if inner else [(rep, 0)]


def rebuilt(unraveler: Unraveler, layers: list[RepDefLayer], values: int) -> list[Any]:
    """The nested values, rebuilt from the unravelled layers."""
    parts: list[Any] = ["value"] * values
    for depth, layer in enumerate(layers):
        if layer.is_list:
            offsets, validity = unraveler.lists()
            assert offsets[-1] == len(parts)
            rows = [parts[start:end] for start, end in pairwise(offsets)]
            parts = [row if validity is None or validity[i] else None for i, row in enumerate(rows)]
            continue
        count, validity = unraveler.validity()
        assert count == len(parts)
        wrapped = parts if depth == 0 else [(one,) for one in parts]
        parts = [one if validity is None or validity[i] else None for i, one in enumerate(wrapped)]
    assert not unraveler.has_more
    return parts


SHAPES = [
    [NULL_ITEM],
    [NULL_ITEM, NULL_ITEM, ITEM, NULL_ITEM],
    *([item, one] for item in (ITEM, NULL_ITEM) for one in LISTS),
    *([NULL_ITEM, one, outer] for one in LISTS for outer in LISTS),
    *([NULL_ITEM, NULL_ITEM, one, NULL_ITEM, outer, NULL_ITEM] for one in LISTS for outer in LISTS),
    [NULL_ITEM, RepDefLayer.EMPTYABLE_LIST, ITEM, RepDefLayer.NULL_AND_EMPTY_LIST, RepDefLayer.NULLABLE_LIST],
]


def test_nested_values_come_back() -> None:
    for layers in SHAPES:
        check_shape(layers)


def check_shape(layers: list[RepDefLayer]) -> None:
    """Make levels of random values, and rebuild the values from them."""
    rng = np.random.default_rng(len(layers))
    rows = [random_value(layers, rng) for _ in range(80)]
    top = max_repetition(layers)
    entries = [entry for row in rows for entry in levels_of(row, layers, top)]
    rep = np.array([one for one, _ in entries], np.uint16) if top else None
    has_codes = any(layer.codes for layer in layers)
    definition = np.array([one for _, one in entries], np.uint16) if has_codes else None
    values = sum(one <= max_visible(layers) for _, one in entries)
    found = rebuilt(Unraveler(tuple(layers), rep, definition, values), layers, values)
    assert found == rows, layers


def test_layers_that_do_not_fit_are_refused() -> None:
    flat = Unraveler((ITEM,), None, None, 3)
    assert flat.validity() == (3, None)
    with pytest.raises(UntrustedMetadata, match="fewer layers"):
        flat.validity()
    with pytest.raises(UntrustedMetadata, match="no layer of lists"):
        Unraveler((ITEM,), None, None, 3).lists()
    listed = Unraveler((ITEM, RepDefLayer.ALL_VALID_LIST), np.array([1, 0], np.uint16), None, 2)
    listed.validity()
    with pytest.raises(UntrustedMetadata, match="has a layer of lists"):
        listed.validity()
    with pytest.raises(UntrustedMetadata, match="without the definition levels"):
        Unraveler((NULL_ITEM,), None, None, 3).validity()
