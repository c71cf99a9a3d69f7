"""The files of a batch: one whole listing, in the order of the store, with a dataset of Lance as one file."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import replace

from aioprefetch.lance.dataset.versions import version_of
from aioprefetch.operator.operator import Operator, list_literally
from aioprefetch.source.files import SourceFile
from aioprefetch.source.list.selection import Selection, file_of
from aioprefetch.source.options import FormatOptions
from aioprefetch.values import Entry

_MANIFEST = re.compile(r"(|.*/)_versions/\d{1,20}\.manifest")


async def list_files(
    operator: Operator, options: FormatOptions, *, glob: str | None = None, prefix: str = "", hidden_files: bool = False
) -> AsyncGenerator[SourceFile, None]:
    """The files below the root that match ``glob``, empty ones included; directories and hidden files are none.

    A directory that holds a dataset of Lance is one file, if it matches: its key ends with ``/`` (that of the root is
    empty), its version is the dataset's latest, its size is that of all its objects. What is in it is no file then.
    """
    selection = Selection(prefix, glob, hidden_files=hidden_files)
    # Manifests come before the data they are of, in the order of keys.
    may_be_dataset = options.format in (None, "lance")
    dataset: SourceFile | None = None
    async with list_literally(operator, selection.prefix, recursive=True) as entries:
        async for entry in entries:
            if dataset is not None and not entry.path.startswith(dataset.key):
                if _takes(selection, dataset):
                    yield dataset
                dataset = None
            found = _MANIFEST.fullmatch(entry.path) if may_be_dataset else None
            if found is not None and dataset is None:
                dataset = SourceFile(found[1], 0, None, "0")
            if dataset is not None:
                dataset = _with(dataset, entry)
            elif selection.takes(entry.path):
                yield file_of(entry)
    if dataset is not None and _takes(selection, dataset):
        yield dataset


def _takes(selection: Selection, dataset: SourceFile) -> bool:
    return not dataset.key or selection.takes(dataset.key[:-1])


def _with(dataset: SourceFile, entry: Entry) -> SourceFile:
    """A dataset with one more object."""
    version = version_of(entry, dataset.key)
    latest = max(int(dataset.version or 0), version[0].version if version is not None else 0)
    return replace(dataset, size=dataset.size + (entry.size or 0), version=str(latest))
