"""Decoded values as the buffers of Arrow arrays: overflowing offsets, and types without values."""

import numpy as np
import pyarrow as pa
import pytest

from aioprefetch.errors import Unsupported, UntrustedMetadata
from aioprefetch.lance.physical.protocols import INT32_MAX, Capacity
from aioprefetch.lance.structural.assembly import LeafRows
from aioprefetch.lance.structural.values import Fixed, Nulls, Texts

FOUR = np.arange(4, dtype="<i4").view(np.uint8)
TEXTS = Texts(np.frombuffer(b"abcdefghij", np.uint8), np.array([0, 4, 10]))


@pytest.mark.parametrize("room", [9, 10])
def test_offsets_of_a_batch_do_not_wrap(room: int) -> None:
    """Texts of 10 bytes follow earlier pages, which leave ``room`` bytes to the limit of 32-bit offsets."""
    capacities = [Capacity(), Capacity(7), Capacity(INT32_MAX - room)]
    rows = LeafRows(pa.string(), TEXTS, None)
    if room < 10:
        with pytest.raises(Unsupported, match="32-bit offsets"):
            rows.update_capacity(0, 2, capacities)
    else:
        rows.update_capacity(0, 2, capacities)
        assert [capacity.size for capacity in capacities] == [2, 9, INT32_MAX]


@pytest.mark.parametrize("kind", [pa.int32(), pa.bool_(), pa.string(), pa.list_(pa.int8(), 2)], ids=str)
def test_a_page_of_nulls_without_validity_is_all_null(kind: pa.DataType) -> None:
    validity = LeafRows(kind, Nulls(5), None).slice(0, 5)[0]
    assert validity is not None
    assert np.unpackbits(validity, bitorder="little")[:5].tolist() == [0] * 5


def test_values_have_a_flag_of_validity_each() -> None:
    values = Fixed(FOUR, 32, 4)
    assert LeafRows(pa.int32(), values, np.ones(4, bool)).rows == 4
    for flags in (3, 5):
        with pytest.raises(UntrustedMetadata, match=f"4 values with {flags} flags"):
            LeafRows(pa.int32(), values, np.ones(flags, bool))
