"""The picture of a read: which bytes were fetched, used and wasted, and where the time went.

``with ap.trace.record(op) as t: ...`` records an operator, ``record()`` all operators of the process. Then
``t.write_html("read.html")`` writes one page that needs no network, ``t.write_chrome_json("read.json")`` a trace for
Perfetto, and ``t.advice`` says what to change. With the variable ``AIOPREFETCH_TRACE=read.html`` a process records
itself and writes the page when it ends.

``recording`` collects events, ``advice`` and ``timeline`` derive from it, ``page`` draws it; only ``trace`` listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.trace.advice import Advice
    from aioprefetch.trace.recording import Recording
    from aioprefetch.trace.trace import Trace, record

__all__ = ["Advice", "Recording", "Trace", "record"]

load_at_first_use(__name__, {"advice": ("Advice",), "recording": ("Recording",), "trace": ("Trace", "record")})
