"""Entries that outlive a process: their format, index, eviction, claims and writing behind, in files or in a store."""
