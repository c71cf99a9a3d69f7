"""Hadoop's ``openFile()`` builder: a reader opened by string keys, in code or from a job's configuration."""

from __future__ import annotations

from aioprefetch.open_file.builder import OpenFileBuilder, PendingReader

__all__ = ["OpenFileBuilder", "PendingReader"]
