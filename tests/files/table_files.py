"""Tables that their libraries do not write: column mapping and deletion vectors of Delta, deletes of Iceberg."""

import json
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def bitmap(rows: Sequence[int]) -> bytes:
    """A Roaring bitmap of 64 bits in its portable form: an array for every 65,536 numbers."""
    out = struct.pack("<Q", len({row >> 32 for row in rows}))
    for high in sorted({row >> 32 for row in rows}):
        low = sorted(row & 0xFFFFFFFF for row in rows if row >> 32 == high)
        keys = sorted({row >> 16 for row in low})
        arrays = [[row & 0xFFFF for row in low if row >> 16 == key] for key in keys]
        head = b"".join(struct.pack("<HH", key, len(array) - 1) for key, array in zip(keys, arrays, strict=True))
        start = 8 + 8 * len(keys)
        starts = [start + 2 * sum(map(len, arrays[:place])) for place in range(len(keys))]
        out += struct.pack("<III", high, 12346, len(keys)) + head + struct.pack(f"<{len(keys)}I", *starts)
        out += b"".join(struct.pack(f"<{len(array)}H", *array) for array in arrays)
    return out


def _z85(data: bytes) -> str:
    text = ""
    for start in range(0, len(data), 4):
        number, digits = int.from_bytes(data[start : start + 4], "big"), ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            digits = _Z85[digit] + digits
        text += digits
    return text


def deletion_vector(root: Path, rows: Sequence[int], *, is_inline: bool) -> dict[str, Any]:
    """What an ``add`` says of deleted rows, which a file of the table has, or the text itself."""
    data = struct.pack("<I", 1681511377) + bitmap(rows)
    found = {"sizeInBytes": len(data), "cardinality": len(rows)}
    if is_inline:
        return {"storageType": "i", "pathOrInlineDv": _z85(data + bytes(-len(data) % 4)), **found}
    name = uuid.uuid4()
    framed = b"\x01" + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    (root / f"deletion_vector_{name}.bin").write_bytes(framed)
    return {"storageType": "u", "pathOrInlineDv": _z85(name.bytes), "offset": 1, **found}


def delta_field(name: str, kind: Any, number: int, physical: str) -> dict[str, Any]:
    """A field of a schema with column mapping."""
    ids = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": physical}
    return {"name": name, "type": kind, "nullable": True, "metadata": ids}


def delta_struct(*fields: Mapping[str, Any]) -> dict[str, Any]:
    """A type of fields, as a schema is one."""
    return {"type": "struct", "fields": list(fields)}


def commit(root: Path, version: int, *actions: Mapping[str, Any]) -> None:
    """A version of a table."""
    (root / "_delta_log").mkdir(parents=True, exist_ok=True)
    text = "\n".join(json.dumps(action) for action in actions)
    (root / "_delta_log" / f"{version:020}.json").write_text(text)


def delta_table(
    schema: Mapping[str, Any], partitions: Sequence[str], mode: str, *features: str
) -> list[dict[str, Any]]:
    """The first actions of a table."""
    settings = {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "99"}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": partitions,
        "configuration": settings if mode != "none" else {},
        "createdTime": 0,
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def added(root: Path, path: str, data: pa.Table, partition: Mapping[str, str | None], **more: Any) -> dict[str, Any]:
    """The action of a file, which is written."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(data, root / path, row_group_size=50)
    said = {"path": quote(path), "partitionValues": partition, "size": (root / path).stat().st_size}
    said |= {"modificationTime": 0, "dataChange": True, "stats": json.dumps({"numRecords": data.num_rows}), **more}
    return {"add": said}


def puffin(vectors: Mapping[str, Sequence[int]]) -> bytes:
    """A file of deletion vectors of Iceberg, by the data file of each."""
    out, blobs = b"PFA1", []
    for path, rows in vectors.items():
        data = b"\xd1\xd3\x39\x64" + bitmap(rows)
        framed = struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
        place = {"offset": len(out), "length": len(framed), "snapshot-id": -1, "sequence-number": -1}
        said = {"referenced-data-file": path, "cardinality": str(len(rows))}
        blobs.append({"type": "deletion-vector-v1", "fields": [], "properties": said, **place})
        out += framed
    footer = json.dumps({"blobs": blobs}).encode()
    return out + b"PFA1" + footer + struct.pack("<II", len(footer), 0) + b"PFA1"
