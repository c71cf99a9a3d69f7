"""Blocks on a local disk, one file each: shared by all readers of a runtime and by processes, kept over restarts."""
