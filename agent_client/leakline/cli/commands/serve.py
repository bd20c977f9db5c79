"""Serve the dashboard and the API until Ctrl-C.

The default database is the SQLite file .leakline-server/leakline.db. The
schema is upgraded to this version automatically.

example: leakline serve --port 8765
         leakline serve --database-url postgresql+psycopg://user@host/leakline
"""

from __future__ import annotations

import argparse
import os

from ...errors import LeaklineError
from ...settings import DEFAULT_SERVER
from ..printing import plainly


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", help="address to listen on (default: LEAKLINE_HOST, otherwise 127.0.0.1)"
    )
    parser.add_argument(
        "--port",
        help="port to listen on, 0 for any free port (default: LEAKLINE_PORT, otherwise 8765)",
    )
    parser.add_argument(
        "--database-url",
        metavar="URL",
        help="sqlite:///path or postgresql+psycopg://… (default: LEAKLINE_DATABASE_URL, otherwise the SQLite file)",
    )


def main(options: argparse.Namespace) -> int:
    try:
        from leakline_server.config import from_arguments
        from leakline_server.serve import serve
    except ImportError as error:
        raise LeaklineError(
            f"the server is not installed ({error.name} is missing); install it with: pip install 'leakline[server]'"
        ) from error
    config = from_arguments(os.environ, options.host, options.port, options.database_url)
    serve(config, _say_where)
    return 0


def _say_where(address: str) -> None:
    """Print the address, because the port may have been chosen automatically. A closed stdout is not an error."""
    line = f"Leakline is running at {address}  (Ctrl-C stops it)"
    if address.rstrip("/") != DEFAULT_SERVER:
        line += f"\ntraining runs and commands need: export LEAKLINE_SERVER={address.rstrip('/')}"
    with plainly():
        print(line, flush=True)
