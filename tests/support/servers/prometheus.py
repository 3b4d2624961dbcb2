"""A real Prometheus with rules of ours, from Debian's package. It is unpacked: to install it would start a server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from support.servers import programs
from support.servers.debian import NotInstalled

CONFIGURATION = """\
global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: cuesqueue
    static_configs: [{{targets: ["{target}"]}}]
"""


def unpacked(folder: Path) -> Path:
    """The folder with `prometheus` and `promtool`. Raises NotInstalled where Debian's package cannot be had."""
    installed = shutil.which("prometheus")
    if installed is not None and shutil.which("promtool") is not None:
        return Path(installed).parent
    if shutil.which("apt-get") is None:
        raise NotInstalled("prometheus is not installed, and comes from Debian's package of that name")
    got = subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, check=False)
    if got.returncode:
        said = got.stderr.decode(errors="replace")[-300:]
        raise NotInstalled(f"apt-get could not download prometheus: {said}")
    [package] = folder.glob("prometheus_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, folder / "package"], check=True)
    return folder / "package" / "usr" / "bin"


def impatient(rules: str) -> str:
    """The same rules, each of which waits two seconds instead of minutes."""
    return re.sub(r"(?m)^( +for:) \S+$", r"\1 2s", rules)


class Prometheus:
    """A running server."""

    def __init__(self, address: str) -> None:
        self.address = address

    def alerts(self, state: str = "firing") -> list[dict[str, Any]]:
        """The alerts that it has now, those that are resolved left out."""
        return [alert for alert in self._ask("alerts")["alerts"] if alert["state"] == state]

    def value(self, query: str) -> float | None:
        """The newest value of a query with one result, None if it has none yet."""
        found = self._ask(f"query?query={quote(query)}")["result"]
        return float(found[0]["value"][1]) if found else None

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.address}/api/v1/{path}") as answer:
            return json.load(answer)["data"]

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/-/ready"):
                return True
        except OSError:  # not yet, or (503) it still reads its folder
            return False


@contextmanager
def prometheus(program: Path, folder: Path, target: str, rules: str) -> Iterator[Prometheus]:
    """A server of one's own on loopback, which asks `target` (host:port) and evaluates `rules` each second."""
    folder.mkdir()
    (folder / "rules.yml").write_text(rules, "utf-8")
    configuration = CONFIGURATION.format(rules=folder / "rules.yml", target=target)
    (folder / "prometheus.yml").write_text(configuration, "utf-8")
    port = programs.free_port()
    command = [program, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    process = programs.start(command, folder, {})
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        programs.end(process)
