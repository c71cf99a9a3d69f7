"""Batches whose dictionaries differ, put together: Arrow itself refuses where one holds a null, as those of 2.0 do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from aioprefetch.lance.output import fixed_width, merge_dictionaries


def table_of(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """The batches as one table whose columns have one dictionary each, at any depth.

    ``Unsupported`` when an index type cannot count the values of all.
    """
    columns = [
        pa.chunked_array(with_one_dictionary([batch.column(index) for batch in batches]), field.type)
        for index, field in enumerate(schema)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def with_one_dictionary(arrays: Sequence[pa.Array]) -> Sequence[pa.Array]:
    """The same arrays, all of one type, with equal dictionaries. Without dictionaries they are themselves."""
    kind = arrays[0].type if arrays else pa.null()
    if len(arrays) < 2 or not has_dictionary(kind):
        return arrays
    if pa.types.is_dictionary(kind):
        return _renamed(kind, arrays)
    if pa.types.is_struct(kind):
        columns = [with_one_dictionary([one.field(index) for one in arrays]) for index in range(kind.num_fields)]
        return [_struct(one, children) for one, *children in zip(arrays, *columns, strict=True)]
    items = with_one_dictionary([one.values for one in arrays])
    return [
        pa.Array.from_buffers(
            kind, len(one), one.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2], -1, one.offset, [values]
        )
        for one, values in zip(arrays, items, strict=True)
    ]


def has_dictionary(kind: pa.DataType) -> bool:
    """Whether a type has a dictionary in a place where it can be exchanged."""
    if pa.types.is_struct(kind):
        return any(has_dictionary(kind.field(index).type) for index in range(kind.num_fields))
    is_list: tuple[Callable[[pa.DataType], bool], ...] = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_fixed_size_list,
    )
    if any(check(kind) for check in is_list):
        return has_dictionary(kind.value_type)
    return bool(pa.types.is_dictionary(kind))


def _struct(array: pa.StructArray, children: Sequence[pa.Array]) -> pa.StructArray:
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(array.type), mask=mask)


def _renamed(kind: pa.DataType, arrays: Sequence[pa.DictionaryArray]) -> Sequence[pa.Array]:
    first = arrays[0].dictionary
    if all(one.dictionary.equals(first) for one in arrays[1:]):
        return arrays
    merged, renamings = merge_dictionaries(kind, [one.dictionary for one in arrays])
    width = fixed_width(kind.index_type)
    result = []
    for one, renamed in zip(arrays, renamings, strict=True):
        indices = one.indices
        numbers = np.asarray(indices.fill_null(0)).view(f"u{width}")
        # Where all rows are null there may be no values at all to point to.
        moved = renamed[numbers] if len(renamed) else np.zeros(len(numbers), renamed.dtype)
        mask = np.asarray(indices.is_null()) if indices.null_count else None
        new = pa.array(moved.view(kind.index_type.to_pandas_dtype()), kind.index_type, mask=mask)
        result.append(pa.DictionaryArray.from_arrays(new, merged, ordered=kind.ordered, safe=False))
    return result
