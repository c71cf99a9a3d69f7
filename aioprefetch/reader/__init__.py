"""One open object, and the story of a read.

A ``RangeReader`` (``reader``) is the public face of two parts. The **cursor** (``cursor``) is the position of ``read``
and ``readinto``: a seek moves it and nothing else. The **object reads** (``object_reads``) serve every read, whether it
names an offset or begins at the cursor.

A read looks into the **block store** first. The store holds, for each version of an object, *blocks* of a fixed size;
a block consists of *segments*, each filled by one request. If one segment holds every byte of the read, the
read is a *hit*: it costs a look-up and a copy, and sends nothing.

The first read of a reader finds no version. The *opening* (``opening``) sends one request that brings size, ETag and
the first bytes together, and pins the version. From then on every request names the pinned ETag, every response is
compared with it, and another version is ``ObjectChanged``: bytes of two versions never mix. If the first response has
brought the whole object, the read takes its bytes from there: nothing can be missing, so no window is made.

A *miss* goes four steps:

1. The **window** (``window``) sees the read. It keeps the *runs* of the reader, a run being a series of reads in
   sequence, and decides whether the miss brings whole blocks or the exact range, and how many blocks are
   fetched ahead of the run. ``policy`` holds the table of read policies, ``growth`` how a window grows. All three are
   pure.
2. The store says which bytes are resident, which are in flight, and which are missing. For the missing ones it
   starts a **fetch**: it reserves memory, and calls ``Accessor.read`` through the layers down to the service.
3. The fetch is the **sink** of its own request: the service writes the body into the memory of the segments. Each
   reader that needs some of these bytes waits for the same fetch, and wakes as soon as its own bytes have arrived.
4. The read copies its bytes out of the segments. Segments stay resident until the memory is needed for others.

The requests of a read are queued before its window's. A window's requests travel in the prefetch lane; a fetch
in that lane is promoted to the demand lane as soon as a read waits for it. ``options`` checks what
``operator.reader(path)`` takes, and ``iterators`` are the results of ``stream`` and ``iter_ranges``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.reader.reader import RangeReader

__all__ = ["RangeReader"]

load_at_first_use(__name__, {"reader": ("RangeReader",)})
