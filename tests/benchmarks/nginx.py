"""The simulator's nginx, found or installed, and its configuration: the Lua of delays."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

# How many times as long as the others a response of keys below ``late-1/`` takes to begin.
LATE_FACTOR = 10

# One process: a second one would take the other core from the client on two of them, and log in an order of its own.
TEMPLATE = """
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr warn;
{user}
events {{ worker_connections 4096; }}
http {{
    lua_package_path "/usr/share/lua/5.1/?.lua;;";
    init_worker_by_lua_block {{ package.loaded.counts = {{}} }}
    log_format requests escape=json '{log_format}';
    client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;
    {sending}
    tcp_nodelay on;
    reset_timedout_connection on;
    open_file_cache max=1000 inactive=1h;
    open_file_cache_valid 1s;
    etag on;
    max_ranges 1;
    keepalive_timeout 300s;
    keepalive_requests 100000000;
    default_type application/octet-stream;
    server {{
        listen {address}:{port};
        {tls}
        access_log requests.log requests buffer=1m;
        error_page 404 @missing;
        root {root};
        location /{bucket}/ {{
            {delay}
        }}
        location /{bucket}/late- {{
            access_by_lua_block {{ {lua_delay} {hold_back} }}
        }}
        location = /{bucket} {{
            access_by_lua_block {{ {lua_delay} }}
            content_by_lua_block {{ return ngx.exec("/list/" .. (ngx.var["arg_continuation-token"] or "1")) }}
        }}
        location /list/ {{ internal; default_type application/xml; }}
        location = /active {{ access_log off; stub_status; }}
        location /mark/ {{ return 204; }}
        location @missing {{
            default_type application/xml;
            return 404 '<?xml version="1.0" encoding="UTF-8"?><Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>';
        }}
    }}
}}
"""  # noqa: E501 - the line of XML cannot be broken

TLS = """
        listen {address}:{port} ssl;
        ssl_certificate server.pem;
        ssl_certificate_key server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
"""

# With sendfile the kernel spaces the packets of a slow connection more evenly. Without, it takes less of both sides'
# time at full speed: the pages of a file in memory are small, those of a copy large.
SENDING_PACED = "sendfile on;"
SENDING_AT_FULL_SPEED = "sendfile off; output_buffers 2 128k;"

# Of every hundred responses as many as the key says begin after ten times the delay, evenly spaced.
HOLD_BACK = """
    local counts, percent = package.loaded.counts, tonumber(string.match(ngx.var.uri, "^/[^/]+/late%-(%d+)/"))
    local number = (counts[percent] or 0) + 1
    counts[percent] = number
    if math.floor(number * percent / 100) > math.floor((number - 1) * percent / 100) then
        ngx.sleep(LATE_SECONDS)
    end
"""


def configuration(
    *,
    modules: str,
    user: str,
    log_format: str,
    address: str,
    port: int,
    tls_port: int | None,
    bucket: str,
    root: str,
    delay_seconds: float,
    paced: bool,
) -> str:
    """The text of nginx.conf. Without a delay no Lua runs for an ordinary request."""
    delay = f"ngx.sleep({delay_seconds})" if delay_seconds else ""
    return TEMPLATE.format(
        modules=modules,
        user=user,
        log_format=log_format,
        address=address,
        port=port,
        tls=TLS.format(address=address, port=tls_port) if tls_port else "",
        bucket=bucket,
        root=root,
        delay=f"access_by_lua_block {{ {delay} }}" if delay else "",
        lua_delay=delay,
        hold_back=HOLD_BACK.replace("LATE_SECONDS", str((LATE_FACTOR - 1) * delay_seconds)),
        sending=SENDING_PACED if paced else SENDING_AT_FULL_SPEED,
    )


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
