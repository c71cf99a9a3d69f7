"""The files of a table of Delta or Iceberg, as its own library lists them, for scans of ours.

The caller gives the table of ``deltalake`` or the scan of ``pyiceberg``, so these packages are there. What their
formats have and our scans do not is refused by name, since rows would be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aioprefetch.errors import ConfigInvalid, InvalidType, Unsupported, redact
from aioprefetch.filters import Filters, checked_filters
from aioprefetch.parquet.dataset.catalog import HAS_SCHEME, ScanFile, TableVersion
from aioprefetch.parquet.dataset.field_ids import INITIAL_DEFAULT
from aioprefetch.parquet.dataset.files import Partitions

TableFiles = tuple[list[ScanFile], pa.Schema, Filters]

# --- Delta ------------------------------------------------------------------------------------------------------------

_READER_VERSION_MAX = 3
_READER_FEATURES = {
    *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint"),
    "vacuumProtocolCheck",
}
# How columns are matched in each mode of column mapping; see FieldIds.
_WAYS = {"none": (), "name": ("physical_name",), "id": ("field_id",)}


def delta_files(table: Any, filters: Any = None) -> TableFiles:
    """The files, the schema and the filters of a ``deltalake.DeltaTable``, at the version that it has loaded.

    A scan takes them as ``files=``, ``schema=`` and ``filters=``. The files have their partition values, their deleted
    rows (deletion vectors), and how columns are matched (column mapping). Those whose partitions match nothing are left
    out.

    Raises ``InvalidType`` for another object, ``Unsupported`` for features of the table that scans do not have, and
    errors of ``deltalake`` as they are. The scan raises ``ConfigInvalid`` for files that its operator does not reach,
    and ``NotFound``, with the version, for those that a vacuum removed.
    """
    if not hasattr(table, "get_add_actions"):
        raise InvalidType(f"a deltalake.DeltaTable is needed, not {type(table).__name__}", operation="delta_files")
    root, names = table.table_uri.rstrip("/"), table.metadata().partition_columns
    version = TableVersion(f"version {table.version()} of the Delta table {redact(unquote(root))}", _delta_ways(table))
    schema, filters = pa.schema(table.schema().to_arrow()), checked_filters(filters)
    listed = pa.table(table.get_add_actions()).select(["path", "size_bytes", *(["partition"] if names else [])])
    deleted = _deleted_by_delta(table)
    files = []
    for action in listed.to_pylist():
        path, values = action["path"], {name: action["partition"][name] for name in names}
        url = unquote(path if HAS_SCHEME.match(path) else f"{root}/{path}")
        files.append(ScanFile(url, action["size_bytes"], partition=values, skip=deleted.get(url), table=version))
    if filters is not None:
        partitions = Partitions([file.partition or {} for file in files], schema, are_exact=True)
        files = [
            file for file, may_match in zip(files, partitions.may_hold(filters, path=root), strict=True) if may_match
        ]
    return files, schema, filters


def _delta_ways(table: Any) -> tuple[str, ...]:
    protocol, mode = table.protocol(), table.metadata().configuration.get("delta.columnMapping.mode", "none")
    unknown = {*(protocol.reader_features or ())} - _READER_FEATURES
    if protocol.min_reader_version > _READER_VERSION_MAX:
        unknown.add(f"reader version {protocol.min_reader_version}")
    if mode not in _WAYS:
        unknown.add(f"column mapping by {mode}")
    if unknown:
        why = f"the Delta table has what is not read: {', '.join(sorted(unknown))}"
        raise Unsupported(why, operation="delta_files")
    return _WAYS[mode]


def _deleted_by_delta(table: Any) -> dict[str, Any]:
    """The numbers of the deleted rows of files, by their URLs without escapes."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return {}
    masks = pa.table(table.deletion_vectors())
    return {
        unquote(url.as_py()): np.flatnonzero(~mask.values.to_numpy(zero_copy_only=False))
        for url, mask in zip(masks["filepath"], masks["selection_vector"], strict=True)
    }


# --- Iceberg ----------------------------------------------------------------------------------------------------------

_FORMAT_VERSION_MAX = 3


def iceberg_files(scan: Any) -> TableFiles:
    """The files, the schema and the filter of a scan of ``pyiceberg`` (``table.scan(…)``), at its snapshot.

    A scan of ours takes them as ``files=``, ``schema=`` and ``filters=``. The files have their partition values and
    their deleted rows (positional deletes and deletion vectors, which are read here), and columns are matched by ids.

    Raises ``InvalidType`` for another object; ``Unsupported`` for equality deletes, files that are encrypted or not
    Parquet, and types that scans do not have; ``ConfigInvalid`` for a scan with a limit, which is ours to take; errors
    of ``pyiceberg`` as they are. Our scan raises ``ConfigInvalid`` for files that its operator does not reach, and
    ``NotFound``, with the snapshot, for those that are gone.
    """
    if not (hasattr(scan, "plan_files") and hasattr(scan, "snapshot_id")):
        raise InvalidType(f"a scan of pyiceberg is needed, not {type(scan).__name__}", operation="iceberg_files")
    metadata, snapshot = scan.table_metadata, scan.snapshot()
    if scan.limit is not None:
        raise ConfigInvalid(f"the scan has limit={scan.limit}: give it to ours", operation="iceberg_files")
    if metadata.format_version > _FORMAT_VERSION_MAX:
        raise _not_read(f"version {metadata.format_version} of the format")
    whole = scan.update(selected_fields=("*",)).projection()
    schema, types, mapping = _iceberg_schema(scan.projection()), _iceberg_schema(whole), metadata.name_mapping()
    filters, filtered = _iceberg_filter(scan, whole, schema, types)
    number = None if snapshot is None else snapshot.snapshot_id
    version = TableVersion(
        f"snapshot {number} of the Iceberg table {redact(metadata.location)}",
        ("field_id",),
        None if mapping is None else mapping.model_dump_json(),
        filtered,
    )
    files, deletes = list[ScanFile](), dict[str, Mapping[str, Any]]()
    for task in _tasks(scan if snapshot is None else scan.update(snapshot_id=number)):
        file, deleted = _data_file(task.file), list[Any]()
        for other in task.delete_files:
            if other.file_path not in deletes:
                deletes[other.file_path] = _deleted_by_iceberg(scan.io, other)
            if file.file_path in deletes[other.file_path]:
                deleted.append(np.asarray(deletes[other.file_path][file.file_path]))
        values = _partition(file.partition, metadata.specs()[file.spec_id], whole, types)
        skip = np.concatenate(deleted) if deleted else None
        files.append(ScanFile(file.file_path, file.file_size_in_bytes, partition=values, skip=skip, table=version))
    return files, schema, filters


def _not_read(what: str) -> Unsupported:
    return Unsupported(f"the Iceberg table has what is not read: {what}", operation="iceberg_files")


def _tasks(scan: Any) -> Iterable[Any]:
    try:
        return list(scan.plan_files())
    except (ValueError, NotImplementedError) as error:
        if "equality deletes" in str(error):
            raise _not_read("equality deletes") from error
        raise


def _data_file(file: Any, *formats: str) -> Any:
    """A file of a table, if it can be read."""
    if file.content.name == "EQUALITY_DELETES":
        raise _not_read("equality deletes")
    if file.key_metadata or file.file_format.name not in ("PARQUET", *formats):
        raise _not_read("encrypted files" if file.key_metadata else f"files of {file.file_format.name}")
    return file


def _iceberg_schema(schema: Any) -> pa.Schema:
    """The Arrow schema with the ids and the initial defaults of fields."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import index_by_id

    found = schema_to_pyarrow(schema)
    places = {field.field_id: place for place, field in enumerate(schema.columns)}
    for number, field in index_by_id(schema).items():
        if (kind := type(field.field_type).__name__) in ("GeometryType", "GeographyType", "VariantType"):
            raise _not_read(f"the {kind} of {field.name!r}")
        if field.initial_default is not None:
            if number not in places:
                raise _not_read(f"the initial default of {field.name!r}, a field within another")
            text = json.dumps(json.loads(field.model_dump_json())["initial-default"])
            column = found.field(places[number])
            found = found.set(places[number], column.with_metadata({**column.metadata, INITIAL_DEFAULT: text}))
    return found


def _iceberg_filter(scan: Any, whole: Any, schema: pa.Schema, types: pa.Schema) -> tuple[Filters, list[pa.Field]]:
    """The filter, and the columns that it reads beside those of ``schema``, of all those of the table."""
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.expressions.visitors import bind, extract_field_ids
    from pyiceberg.io.pyarrow import expression_to_pyarrow
    from pyiceberg.schema import Schema, index_by_id

    if scan.row_filter == AlwaysTrue():
        return None, []
    bound = bind(whole, scan.row_filter, case_sensitive=scan.case_sensitive)
    read = extract_field_ids(bound)
    filtered = [types.field(column.name) for column in whole.columns if read & index_by_id(Schema(column)).keys()]
    for field in filtered:
        if field.name in schema.names and not schema.field(field.name).type.equals(field.type):
            raise _not_read(f"a filter on {field.name!r}, of which some fields alone are selected")
    return expression_to_pyarrow(bound, whole), filtered


def _partition(record: Any, spec: Any, whole: Any, types: pa.Schema) -> dict[str, Any]:
    """The values of columns that the partitions of a file tell: those of identity transforms."""
    values: dict[str, Any] = {}
    for place, field in enumerate(spec.fields):
        name, value = whole.find_column_name(field.source_id), record[place]
        kind = types.field(name).type if name in types.names else None
        if str(field.transform) == "identity" and kind is not None and not isinstance(kind, pa.BaseExtensionType):
            if isinstance(value, int) and pa.types.is_temporal(kind):  # Of an epoch, in the unit of the type.
                value = pa.scalar(value, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind).as_py()
            values[name] = value
    return values


def _deleted_by_iceberg(io: Any, file: Any) -> Mapping[str, Any]:
    """The numbers of the rows of each data file that a file deletes."""
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile

    with io.new_input(_data_file(file, "PUFFIN").file_path).open() as stream:
        data = stream.read()
    if file.file_format.name == "PUFFIN":
        vectors = deletion_vectors_from_puffin_file(PuffinFile(data))
        return {vector.referenced_data_file: vector.to_vector() for vector in vectors}
    table = pq.read_table(pa.BufferReader(data), columns=["file_path", "pos"])
    grouped = table.group_by("file_path").aggregate([("pos", "list")])
    return {path.as_py(): rows.values for path, rows in zip(grouped["file_path"], grouped["pos_list"], strict=True)}
