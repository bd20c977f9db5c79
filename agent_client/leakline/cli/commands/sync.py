"""Upload recorded runs: what the server has not got. Doing it twice is the same as once.

PATH is a spool (*.spool), the folder of one run, or a folder of runs such as .leakline. What cannot be read in it or is
refused is counted, and the exit status is 1 then.

example: leakline sync .leakline
         leakline sync .leakline --server http://10.0.0.5:8765
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ...errors import ServerRefused, SpoolError
from ...report import spools_by_run
from ...settings import resolve
from ...transport.http_delivery import Delivery
from ...transport.orphan_recovery import settle, told
from ...transport.spool_upload import upload

TIMEOUT_SECONDS = 30.0


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", type=Path, metavar="PATH", help="a spool or a folder with spools")
    parser.add_argument("--server", help="default: LEAKLINE_SERVER, else http://127.0.0.1:8765")
    parser.add_argument("--again", action="store_true", help="send also what was accepted before")
    parser.add_argument(
        "--allow-damage", action="store_true", help="exit status 0 also where a part cannot be read"
    )


def main(options: argparse.Namespace) -> int:
    settings = resolve(server=options.server)
    delivery = Delivery(settings.server, settings.token, TIMEOUT_SECONDS, ca_file=settings.ca_file)
    failed = 0
    for spools in spools_by_run(options.path):
        for path in spools:
            try:
                settle(path)
                done = upload(path, delivery, again=options.again)
            except SpoolError as error:
                # One broken file must not keep the others from being uploaded.
                print(f"{os.path.relpath(path)}: skipped, {error}")
                failed = 1
                continue
            except ServerRefused as error:
                # Nor one that this server does not want.
                print(
                    f"{os.path.relpath(path)}: refused by {settings.server} ({error.status}: {error})"
                )
                failed = 1
                continue
            print(f"{done.name}: {told(done)} {settings.server}/runs/{done.run}")
            is_whole = options.allow_damage or done.held is None or done.held.is_whole
            if done.refused or not is_whole:
                failed = 1
    delivery.close()
    return failed
