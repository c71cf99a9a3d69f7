"""`make test-pythons`: the demo and the tests on later Pythons, each in a Debian of its own.

    python -m tests.pythons [trixie] [sid] [-- ARGUMENTS OF PYTEST]

A root of each Debian is made once below `build/pythons/`, by debootstrap: trixie has Python 3.13, sid 3.14. What is
committed is cloned into it, and `make demo test` runs there, which installs everything. Ten minutes each, and it wants
root. Debian is reached as the machine reaches it; pip and the rest by the certificates that `SSL_CERT_FILE` names.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.repository.source_tree import ROOT

SUITES = ("trixie", "sid")
ROOTS = ROOT / "build" / "pythons"
BASE = "ca-certificates,make,git,python3,python3-venv,python3-dev,gcc"
# What tests use where it is there, as `.ci/run` installs it.
PACKAGES = ("chromium", "nginx-light", "libnginx-mod-http-lua", "lua-resty-core")
MOUNTS = (("-t", "proc", "proc", "proc"), ("-t", "sysfs", "sysfs", "sys"), ("--rbind", "/dev", "dev"))
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
CHECKOUT = "/checkout"
NAMESPACE = "AIOPREFETCH_MOUNTS"  # Set within the namespace.


def run(*command: str | Path) -> None:
    """Run a command, which must succeed."""
    subprocess.run(command, check=True)


def made(suite: str) -> Path:
    """The root of a Debian, made at the first call."""
    root = ROOTS / suite
    if not (root / "etc" / "debian_version").exists():
        root.mkdir(parents=True, exist_ok=True)
        run("debootstrap", "--variant=minbase", f"--include={BASE}", suite, root)
    for name in ("resolv.conf", "hosts"):
        shutil.copy(f"/etc/{name}", root / "etc" / name)
    shutil.copy(os.environ.get("SSL_CERT_FILE", CERTIFICATES), f"{root}{CERTIFICATES}")
    policy = root / "usr/sbin/policy-rc.d"  # Packages start no services: nginx would take port 80.
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    return root


def environment() -> list[str]:
    """The variables within: none of the machine's own, but where the certificates lie."""
    certificates = [f"{name}={CERTIFICATES}" for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")]
    return ["env", "-i", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", *certificates]


def tested(suite: str, arguments: Sequence[str]) -> int:
    """Run demo and tests on one Debian; the status of the first that fails. In a mount namespace of this process."""
    root = made(suite)
    for *options, folder in MOUNTS:
        run("mount", *options, root / folder)
    inside = ["chroot", str(root), *environment()]
    # A mirror of sid may be some weeks behind, which debootstrap does not mind either.
    run(*inside, "apt-get", "-o", "Acquire::Check-Valid-Until=false", "update", "-qq")
    run(*inside, "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-qq", *PACKAGES)
    checkout = Path(f"{root}{CHECKOUT}")
    if checkout.exists():
        run("git", "-C", checkout, "fetch", "--quiet", "--force", ROOT, "HEAD")
        run("git", "-C", checkout, "reset", "--quiet", "--hard", "FETCH_HEAD")
    else:
        run("git", "clone", "--quiet", "--no-hardlinks", ROOT, checkout)
    make = [*inside, "make", "-C", CHECKOUT]
    return subprocess.call([*make, "demo"]) or subprocess.call([*make, "test", f"ARGS={shlex.join(arguments)}"])


def main(arguments: Sequence[str]) -> int:
    """Test on each of the Debians that are named, or on all; how many of them failed."""
    if NAMESPACE not in os.environ:  # What is mounted is seen here alone, and gone with this process.
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-m", "tests.pythons", *arguments]
        return subprocess.call(command, env=os.environ | {NAMESPACE: "1"})
    end = arguments.index("--") if "--" in arguments else len(arguments)
    suites, others = arguments[:end] or SUITES, arguments[end + 1 :]
    if unknown := [suite for suite in suites if suite not in SUITES]:
        sys.exit(f"{unknown[0]} must be one of {', '.join(SUITES)}")
    statuses = {suite: tested(suite, others) for suite in suites}
    for suite, status in statuses.items():
        sys.stdout.write(f"{suite}: {'passed' if status == 0 else f'failed ({status})'}\n")
    return sum(status != 0 for status in statuses.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
