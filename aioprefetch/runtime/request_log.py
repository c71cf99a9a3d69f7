"""``AIOPREFETCH_LOG=requests``: a line for each request to a store, by the logger ``aioprefetch.requests``.

Where the program has configured no logging, the lines go to the standard error.
"""

from __future__ import annotations

import logging

from aioprefetch.errors import ConfigInvalid, printable
from aioprefetch.runtime.events import Event, EventBus

requests_logger = logging.getLogger("aioprefetch.requests")
_EVENTS = ("request.finished", "request.failed", "request.retried")


def log_requests(bus: EventBus, setting: str) -> None:
    """Log the requests of a bus from now on, where the variable says so. ``ConfigInvalid`` for another setting."""
    if setting != "requests":
        raise ConfigInvalid(f"AIOPREFETCH_LOG={setting!r} must be 'requests'", operation="configure")
    if not requests_logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        requests_logger.addHandler(handler)
    if not requests_logger.isEnabledFor(logging.INFO):
        requests_logger.setLevel(logging.INFO)
    bus.subscribe(lambda event: requests_logger.info("%s", line_of(event)), *_EVENTS)


def line_of(event: Event) -> str:
    """The line of an event: what was requested, what came of it, and how long head and all of it took."""
    facts, path = event.facts, printable(event.path)
    if event.name == "request.retried":
        return f"{facts['operation']} {path} again in {facts['wait_seconds']:.3f} s after {facts['error']}"
    start, end = facts["start"], facts["end"]
    words = [facts["operation"], facts["method"], facts["url"] or path]
    words.append(None if start is None else f"[{start}, {'end' if end is None else end})")
    words += [facts["status"], facts.get("error"), f"{facts['bytes']} bytes"]
    seconds = [value for value in (facts["first_byte_seconds"], facts["seconds"]) if value is not None]
    words.append("/".join(f"{value * 1e3:.1f}" for value in seconds) + " ms")
    words += [facts["lane"], f"attempt {facts['attempt']}" if facts["attempt"] > 1 else None]
    return " ".join(str(word) for word in words if word is not None)
