"""The seam between the library and a store: one read, and the protocols of services and layers.

``protocols`` has ``Accessor``, ``Service`` and ``Layer``. ``sink`` is the destination of a read; ``response_check``
checks the head of a response before its bytes count. ``service_base`` and ``wrapped`` are the bases of services
and layers.
"""

from __future__ import annotations

from aioprefetch.accessor.protocols import Accessor, Layer, Service
from aioprefetch.accessor.response_check import check_range, check_reply
from aioprefetch.accessor.wrapped import WrappedAccessor

__all__ = ["Accessor", "Layer", "Service", "WrappedAccessor", "check_range", "check_reply"]
