"""What the killed pipelines read: sets of files of three shapes, and the rows that must arrive, each once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SHAPES = ("small", "cut", "parquet")


@dataclass(frozen=True)
class FileSet:
    """Where the files lie, the options that suit them, and the ids of the rows that were put there."""

    directory: Path
    options: dict[str, str]
    ids: list[int]


def make_file_set(directory: Path, shape: str) -> FileSet:
    """Files for a first run: many small ones, few that are cut at bytes, or Parquet that is cut at row groups."""
    directory.mkdir(parents=True)
    if shape == "small":
        options = {"format": "jsonl", "maxFilesPerTrigger": "8"}
        sizes = [5] * 40
    elif shape == "cut":
        options = {"format": "jsonl", "maxBytesPerTrigger": "16384"}
        sizes = [600, 1, 250]
    else:
        options = {"format": "parquet", "maxBytesPerTrigger": "8192"}
        sizes = [400, 20, 20, 600]
    ids: list[int] = []
    for number, rows in enumerate(sizes):
        ids += write_file(directory, f"m{number:04}", shape, first_id=len(ids), rows=rows)
    return FileSet(directory, options, ids)


def add_late_files(files: FileSet, shape: str) -> FileSet:
    """Two more files while no pipeline runs: one that sorts before all others, and one that sorts last."""
    ids = list(files.ids)
    for name in ("a-early", "z-late"):
        ids += write_file(files.directory, name, shape, first_id=len(ids), rows=7)
    return FileSet(files.directory, files.options, ids)


def write_file(directory: Path, name: str, shape: str, *, first_id: int, rows: int) -> list[int]:
    """One file, put there at once as an upload is; the ids of its rows."""
    ids = list(range(first_id, first_id + rows))
    texts = [f"row {one} " + "x" * (one % 50) for one in ids]
    hidden = directory.parent / f".{name}"
    if shape == "parquet":
        target = directory / f"{name}.parquet"
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": texts})
        pq.write_table(table, hidden, row_group_size=100, compression="none", use_dictionary=False)
    else:
        target = directory / f"{name}.jsonl"
        hidden.write_text(
            "".join(json.dumps({"id": one, "text": text}) + "\n" for one, text in zip(ids, texts, strict=True))
        )
    hidden.rename(target)
    return ids
