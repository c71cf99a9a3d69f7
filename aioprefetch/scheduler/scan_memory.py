"""The bytes that a scan may hold: a budget of its own, and its part in the one of the runtime.

Held memory is charged to the runtime's budget too, so that cached blocks make room for it. Where that budget is used
up by others the scan queues for the head of its queue, behind earlier requests for memory, with a prefetch's place in
line. Memory that must exceed the budget is charged too.
"""

from __future__ import annotations

from collections.abc import Callable

from aioprefetch.runtime.budget import MemoryBudget, Ticket


class ScanMemory:
    """``limit_bytes`` of 0 means no limit. ``on_room`` is called when awaited memory is available."""

    def __init__(self, budget: MemoryBudget, limit_bytes: int, on_room: Callable[[], None]) -> None:
        self.held_bytes = 0
        self._budget = budget
        # More than there is could never be granted, and would hold up every reservation behind it.
        self.limit_bytes = min(limit_bytes, budget.limit_bytes)
        self._on_room = on_room
        self._ticket: Ticket | None = None

    @property
    def left_bytes(self) -> int:
        """The rest of the scan's own limit; negative if it is exceeded."""
        return self.limit_bytes - self.held_bytes

    def free_bytes(self, need_bytes: int) -> int | None:
        """The memory that may be taken now, of which ``need_bytes`` are useful; ``None`` without a limit.

        Blocks are evicted for it. No memory is free while others wait for it, unless they asked later.
        """
        if not self.limit_bytes:
            return None
        left = self.left_bytes
        if left <= 0 or need_bytes <= 0:
            return left
        is_next = self._ticket is not None and self._ticket.granted
        if is_next:
            self.leave_queue()  # Take its memory before other requests are granted any.
        elif self._budget.waiting:
            return 0
        return max(0, min(left, self._budget.room(min(left, need_bytes), "prefetch")))

    def take(self, size_bytes: int) -> None:
        """Charge bytes, whether or not they fit."""
        self.held_bytes += size_bytes
        self._budget.room(size_bytes, "demand")
        self._budget.charge(size_bytes)

    def give_back(self, size_bytes: int) -> None:
        """Bytes that were taken are free again."""
        self.held_bytes -= size_bytes
        self._budget.release(size_bytes)

    def queue_for(self, size_bytes: int) -> None:
        """Wait for this many bytes of the runtime's budget, unless the scan is waiting already."""
        if self._ticket is None:
            self._ticket = self._budget.request(size_bytes, "prefetch", on_grant=self._on_room)

    def leave_queue(self) -> None:
        """Wait for nothing."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._budget.cancel(ticket)
