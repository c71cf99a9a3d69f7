"""obspec's protocols over any operator: ``store(operator)`` is what libraries that speak obspec read and write through.

The other way round, a store of obspec's under an operator, is ``aioprefetch.services.ObspecStore``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.obspec.result import ReadResult
    from aioprefetch.obspec.store import OperatorStore, store

__all__ = ["OperatorStore", "ReadResult", "store"]

load_at_first_use(__name__, {"store": ("OperatorStore", "store"), "result": ("ReadResult",)}, extra="obspec")
