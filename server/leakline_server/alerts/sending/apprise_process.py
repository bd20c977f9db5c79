"""A process that sends one message with apprise. It reads a JSON request from stdin and writes the result to stdout.

The process is started with the path of this file and imports nothing from our packages, which halves its start time.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
from typing import Any


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # Keep the output of apprise and its plugins out of the result.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asked = json.load(sys.stdin)
    # End this process after its time limit even if the server has been killed.
    signal.alarm(math.ceil(asked.pop("seconds")) + 1)
    memory = asked.pop("memory_bytes")
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Replace the default path, which would include this file's directory.
    sys.path[:] = asked.pop("path")
    _refuse_redirects()
    # apprise handles exceptions of its plugins; after an error in apprise itself no result is written.
    json.dump({"taken": hand_over(**asked)}, answers)
    answers.flush()
    # Do not wait for threads that a plugin has left running.
    os._exit(0)


def _refuse_redirects() -> None:
    """Disable redirects, because a receiver could use them to reach our own network."""
    from requests import sessions

    # A session reads the limit when it is created, and apprise has not created any sessions yet.
    module: Any = sessions
    module.DEFAULT_REDIRECT_LIMIT = 0


def hand_over(url: str, title: str, body: str, kind: str) -> bool | None:
    """Return True if the service accepted the message, False if it did not, or None if the URL is invalid."""
    import apprise

    services = apprise.Apprise()
    if not services.add(url):
        return None
    # Without a format, apprise assumes the service's richest format: HTML in mail, Markdown in chat.
    return bool(services.notify(title=title, body=body, notify_type=kind, body_format="text"))


if __name__ == "__main__":
    main()
