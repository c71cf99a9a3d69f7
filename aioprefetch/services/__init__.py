"""Services: accessors that do I/O. Each is a recipe that loads its dependencies at first use.

Every service is a folder whose files have the same names: ``options`` (fields and checks, below everything),
``errors`` and ``responses`` if the store has any, ``accessor`` (the live service) and ``recipe`` (schemes,
``from_uri``, ``build``). A service loads at the first use of its name here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.services.fs import Fs
    from aioprefetch.services.http import Http
    from aioprefetch.services.memory import Memory
    from aioprefetch.services.obspec import ObspecStore
    from aioprefetch.services.obspec.clouds import Azure, Gcs
    from aioprefetch.services.s3 import S3

__all__ = ["S3", "Azure", "Fs", "Gcs", "Http", "Memory", "ObspecStore"]

# The recipes that ``Operator.from_uri`` finds by their schemes.
BY_SCHEME = {
    "s3": "S3",
    "s3a": "S3",
    "http": "Http",
    "https": "Http",
    "file": "Fs",
    "memory": "Memory",
    **dict.fromkeys(("gs", "gcs"), "Gcs"),
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "adl"), "Azure"),
}

load_at_first_use(
    __name__,
    {
        "s3": ("S3",),
        "fs": ("Fs",),
        "http": ("Http",),
        "memory": ("Memory",),
        "obspec": ("ObspecStore",),
        "obspec.clouds": ("Azure", "Gcs"),
    },
)
