"""Calls of the native module with each allocation refused in turn: an error is raised, and nothing leaks or is lost.

    PYTHON starve.py CLIENT FOLDER

Needs `_testcapi`, which an interpreter may lack; exits with 77 then.
"""

from __future__ import annotations

import sys
import weakref

from check_native import Node, load

# Refuse from the first allocations one by one, then every STRIDE, until ENOUGH calls in a row succeed.
EACH, STRIDE, ENOUGH, MOST = 60, 13, 20, 4_000


def calls(module, heap):
    role = module.roles
    references = [weakref.ref(Node)]

    def pass_over(work):
        work.step(-1)
        return work.result()

    def census(in_slices):
        one = module.Census(
            roles={list: role["list"], tuple: role["tuple"], dict: role["dict"]}, picks={Node: 50}, not_entered=(),
            elsewhere=(), array_layout=0, floor=1_000, in_slices=in_slices,
        )  # fmt: skip
        if in_slices:
            while not one.step(1_000_000, 100):
                one.take_picked()
                one.take_large()
        else:
            one.run(-1, heap[:10])
        return one.take_picked(), one.take_large(), one.rows(), one.arrays({}), one.facts()

    return {
        "ReferrerPass": lambda: pass_over(module.ReferrerPass(heap[:5])),
        "InstancePass": lambda: pass_over(module.InstancePass([Node, tuple, float], each=3)),
        "referrers_among": lambda: module.referrers_among(heap, heap[:5]),
        "newest_instances": lambda: module.newest_instances([Node, dict], 5, 1.0),
        "garbage": lambda: module.garbage(100_000, 10**10),
        "reference_counts": lambda: module.reference_counts(references),
        "Census in slices": lambda: census(True),
        "Census": lambda: census(False),
    }


def main(client, folder):
    try:
        import _testcapi
    except ImportError:
        sys.stdout.write("no _testcapi, which refuses allocations")
        sys.exit(77)
    module = load(client, folder)
    heap = [Node([i]) for i in range(300)]
    before = list(map(sys.getrefcount, heap))
    for name, call in calls(module, heap).items():
        call()
        refused = starve(_testcapi, call)
        if not refused:
            sys.exit(f"{name}: no allocation was refused")
        if list(map(sys.getrefcount, heap)) != before:
            sys.exit(f"{name}: references were kept or lost")
        sys.stdout.write(f"{name}: {refused} refused\n")


def starve(testcapi, call):
    refused = in_a_row = 0
    for number in (*range(EACH), *range(EACH, MOST, STRIDE)):
        try:
            testcapi.set_nomemory(number, number + 1)
            try:
                call()
            finally:
                testcapi.remove_mem_hooks()
        except (MemoryError, OSError):
            refused += 1
            in_a_row = 0
        else:
            in_a_row += 1
        if in_a_row == ENOUGH:
            break
    return refused


if __name__ == "__main__":
    main(*sys.argv[1:])
