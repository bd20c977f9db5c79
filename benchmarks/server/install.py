"""Bring what `make bench-server` compares with, into ``.peers`` and nowhere else; nothing of it is started.

Debian's packages of the time-series databases are unpacked, not installed, so that no service begins to run; the Python
servers get an environment of their own. What cannot be had is told, and printed as not measured later.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from .subjects import PEERS, PEERS_PYTHON

DEBIAN: Final = ("victoria-metrics", "prometheus", "influxdb")
PYTHON: Final = ("cramjam", "trackio", "mlflow", "aim", "wandb")


def main() -> int:
    PEERS.mkdir(exist_ok=True)
    missing = [name for name in DEBIAN if not _unpacked(name)]
    if not PEERS_PYTHON.exists():
        _done([sys.executable, "-m", "venv", str(PEERS / "venv")])
    pip = [str(PEERS_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    missing += [name for name in PYTHON if not _done([*pip, name])]
    for name in missing:
        print(f"bench-server-peers: {name} could not be had; it will be told as not measured")
    return 0


def _unpacked(name: str) -> bool:
    if shutil.which("apt-get") is None:
        return False
    folder = PEERS / "packages"
    folder.mkdir(exist_ok=True)
    if not list(folder.glob(f"{name}_*.deb")):
        download = ["apt-get", "-o", "APT::Sandbox::User=root", "download", "-qq", name]
        if not _done(download, str(folder)):
            return False
    return _done(["dpkg", "-x", str(next(folder.glob(f"{name}_*.deb"))), str(PEERS)])


def _done(command: Sequence[str], folder: str | None = None) -> bool:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        print("\n".join(ended.stderr.splitlines()[-3:]), file=sys.stderr)
    return ended.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
