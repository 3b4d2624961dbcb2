"""Servers that are not on PyPI come from Debian's packages, where this may install them."""

from __future__ import annotations

import os
import shutil
import subprocess


class NotInstalled(Exception):
    """The package is not there and cannot be installed here; the text says why."""


def install(package: str) -> None:
    """Install a package of the system, as root on Debian; raises NotInstalled where that cannot be."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise NotInstalled(f"{package} is not installed, and only root on Debian can install it here")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", package]):
        done = subprocess.run(command, capture_output=True, check=False, env=environment)
    if done.returncode:
        raise NotInstalled(f"apt-get could not install {package}: {done.stderr.decode(errors='replace')[-300:]}")
