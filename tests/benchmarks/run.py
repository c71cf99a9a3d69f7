"""Runs every benchmark for us and the peers in turn, each in a process of its own, and prints medians and ratios.

The machines are noisy: quote the ratios. ``ROUNDS=9 make bench`` for more rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

from tests.benchmarks.hit_latency import SYSTEMS

BASE = "aioprefetch reader"


def sample(name: str) -> dict[str, float]:
    """One run of one system."""
    command = [sys.executable, "-m", "tests.benchmarks.hit_latency", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def main() -> None:
    """Alternate the systems for some rounds and print the table."""
    rounds = int(os.environ.get("ROUNDS", "5"))
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in SYSTEMS}
    for _ in range(rounds):
        for name, collected in samples.items():
            collected.append(sample(name))
    print(f"4 KiB reads of bytes in memory, one after another; medians of {rounds} runs in turn\n")
    print(f"{'system':<22}{'wall µs':>10}{'CPU µs':>10}{'wall ratio':>12}{'CPU ratio':>12}")
    for name, collected in samples.items():
        row = {key: statistics.median(one[key] for one in collected) for key in ("wall_us", "cpu_us")}
        ratio = {
            key: statistics.median(one[key] / base[key] for one, base in zip(collected, samples[BASE], strict=True))
            for key in row
        }
        print(
            f"{name:<22}{row['wall_us']:>10.2f}{row['cpu_us']:>10.2f}{ratio['wall_us']:>12.1f}{ratio['cpu_us']:>12.1f}"
        )


if __name__ == "__main__":
    main()
