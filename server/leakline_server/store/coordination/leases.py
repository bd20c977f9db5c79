"""What one of several servers does at a time: a name, whose turn it is, and until when."""

from __future__ import annotations

from typing import Final

import msgspec
from sqlalchemy import Engine, insert, select, update
from sqlalchemy.exc import IntegrityError

from ..engine import writing
from ..schema import settings

PREFIX: Final = "lease."


class Lease(msgspec.Struct):
    owner: str
    until: float


def take(engine: Engine, name: str, owner: str, now: float, seconds: float) -> bool:
    """Whether it is the owner's turn, from now on for so many seconds. ``now`` in Unix seconds."""
    key = PREFIX + name
    value = msgspec.json.encode(Lease(owner, now + seconds)).decode()
    this = settings.c.key == key
    try:
        with writing(engine, durable=False) as connection:
            query = select(settings.c.value).where(this).with_for_update()
            found = connection.scalar(query)
            if found is None:
                connection.execute(insert(settings).values(key=key, value=value))
                return True
            lease = msgspec.json.decode(found, type=Lease)
            # One that lies far ahead is of a clock that was set back since; the clocks of servers differ by less.
            if lease.owner != owner and now < lease.until <= now + 2 * seconds:
                return False
            connection.execute(update(settings).where(this).values(value=value))
            return True
    except IntegrityError:
        # Another server took it first, in this very moment.
        return False
