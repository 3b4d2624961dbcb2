"""nginx as an endpoint of S3, from Debian's package: `/bucket/key` are files; it ignores signatures, and lists nothing.

`python -m support.servers.nginx PORT SECONDS` is a proxy before it that is as far away as a bucket.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.servers.debian import install

_CONFIGURATION = """\
{user}worker_processes 1;
daemon off;
pid {folder}/pid;
error_log {folder}/errors;
events {{ worker_connections 1024; }}
http {{
  access_log {folder}/requests;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 1000000;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


@contextmanager
def nginx(root: Path, log: Path | None = None) -> Iterator[int]:
    """Serve the folders in `root` as buckets; yields the port. `log` gets a line for each request.

    Raises NotInstalled where nginx is not there and cannot be had.
    """
    if shutil.which("nginx") is None:
        install("nginx-light")
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), _free_port()
        text = _CONFIGURATION.format(folder=folder, port=port, root=root, user="" if os.getuid() else "user root;\n")
        text = text.replace(f"access_log {folder}/requests", f"access_log {log or 'off'}")
        (folder / "nginx.conf").write_text(text)
        with _running(["nginx", "-c", str(folder / "nginx.conf")], port):
            yield port


@contextmanager
def far_away(port: int, seconds: float) -> Iterator[int]:
    """Yield the port of a proxy to this one, by which each request takes so many seconds more."""
    own = _free_port()
    with _running([sys.executable, "-m", "support.servers.nginx", str(own), str(port), str(seconds)], own):
        yield own


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 10
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if time.monotonic() > end or process.poll() is not None:
                raise RuntimeError(f"{command[0]} does not answer")
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait(10)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def _proxy(port: int, target: int, delay: float) -> None:
    async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter, delay: float) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 20):
                if delay:
                    await asyncio.sleep(delay)
                sink.write(data)
                await sink.drain()
        sink.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_target, to_target = await asyncio.open_connection("127.0.0.1", target, limit=4 << 20)
        await asyncio.gather(pass_on(reader, to_target, delay), pass_on(from_target, writer, 0))

    async with await asyncio.start_server(connected, "127.0.0.1", port, backlog=1024) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_proxy(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
