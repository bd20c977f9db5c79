"""Install the peers of `make bench-server` into ``.peers`` only; none of them is started.

Debian packages of the time-series databases are unpacked, not installed, so that no service starts; the Python servers
get their own environment. What cannot be installed is printed here and later marked as not measured. With names as
arguments, only those are installed: `make test-integrations` needs Prometheus.
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


def main(names: Sequence[str]) -> int:
    wanted = set(names) or {*DEBIAN, *PYTHON}
    PEERS.mkdir(exist_ok=True)
    missing = [name for name in DEBIAN if name in wanted and not _unpacked(name)]
    missing += _installed([name for name in PYTHON if name in wanted])
    for name in missing:
        print(f"{name} could not be installed; rows that need it are marked as not measured")
    return 0


def _installed(names: Sequence[str]) -> list[str]:
    """Install packages and return the names of those that failed."""
    if names and not PEERS_PYTHON.exists():
        _done([sys.executable, "-m", "venv", str(PEERS / "venv")])
    pip = [str(PEERS_PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    return [name for name in names if not _done([*pip, name])]


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
    sys.exit(main(sys.argv[1:]))
