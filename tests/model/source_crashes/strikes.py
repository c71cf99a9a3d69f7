"""A process that is killed, or a request that fails, at a numbered step, and the steps of a simulated engine."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from aioprefetch.errors import Unavailable
from aioprefetch.values import ListRequest, Request
from tests.stores.verb_layer import Forward, VerbLayer

T = TypeVar("T")

# killed: the process is gone, before a request or when it has taken effect and the response is on its way.
# failed: the process goes on, and the call that failed is made again.
Mode = Literal["killed before", "killed after", "failed before", "failed after"]
MODES: tuple[Mode, ...] = ("killed before", "killed after", "failed before", "failed after")


class KilledError(BaseException):
    """The process has been killed: nothing of it has any effect from here on."""


WRITES = ("write", "delete", "copy", "engine")


@dataclass(slots=True)
class Strikes:
    """Notes the steps of all processes of one scene, and strikes at those numbered ``at``, from 1.

    ``meanwhile`` is awaited before them instead, where it is given.
    """

    at: frozenset[int] = frozenset()
    mode: Mode = "killed before"
    meanwhile: Callable[[], Awaitable[None]] | None = None
    steps: list[str] = field(default_factory=list)

    @property
    def struck(self) -> list[str]:
        """The steps that were struck so far."""
        return [name for number, name in enumerate(self.steps, 1) if number in self.at]

    @property
    def writes(self) -> list[int]:
        """The numbers of the steps that change something."""
        return [number for number, name in enumerate(self.steps, 1) if name.startswith(WRITES)]

    def __repr__(self) -> str:
        return f"{self.mode} {', '.join(f'step {number}' for number in sorted(self.at))} {self.struck}"


class Process:
    """One life of a process: the first strike ends it."""

    def __init__(self, strikes: Strikes) -> None:
        self.strikes = strikes
        self.is_dead = False

    async def step(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do something that takes effect outside of the process."""
        self.check()
        strikes = self.strikes
        strikes.steps.append(name)
        struck = len(strikes.steps) in strikes.at
        if struck and strikes.meanwhile is not None:
            await strikes.meanwhile()
            struck = False
        if struck and strikes.mode.endswith("before"):
            self._strike(name)
        response = await work()
        if struck:
            self._strike(name)
        self.check()
        return response

    def check(self) -> None:
        """Nothing happens in a dead process."""
        if self.is_dead:
            raise KilledError

    def _strike(self, name: str) -> None:
        if self.strikes.mode.startswith("killed"):
            self.is_dead = True
            raise KilledError
        raise Unavailable("injected", operation=name)


@dataclass(frozen=True, slots=True)
class StrikeLayer(VerbLayer):
    """Makes each request a step of a process, and pages of a listing small."""

    name: str
    process: Process
    page_entries: int = 5

    async def around(self, request: Request, forward: Forward) -> Any:
        if isinstance(request, ListRequest):
            request = replace(request, page_entries_max=self.page_entries)
        name = f"{request.operation} {self.name} {request.path}"
        return await self.process.step(name, lambda: forward(request))
