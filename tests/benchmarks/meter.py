"""What a stretch of work cost this process: time, CPU of all its threads, and the growth of its memory."""

import gc
import resource
import time
from pathlib import Path

STATUS = Path("/proc/self/status")
CLEAR_REFERENCES = Path("/proc/self/clear_refs")


def cpu_seconds() -> float:
    """User and system time of all threads so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def cpu_seconds_of(pid: int) -> float:
    """The time on a CPU of another process of one thread, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def memory_bytes(field: str) -> int:
    """A figure of /proc/self/status: ``VmRSS`` now, ``VmHWM`` the most since the last reset."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise LookupError(f"{STATUS} has no {field}")


class Meter:
    """Starts at once; ``stop`` gives the numbers. ``server_pid``: a process to take the time of as well."""

    def __init__(self, server_pid: int = 0) -> None:
        # Imports leave 150,000 objects that the collector has not been through. The code that makes the next few
        # thousand would pay for them: 0.1 s, here or there by chance.
        gc.collect()
        self._server_pid = server_pid
        CLEAR_REFERENCES.write_text("5")  # 5 sets the high-water mark back to what is resident now
        self._resident_bytes = memory_bytes("VmRSS")
        self._server_seconds = cpu_seconds_of(server_pid) if server_pid else 0.0
        self._cpu_seconds = cpu_seconds()
        self._began, self._seconds = time.time(), time.perf_counter()

    def stop(self) -> dict[str, float]:
        """Seconds of wall and CPU, and by how many bytes the resident memory grew at most."""
        wall_seconds = time.perf_counter() - self._seconds
        found = {
            "began": self._began,
            "wall_seconds": wall_seconds,
            "cpu_seconds": cpu_seconds() - self._cpu_seconds,
            "memory_growth_bytes": memory_bytes("VmHWM") - self._resident_bytes,
            "memory_peak_bytes": memory_bytes("VmHWM"),
        }
        if self._server_pid:
            found["server_share"] = (cpu_seconds_of(self._server_pid) - self._server_seconds) / wall_seconds
        return found
