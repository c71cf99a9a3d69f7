"""What a job costs with each library: requests by kind, the bytes of their responses, and what the job found."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OURS = "aioprefetch"
KINDS = ("GET", "HEAD", "LIST", "PUT", "POST", "DELETE")


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of a job by one library. ``result`` has to be the same with all of them."""

    kinds: Mapping[str, int]
    bytes_sent: int
    result: Any = None

    @property
    def requests(self) -> int:
        """All requests, of every kind."""
        return sum(self.kinds.values())

    def shown(self) -> str:
        """The requests, as ``2 GET + 1 HEAD``."""
        return " + ".join(f"{self.kinds[kind]} {kind}" for kind in KINDS if self.kinds.get(kind)) or "none"

    def shown_bytes(self) -> str:
        """The bytes, in round numbers."""
        return f"{self.bytes_sent / 1e6:.1f} MB" if self.bytes_sent >= 1e6 else f"{self.bytes_sent / 1e3:.0f} kB"


# By the job, and then by the library.
Costs = dict[str, dict[str, Cost]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Jobs that are run in one way. ``libraries`` are their names in the tables, ours first.

    ``jobs`` says of each what it does; ``measure`` runs those named.
    """

    name: str
    title: str
    about: str
    libraries: Sequence[str]
    jobs: Mapping[str, str]
    measure: Callable[[Sequence[str]], Costs]


def kinds_of(requests: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The number of requests of each kind, out of methods and targets: a listing is a GET in HTTP."""
    return dict(Counter("LIST" if "list-type=" in target else method for method, target in requests))


def is_ours(library: str) -> bool:
    """Whether that is us, in one way or another."""
    return library.startswith(OURS)
