"""The seam between the library and a store: one read, and the protocols of services and layers.

``protocols`` has ``Accessor``, ``Service`` and ``Layer``, and the base of layers; ``service_base`` that for services.
``sink`` is the destination of a read; ``response_check`` checks the head of a response, and its version, before its
bytes count.
"""

from __future__ import annotations

from aioprefetch.accessor.protocols import Accessor, Layer, Service, WrappedAccessor
from aioprefetch.accessor.response_check import check_range, check_reply

__all__ = ["Accessor", "Layer", "Service", "WrappedAccessor", "check_range", "check_reply"]
