"""How many turns of the loop other tasks get meanwhile."""

import asyncio


class OtherTask:
    """Another task of the loop, while it is entered. ``turns`` is the number that it has had."""

    turns = 0

    async def __aenter__(self) -> "OtherTask":
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)
