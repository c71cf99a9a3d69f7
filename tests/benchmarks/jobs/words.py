"""What several modules of the table share: names of contestants and numbers."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.benchmarks.clients import CLIENTS
from tests.benchmarks.job import (
    Contestant,
)

VIEW, READ, READER = "aioprefetch view", "aioprefetch read", "aioprefetch reader"
OBSTORE, FLOOR, BY_HAND = "obstore", "bare protocol", "transport by hand"
MOUNTPOINT = "s3torchconnectorclient"
WALL_SECONDS, CPU_EACH, RATE_EACH = "wall_seconds", "cpu_per_request", "requests_per_second"


def in_threads(names: Sequence[str], work: Callable[[str], Contestant], at_once: int) -> dict[str, Contestant]:
    """A contestant for each client; where it blocks, its name has the number of threads."""

    def titled(name: str) -> str:
        factory: Any = CLIENTS[name]
        blocks = getattr(factory, "func", factory).is_blocking
        return f"{name.removesuffix(', threads')}, {at_once} threads" if blocks else name

    return {titled(name): work(name) for name in names}
