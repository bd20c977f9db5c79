"""Validates a training script's declarations and converts them to event data, without side effects.

BadArgument reaches the program from a run's methods `expect`, `track`, `gauge`, `fix`,
`find_holders` and `register_cleanup`; in all other methods, the error boundary swallows the
exception.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

from ..actions.cleanups import Registered, When
from ..errors import BadArgument
from ..probes.heap.arrays import array_types
from ..probes.references.class_names import type_name
from ..settings import checked_name, checked_type, plain_json, unicode_text
from ..snapshot import LARGEST_FLOAT, LARGEST_INTEGER, Number
from ..text_format import printable, size_bytes


def expectation(target: object, count: object, after: object) -> tuple[type | str, dict[str, Any]]:
    """Check the arguments of `expect`. Return the class or its name, and {low, high, after}.

    The dict also contains ``baseline`` if the count must return to its baseline.
    """
    wanted = checked_type(target, "target")
    where = None if after is None else checked_name(after, "after")
    if isinstance(count, str) and count == "baseline":
        # Every count satisfies these bounds, so an older reader that does not know the "baseline"
        # key reports no violation.
        return wanted, {"low": 0, "high": LARGEST_INTEGER, "after": where, "baseline": True}
    bounds = count if isinstance(count, tuple) and len(count) == 2 else (count, count)
    low, high = (_count(bound, count) for bound in bounds)
    if low > high:
        raise BadArgument("count", count, "the lower bound must not exceed the upper bound")
    return wanted, {"low": low, "high": high, "after": where}


def searched(target: object) -> str:
    """Return the name of the class to search for.

    The class itself is not returned: a reference would keep it alive during the search.
    """
    wanted = checked_type(target, "target")
    return type_name(wanted) if isinstance(wanted, type) else wanted


def _count(bound: object, given: object) -> int:
    if isinstance(bound, bool) or not isinstance(bound, int) or bound < 0:
        why = 'must be a whole number, a range like (16, 17), or "baseline"'
        raise BadArgument("count", given, why)
    return _bounded(bound, "count")


def _bounded(value: int, name: str) -> int:
    if abs(value) > LARGEST_INTEGER:
        # Leave out the digits: they would not help, and Python refuses to convert very large numbers to text.
        raise BadArgument(name, f"<a number of {value.bit_length()} bits>", "must be at most 2**53")
    return value


def _generation_number(number: object) -> int:
    """Return ``number`` as an int. Raises TypeError for a non-integer and OverflowError beyond 2**53."""
    whole = operator.index(number)  # type: ignore[arg-type]
    if abs(whole) > LARGEST_INTEGER:
        raise OverflowError(f"generation number ({whole.bit_length()} bits) exceeds 2**53")
    return whole


def registered(name: object, function: object, on_request: object, when: object) -> Registered:
    """Check the arguments of `register_cleanup` and return the cleanup."""
    checked, condition = checked_name(name, "name"), _condition(when)
    if not isinstance(on_request, bool):
        raise BadArgument("on_request", on_request, "must be True or False")
    if condition is None and not on_request:
        raise BadArgument("when", when, "must be given if on_request is False")
    return Registered(checked, _plain_function(function), on_request, condition)


def counted_class(series: str) -> list[str]:
    """Return [class name] for a series ``type.<class name>.count``, or [] for any other series."""
    name = series.removeprefix("type.").removesuffix(".count")
    return [name] if series == f"type.{name}.count" else []


def _plain_function(function: object) -> Callable[[], object]:
    takes_nothing = callable(function) and not inspect.iscoroutinefunction(function)
    if takes_nothing and callable(function):
        try:
            inspect.signature(function).bind()
        except TypeError:
            takes_nothing = False
        except ValueError:
            # A C function without a signature cannot be checked.
            pass
    if not takes_nothing or not callable(function):
        raise BadArgument(
            "function", f"<{type(function).__name__}>", "must be a plain function that needs no arguments"
        )  # fmt: skip
    return function


def _condition(when: object) -> When | None:
    if when is None or (isinstance(when, str) and when in ("suspected", "confirmed")):
        return when
    if isinstance(when, (tuple, list)) and len(when) == 2:
        return checked_name(when[0], "when"), _finite_number(when[1], "when")
    why = 'must be "suspected", "confirmed", or a series and its limit, for example ("gauge.tensors", 500)'
    raise BadArgument("when", when, why)


def note_data(text: object, link: object) -> dict[str, Any]:
    return {"text": _written(text), "link": plain_json(link)}


def _written(text: object) -> str:
    """Convert any object to a string of at most 2,000 characters."""
    return unicode_text(str(text)[:2000])


def tracked(name: object, target: object, capacity: object) -> tuple[str, int | None]:
    """Check the arguments of `track` and return the name and the capacity."""
    checked = checked_name(name, "name")
    # Look up ``__len__`` on the type: a lookup on the object itself could run the program's code.
    if not (hasattr(type(target), "__len__") or callable(target)):
        raise BadArgument(
            "target", f"<{type(target).__name__}>", "must support len() or be a function that returns the length"
        )  # fmt: skip
    if any(type(target) is kind for kind in array_types()):
        raise BadArgument(
            "target", f"<{type(target).__name__}>",
            "must not be an array, because NumPy could not resize it; pass a function, for example lambda: self.buffer",
        )  # fmt: skip
    if capacity is None:
        return checked, None
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise BadArgument("capacity", capacity, "must be a whole number above zero, or None")
    return checked, _bounded(capacity, "capacity")


def gauged(
    name: object, value: object, warn_above: object
) -> tuple[str, Number, float | int | None]:
    limit = None if warn_above is None else _finite_number(warn_above, "warn_above")
    number = _finite_number(value, "value")
    if isinstance(number, float):
        # Clamp the value to the range that a server accepts: an exploding loss must stay visible
        # and must not stop the training run.
        number = max(-LARGEST_FLOAT, min(number, LARGEST_FLOAT))
    return checked_name(name, "name"), number, limit


def _finite_number(value: object, name: str) -> Number:
    """Return an int unchanged, and any other number, NumPy scalar or one-element tensor as a float.

    Raises BadArgument for an int beyond 2**53 and for a value that is not a finite number.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _bounded(value, name)
    number = math.nan
    if isinstance(value, SupportsFloat) and not isinstance(value, bool):
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            number = math.nan
    if not math.isfinite(number):
        shown = value if isinstance(value, (str, float, bool)) else f"<{type(value).__name__}>"
        raise BadArgument(name, shown, "must be a finite number")
    return number


def band_data(span: tuple[int, int | None], low: object, high: object) -> dict[str, Any]:
    """Return {first, last, low_bytes, high_bytes}. A bound given as a number is in the series'
    unit; a string is parsed as a size.

    ``last`` is None for an open-ended band. Raises BadArgument for bounds that no value can
    satisfy.
    """
    first, last = span
    if last is not None and _generation_number(last) < _generation_number(first):
        raise BadArgument(
            "span", span, "must not end before it begins; valid examples are (1, 5) and (11, None)"
        )
    bounds = (_bound(low, "low"), _bound(high, "high"))
    _in_order(bounds, ("low", "high"))
    return {
        "first": _generation_number(first),
        "last": None if last is None else _generation_number(last),
        "low_bytes": bounds[0], "high_bytes": bounds[1],
    }  # fmt: skip


def _bound(value: object, name: str) -> Number | None:
    if value is None:
        return None
    bound = size_bytes(value, name) if isinstance(value, str) else _finite_number(value, name)
    if abs(bound) > LARGEST_FLOAT:
        raise BadArgument(name, value, "must be between -1e15 and 1e15")
    return bound


def _in_order(bounds: tuple[Number | None, Number | None], names: tuple[str, str]) -> None:
    below, above = bounds
    if below is None and above is None:
        raise BadArgument(names[0], None, f"must be given if {names[1]} is not given")
    if below is not None and above is not None and below > above:
        raise BadArgument(names[1], above, f"must not be less than {names[0]} ({below})")


def budget_data(normal: object, leak: object) -> dict[str, Any]:
    """Return {normal_bytes, leak_bytes}. Raises BadArgument if no bound is given or ``leak`` is below ``normal``."""
    bounds = (
        None if normal is None else _bounded(size_bytes(normal, "normal"), "normal"),
        None if leak is None else _bounded(size_bytes(leak, "leak"), "leak"),
    )
    _in_order(bounds, ("normal", "leak"))
    return {"normal_bytes": bounds[0], "leak_bytes": bounds[1]}


def fix_data(
    phase: object, location: object, promises: object, rejected: object = None
) -> dict[str, Any]:
    """Return {phase, location, promises}, with sizes in bytes. ``rejected`` is added only if it was given."""
    if promises is not None and not isinstance(promises, Mapping):
        raise BadArgument("promises", f"<{type(promises).__name__}>", "must be a dict")
    kept = {str(claim): _promised(claim, value) for claim, value in (promises or {}).items()}
    if phase is not None:
        phase = checked_name(phase, "phase")
    elif "phase_growth_bytes_per_generation" in kept:
        raise BadArgument("phase", None, "must be given if growth within the phase is promised")
    # Leave out the key if ``rejected`` is not given, so that such a fix is sent and compared in the
    # form used before the key existed.
    thought_of = {} if rejected is None else {"rejected": _written(rejected)}
    return {"phase": phase, "location": _location(location), "promises": kept, **thought_of}


def _location(location: object) -> str | None:
    if location is None:
        return None
    if not isinstance(location, (str, os.PathLike)):
        raise BadArgument("location", f"<{type(location).__name__}>", "must be a string or a path")
    return printable(str(plain_json(location)))


def _promised(claim: object, value: object) -> int:
    # Imported here because most programs declare no fix.
    from ..analysis.assertions.declared_limits import COUNT, NAMES, NUMBERS, SIZES

    name = f"promises[{claim!r}]"
    if claim in SIZES:
        return _bounded(size_bytes(value, name), name)
    counted = isinstance(claim, str) and claim.startswith(COUNT)
    if counted:
        checked_type(str(claim).removeprefix(COUNT), name)
    elif claim not in NUMBERS:
        known = ", ".join((*NAMES, f"{COUNT}package.Class"))
        raise BadArgument(name, value, f"cannot be checked as a promise; use one of {known}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadArgument(name, value, "must be a whole number, zero or more")
    return _bounded(value, name)


def promised_classes(data: Mapping[str, Any]) -> list[str]:
    """Return the classes that must be counted to verify the promises of a fix."""
    from ..analysis.assertions.declared_limits import COUNT

    return [name.removeprefix(COUNT) for name in data["promises"] if name.startswith(COUNT)]
