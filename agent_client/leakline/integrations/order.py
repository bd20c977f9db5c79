"""Where a callback stands among those of the user.

Frameworks call their callbacks one after the other, and memory that one of them keeps is booked to the phase that is
open at that moment. So ours comes first, and what the others do at a hook belongs to the phase that the hook begins;
where a hook ends a phase (a rollout, the step before a save), a second one of ours comes last, and what they do still
belongs to it.
"""

from __future__ import annotations

import sys
from typing import Any, Final, TypeVar

T = TypeVar("T")

# A hook is called by the list, directly or through the callback's own base class.
_CALLERS: Final = 4


def calling(kind: type[T]) -> T | None:
    """The object of this class whose method is calling this hook: the framework gives its callbacks no way to it."""
    frame: Any = sys._getframe(1)
    for _ in range(_CALLERS):
        frame = frame.f_back
        if frame is None:
            return None
        caller = frame.f_locals.get("self")
        if isinstance(caller, kind):
            return caller
    return None


def bracket(holder: Any, first: Any, last: Any = None) -> None:
    """Put ``first`` before and ``last`` after all other callbacks.

    The list is made anew: the framework may be going through the one it has, and that may be the user's. What stood
    last in an earlier training goes: it would end the next one before callbacks that the user has added since.
    """
    others = [e for e in holder.callbacks if e is not first and not _is_replaced(e, last)]
    holder.callbacks = [first, *others] if last is None else [first, *others, last]


def _is_replaced(each: Any, last: Any) -> bool:
    if each is last or type(each) is not type(last):
        return each is last
    training = getattr(last, "_training", None)
    return training is not None and each._training is training
