"""Serve the dashboard and the API until Ctrl-C.

The default database is the SQLite file .leakline-server/leakline.db. The
schema is upgraded to this version automatically.

example: leakline serve --port 8765
         leakline serve --database-url postgresql+psycopg://user@host/leakline
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from ...errors import LeaklineError
from ...settings import DEFAULT_SERVER
from ..printing import plainly

if TYPE_CHECKING:
    from leakline_server.config import Config


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


def _say_where(config: Config) -> None:
    """Print the address, because the port may have been chosen automatically. A closed stdout is not an error."""
    address, listens = config.address, config.listening_address
    line = f"Leakline is running at {address}"
    if address != listens:
        line += f", listening on {listens}"
    line += "  (Ctrl-C stops it)"
    needed = (
        f" LEAKLINE_SERVER={address.rstrip('/')}" if address.rstrip("/") != DEFAULT_SERVER else ""
    )
    if config.asks_who_it_is:
        needed += " LEAKLINE_TOKEN=…"
    if needed:
        line += f"\ntraining runs and commands need: export{needed}"
    if config.asks_who_it_is:
        line += "  (create a token with: leakline token create)"
    with plainly():
        print(line, flush=True)
