"""Services: accessors that do I/O. Each is a recipe that loads what it needs when it is first used."""

from __future__ import annotations

from aioprefetch.services.fs import Fs
from aioprefetch.services.http import Http
from aioprefetch.services.memory import Memory
from aioprefetch.services.obspec import ObspecStore
from aioprefetch.services.s3 import S3

__all__ = ["S3", "Fs", "Http", "Memory", "ObspecStore"]
