"""What can be set of a state. The defaults serve ten million files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """How much a state keeps, where, and when it is compacted.

    Parameters
    ----------
    forget_after_seconds
        A file that is no longer listed is forgotten after so long, by the next compaction of its key range.
    keep_records
        So many committed records with work stay in the log, which an engine may replay, and so many of the newest ones
        whatever they hold, which another source may follow.
    compact_entries
        Changes of files that are compacted at once; ``None``: between 50,000 and 100,000, as the state grows.
    compact_records
        Records that are compacted whatever they hold.
    run_rows
        Files in one run at most: what is written again for one change of a key range.
    group_rows
        Files in a row group of a run: what is read for one look-up.
    memory_items
        Items of records that are kept in memory, for the partitions of the newest batches.
    cache_directory
        Where runs are kept while they are looked into, in files without a name; ``None``: the system's place for
        temporary files.
    cache_bytes
        How much of them.
    retry_seconds
        Compactions that fail in a row for longer, by failures that may pass, are told to whoever commits.
    """

    forget_after_seconds: float = 7 * 86400.0
    keep_records: int = 100
    compact_entries: int | None = None
    compact_records: int = 500
    run_rows: int = 250_000
    group_rows: int = 10_000
    memory_items: int = 50_000
    cache_directory: str | None = None
    cache_bytes: int = 512 << 20
    retry_seconds: float = 600.0

    @property
    def forget_after_ms(self) -> int:
        """The same in milliseconds."""
        return int(self.forget_after_seconds * 1000)

    def compact_entries_for(self, rows: int) -> int:
        """How many changes are worth a compaction of a state of ``rows`` files."""
        if self.compact_entries is not None:
            return self.compact_entries
        return max(50_000, min(100_000, rows // 50))
