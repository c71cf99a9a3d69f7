"""The durable state of a source: a log of records, sorted runs of the known files, one writer at a time.

How an append becomes durable:

1. ``SourceState.open`` reads ``meta.json`` and compares it with the source's settings. A writer proves with a probe
   object that the store honours conditional writes; then it claims the state: it appends a record of its own to the log
   and writes the snapshot again under its own name. From then on every write of an earlier writer meets a condition
   that no longer holds, and raises ``StateConflict``.
2. The planner makes a ``Record``: the files of one batch, the position of the listing after it, and the totals.
3. ``SourceState.append`` hands it to ``Journal.append``. The journal checks that it follows the newest record, puts the
   checksum of that record into it, and compresses it.
4. ``StateStore.create`` writes it as ``log/<number>.json.zst`` under the condition that no such object exists. One
   request makes the record durable, and is at the same time the fence against a second writer. If the response is
   lost, the object is read and compared before anything is repeated.
5. ``StateData.apply`` takes the record into memory: the new head, and in the ``Delta`` its changes of known files. Only
   now does the engine learn the offset, which is the number of the record.

A crash before the request leaves the old state; a crash after it leaves a record that the next opening finds and hands
out unchanged. There is no moment in between.

How the log stays short: ``CompactionSchedule`` runs the ``Compactor`` in the background. It merges the delta into runs
(Parquet files sorted by key, immutable), replaces ``snapshot.json`` under the condition that its ETag is unchanged, and
then deletes the runs and records that neither this snapshot nor the one before it needs. A lookup (``StateIndex``)
reads the runs of the snapshot and applies the delta on top.

Modules, lowest first: ``store`` (objects), ``snapshot``, ``index``, ``journal``, ``compaction``, ``source_state``.
"""
