"""The tools with which the project tests itself, for tests of what you build on it.

* :class:`AccessorSuite`, :class:`ReaderSuite`: the contract of every store and reader, as test classes to subclass.
* :func:`content`, :func:`assert_same_bytes`, :class:`ReaderModel`: an oracle that shares no code with the library.
* :class:`FaultLayer`, :class:`Injection`: a layer that injects faults by plan.
* :class:`VirtualClockLoop`, :func:`run_virtual`, :class:`Deadlock`: asyncio on virtual time.
* :class:`CountingS3Server`: moto's S3 in this process, with a record of each request.
* :class:`FaultServer`, :class:`Fault`, :class:`Rule`: an HTTP/S3 server that injects faults by script, to the byte.
* :func:`run_library_suite`: what any library makes of such faults, by an adapter.

No other package of aioprefetch imports this one. Names load on first use: moto alone takes a second to import. The
extra `testing` installs the dependencies.
"""

from typing import TYPE_CHECKING

from aioprefetch.first_use import load_at_first_use

if TYPE_CHECKING:
    from aioprefetch.testing.accessor_suite import AccessorSuite
    from aioprefetch.testing.clock import Deadlock, VirtualClockLoop, run_virtual
    from aioprefetch.testing.fault_layer import FaultLayer, Injection
    from aioprefetch.testing.fault_server import FaultServer
    from aioprefetch.testing.faults import Fault, ReceivedRequest, Rule
    from aioprefetch.testing.library_suite import run_library_suite
    from aioprefetch.testing.oracle import ReaderModel, assert_same_bytes, content
    from aioprefetch.testing.reader_suite import ReaderSuite
    from aioprefetch.testing.s3_server import CountingS3Server, RecordedRequest

__all__ = [
    "AccessorSuite",
    "CountingS3Server",
    "Deadlock",
    "Fault",
    "FaultLayer",
    "FaultServer",
    "Injection",
    "ReaderModel",
    "ReaderSuite",
    "ReceivedRequest",
    "RecordedRequest",
    "Rule",
    "VirtualClockLoop",
    "assert_same_bytes",
    "content",
    "run_library_suite",
    "run_virtual",
]

load_at_first_use(
    __name__,
    {
        "accessor_suite": ("AccessorSuite",),
        "fault_layer": ("FaultLayer", "Injection"),
        "oracle": ("ReaderModel", "assert_same_bytes", "content"),
        "reader_suite": ("ReaderSuite",),
        "s3_server": ("CountingS3Server", "RecordedRequest"),
        "clock": ("Deadlock", "VirtualClockLoop", "run_virtual"),
        "faults": ("Fault", "ReceivedRequest", "Rule"),
        "fault_server": ("FaultServer",),
        "library_suite": ("run_library_suite",),
    },
    extra="testing",
)
