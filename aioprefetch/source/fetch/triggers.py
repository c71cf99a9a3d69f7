"""How much is listed for one batch. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from aioprefetch.source.options import Overwrites


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How changes become work, and how much is listed for one trigger.

    ``list_seconds_max`` and ``list_pages_max`` bound a trigger; a page that is under way is awaited. What was
    learned without work is written down with the next batch; ``learned_max`` keys, or ``learned_pages_max`` pages, or
    the end of a sweep do not wait for one.
    """

    overwrites: Overwrites = "ignore"
    list_seconds_max: float = 10.0
    list_pages_max: int = 100
    learned_max: int = 10_000
    learned_pages_max: int = 1000


@dataclass(slots=True)
class Trigger:
    """How far one call has come.

    Its bounds do not hold for ``everything``, nor, as long as there is no work, ``to_the_end``. ``one_page`` ends it
    after a page with work.
    """

    deadline_seconds: float
    everything: bool
    to_the_end: bool
    one_page: bool
    pages: int = 0
    is_idle: bool = False

    def may_list(self, options: PlanOptions, now_seconds: float, *, has_work: bool) -> bool:
        """Whether one more page may be asked for."""
        if self.is_idle or (self.one_page and has_work):
            return False
        if self.pages == 0 or self.everything or (self.to_the_end and not has_work):
            return True
        return self.pages < options.list_pages_max and now_seconds < self.deadline_seconds
