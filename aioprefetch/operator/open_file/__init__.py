"""Hadoop's ``openFile()`` builder: a reader opened by string keys, in code or from a job's configuration."""

from __future__ import annotations

from aioprefetch.operator.open_file.builder import KeyedBuilder, OpenFileBuilder, PendingReader

__all__ = ["KeyedBuilder", "OpenFileBuilder", "PendingReader"]
