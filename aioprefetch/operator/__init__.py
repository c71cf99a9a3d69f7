"""The front door: an Operator, made from a service or a URI."""

from __future__ import annotations

from aioprefetch.operator.operator import Operator

__all__ = ["Operator"]
