"""Services: accessors that do I/O. Each is a recipe that loads its dependencies at first use.

Every service is a folder whose files have the same names: ``options`` (fields and checks, below everything),
``errors`` and ``responses`` if the store has any, ``accessor`` (the live service) and ``recipe`` (schemes,
``from_uri``, ``build``).
"""

from __future__ import annotations

from aioprefetch.services.fs import Fs
from aioprefetch.services.http import Http
from aioprefetch.services.memory import Memory
from aioprefetch.services.obspec import ObspecStore
from aioprefetch.services.s3 import S3

# The recipes that ``Operator.from_uri`` finds by their schemes.
BY_URI = (S3, Http, Fs, Memory)

__all__ = ["S3", "Fs", "Http", "Memory", "ObspecStore"]
