"""nginx and its Lua module for the simulator: found, or installed by apt-get as root or through sudo."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGES = ("nginx-light", "libnginx-mod-http-lua", "lua-resty-core")
MODULES = Path("/usr/lib/nginx/modules")
LUA_MODULE = MODULES / "ngx_http_lua_module.so"
# Debian keeps it where the PATH of a user who is not root does not lead.
SYSTEM_PROGRAMS = "/usr/sbin"
# What comes with the packages and the simulator does not need.
SERVICE = "Debian starts nginx as a service on port 80 then, which ends by: sudo systemctl disable --now nginx"


class Unavailable(Exception):
    """There is no server; the text says why."""


def nginx_program() -> str | None:
    """Where nginx is; None without it."""
    return shutil.which("nginx") or shutil.which("nginx", path=SYSTEM_PROGRAMS)


def ready_nginx() -> str | None:
    """The program when its Lua module is there too; None when something is missing. Nothing is installed."""
    program = nginx_program()
    return program if program is not None and LUA_MODULE.exists() else None


def as_root() -> list[str] | None:
    """What to put before a command that only root may run; None when there is no way to be root.

    sudo is used when it needs no password, or when a user is at the terminal to type one.
    """
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo is None:
        return None
    asks_nothing = subprocess.run([sudo, "-n", "true"], capture_output=True, check=False).returncode == 0
    return [sudo] if asks_nothing or sys.stdin.isatty() else None


def install_nginx() -> str:
    """Make sure that nginx and its Lua module are there, and return the program.

    Raises:
        Unavailable: they are missing and cannot be installed; the text says how to.
    """
    program = ready_nginx()
    if program is not None:
        return program
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES]
    advice = f"on Debian or Ubuntu: sudo {' '.join(install)}; {SERVICE}"
    prefix = as_root()
    if prefix is None or shutil.which("apt-get") is None:
        raise Unavailable(f"the simulator needs nginx with its Lua module; {advice}")
    print(f"installing {', '.join(PACKAGES)} for the simulator; {SERVICE}", file=sys.stderr, flush=True)
    for command in (["apt-get", "update", "-qq"], install):
        done = subprocess.run(
            [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", *command], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
            raise Unavailable(f"nginx for the simulator could not be installed: {why}; {advice}")
    program = ready_nginx()
    if program is None:
        raise Unavailable(f"apt-get installed no nginx with a Lua module; {advice}")
    return program
