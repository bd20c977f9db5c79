"""The process that sends one message by way of apprise: a question as JSON on its input, the answer on its output.

It is started by its path and imports nothing of ours, so that it starts in half the time.
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
    # What apprise or a service of it prints is not an answer.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asked = json.load(sys.stdin)
    # It ends with its time also where the server was killed meanwhile.
    signal.alarm(math.ceil(asked.pop("seconds")) + 1)
    memory = asked.pop("memory_bytes")
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # By itself it would look for modules in its own folder.
    sys.path[:] = asked.pop("path")
    _refuse_redirects()
    # apprise itself survives whatever a service raises; after an error of its own there is no answer.
    json.dump({"taken": hand_over(**asked)}, answers)
    answers.flush()
    # Threads that a service has left wait for nobody.
    os._exit(0)


def _refuse_redirects() -> None:
    """A receiver that sends us elsewhere could make us reach inside our own network."""
    from requests import sessions

    # Each session reads it when it is made; none that apprise makes is there before.
    module: Any = sessions
    module.DEFAULT_REDIRECT_LIMIT = 0


def hand_over(url: str, title: str, body: str, kind: str) -> bool | None:
    """Return whether the service took it; None when the address is none."""
    import apprise

    services = apprise.Apprise()
    if not services.add(url):
        return None
    # Unsaid, the body counts as what the service shows best: HTML in mail, Markdown in chat.
    return bool(services.notify(title=title, body=body, notify_type=kind, body_format="text"))


if __name__ == "__main__":
    main()
