"""nginx as an object server: it reads signed requests and ignores the signatures, and costs little CPU itself."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT = 10.0
ECHO_MODULE = "/usr/lib/nginx/modules/ngx_http_echo_module.so"

# tcp_nopush stays off: with it bodies of about 100 kB stall for 44 ms on loopback.
CONFIGURATION = """
{module}
{user}
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log warn; worker_rlimit_nofile 16384;
events {{ worker_connections 4096; multi_accept on; }}
http {{
  access_log off; sendfile on; sendfile_max_chunk 2m; tcp_nopush off; tcp_nodelay on;
  keepalive_timeout 600s; keepalive_requests 100000000;
  open_file_cache max=100000 inactive=600s; open_file_cache_valid 600s;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{ listen 127.0.0.1:{port}; root {folder}/objects; default_type application/octet-stream; {location} }}
}}
"""
SLEEPING = "location / {{ echo_sleep {seconds}; echo_exec @objects; }} location @objects {{ }}"


@contextmanager
def nginx(folder: Path, num_objects: int, size: int, latency_ms: int) -> Iterator[tuple[str, list[str], int]]:
    """A server on loopback with so many objects of random bytes: its URL, their URIs, and a checksum over all of them."""
    if shutil.which("nginx") is None or (latency_ms and not os.path.exists(ECHO_MODULE)):
        raise RuntimeError(
            "the benchmarks need nginx and its echo module: apt-get install nginx-light libnginx-mod-http-echo"
        )
    bucket = folder / "objects" / "bench"
    shutil.rmtree(bucket, ignore_errors=True)
    bucket.mkdir(parents=True)
    crc = 0
    for number in range(num_objects):
        data = os.urandom(min(size, 1 << 20)) * max(1, size >> 20)
        (bucket / f"{number:06d}").write_bytes(data)
        crc = zlib.crc32(zlib.crc32(data).to_bytes(4, "big"), crc)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {
        "module": f"load_module {ECHO_MODULE};" if latency_ms else "",
        "user": "user root;" if os.geteuid() == 0 else "",
        "location": SLEEPING.format(seconds=latency_ms / 1000) if latency_ms else "",
    }
    (folder / "nginx.conf").write_text(CONFIGURATION.format(folder=folder, port=port, **settings))
    running = subprocess.Popen(["nginx", "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}", [f"s3://bench/{number:06d}" for number in range(num_objects)], crc
    finally:
        running.terminate()
        running.wait(10)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"nginx did not start within {START_TIMEOUT} s")
