"""nginx as an object server, and the objects it serves; SeaweedFS where something is written or really listed.

nginx reads signed requests and ignores the signatures, and costs little CPU itself. One process listens on a port for each
way of serving: plain, TLS, and with latency; it lists by pages that were prepared.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import zlib
from contextlib import AbstractContextManager, ExitStack
from functools import cached_property
from pathlib import Path
from typing import Self

from tests.servers import SeaweedFS, free_ports, make_authority, seaweedfs

START_TIMEOUT = 10.0
ECHO_MODULE = "/usr/lib/nginx/modules/ngx_http_echo_module.so"
LATENCY_SECONDS = 0.020
PAGE_KEYS = 1000
MIB = 1024 * 1024

# tcp_nopush stays off: with it bodies of about 100 kB stall for 44 ms on loopback.
CONFIGURATION = """
load_module {module};
{user}
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log warn; worker_rlimit_nofile 16384;
events {{ worker_connections 4096; multi_accept on; }}
http {{
  access_log off; sendfile on; sendfile_max_chunk 2m; tcp_nopush off; tcp_nodelay on;
  keepalive_timeout 600s; keepalive_requests 100000000;
  open_file_cache max=100000 inactive=600s; open_file_cache_valid 600s;
  client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
  uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  root {folder}/objects; default_type application/octet-stream;
  map $args $page {{ default 0; "~continuation-token=(?<token>[0-9]+)" $token; }}
  server {{ listen 127.0.0.1:{plain}; {listing} }}
  server {{ listen 127.0.0.1:{tls} ssl; ssl_certificate {folder}/server.crt; ssl_certificate_key {folder}/server.key; }}
  server {{ listen 127.0.0.1:{latency}; {listing}
    location / {{ echo_sleep {seconds}; echo_exec @objects; }} location @objects {{ }} }}
}}
"""
# A listing is answered with a page that was prepared, whatever its prefix is. The bucket is captured by name, since finding
# the page captures, too.
LISTING = """
    if ($args ~ list-type=2) { rewrite ^/(?<listed>[^/]+)/?$ /.lists/$listed/$page; }
    location /.lists/ { default_type application/xml; open_file_cache off; }
"""
KINDS = ("plain", "tls", "latency")


class Objects:
    """Files of random bytes of one size, as many as were asked for until now, and their checksums."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder / f"bench-{size}", size
        self.crcs: list[int] = []
        self.folder.mkdir(parents=True)

    def grow(self, count: int) -> None:
        """Have at least `count` objects, all on the disk."""
        for number in range(len(self.crcs), count):
            data = os.urandom(min(self.size, MIB)) * max(1, self.size // MIB)
            with (self.folder / f"{number:06d}").open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # what is dirty cannot be dropped from the page cache
            self.crcs.append(zlib.crc32(data))

    def uris(self, root: str, count: int) -> list[str]:
        return [f"{root}/{self.folder.name}/{number:06d}" for number in range(count)]


class Servers(AbstractContextManager["Servers"]):
    """All servers of a run, each started when it is first used; they and their data are gone after the block."""

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        folder = tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True)
        self.folder = Path(self._stack.enter_context(folder))
        self._objects: dict[int, Objects] = {}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def objects(self, size: int, count: int) -> Objects:
        """At least `count` objects of `size` bytes, served by nginx and readable as files."""
        found = self._objects.get(size) or self._objects.setdefault(size, Objects(self.folder / "objects", size))
        found.grow(count)
        return found

    @cached_property
    def ports(self) -> dict[str, int]:
        """nginx's port for each way of serving."""
        if shutil.which("nginx") is None or not os.path.exists(ECHO_MODULE):
            packages = "nginx-light libnginx-mod-http-echo"
            raise RuntimeError(f"the benchmarks need nginx and its echo module: apt-get install {packages}")
        make_authority(self.folder)
        ports = dict(zip(KINDS, free_ports(len(KINDS)), strict=True))
        settings = {
            "module": ECHO_MODULE,
            "user": "user root;" if os.geteuid() == 0 else "",
            "seconds": LATENCY_SECONDS,
            "listing": LISTING,
        }
        configuration = self.folder / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(folder=self.folder, **settings, **ports))
        (self.folder / "objects").mkdir(exist_ok=True)
        running = subprocess.Popen(["nginx", "-c", str(configuration)], stderr=subprocess.DEVNULL)
        self._stack.callback(_end, running)
        _wait_for(ports["plain"], running)
        return ports

    @cached_property
    def seaweedfs(self) -> SeaweedFS:
        folder = self.folder / "weed"
        folder.mkdir()
        return self._stack.enter_context(seaweedfs(folder))

    def environment(self, kind: str) -> dict[str, str]:
        """What a client is told of the server."""
        if kind == "files":
            return {}
        if kind == "seaweedfs":
            return self.seaweedfs.environment
        scheme = "https" if kind == "tls" else "http"
        return {
            "AWS_ENDPOINT_URL": f"{scheme}://127.0.0.1:{self.ports[kind]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            **({"AWS_CA_BUNDLE": str(self.folder / "ca.crt")} if kind == "tls" else {}),
        }

    def write_listing(self, bucket: str, keys: list[str], size: int) -> None:
        """Let nginx answer every listing of the bucket with pages of these keys."""
        folder = self.folder / "objects" / ".lists" / bucket
        folder.mkdir(parents=True, exist_ok=True)
        for start in range(0, len(keys), PAGE_KEYS):
            following = start + PAGE_KEYS
            text = listing_page(bucket, keys[start:following], size, following if following < len(keys) else None)
            (folder / str(start)).write_text(text)


def listing_page(bucket: str, keys: list[str], size: int, following: int | None) -> str:
    """One answer of ListObjectsV2, as S3 writes it; `following` is the token of the next page."""
    entry = (
        "<Contents><Key>{}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>"
        "<ETag>&quot;0123456789abcdef0123456789abcdef&quot;</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass>"
        "</Contents>"
    )
    more = "" if following is None else f"<NextContinuationToken>{following}</NextContinuationToken>"
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><Prefix></Prefix><KeyCount>{len(keys)}</KeyCount><MaxKeys>{PAGE_KEYS}</MaxKeys>"
        f"<IsTruncated>{'false' if following is None else 'true'}</IsTruncated>{more}"
        + "".join(entry.format(key, size) for key in keys)
        + "</ListBucketResult>"
    )


def _end(running: subprocess.Popen[bytes]) -> None:
    running.terminate()
    running.wait(10)


def _wait_for(port: int, running: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and running.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"nginx did not start within {START_TIMEOUT} s")
