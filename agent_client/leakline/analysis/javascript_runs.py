"""Runs of TensorFlow.js. Their tensors are counted and sized exactly; what else a program of JavaScript takes is not.

Resident memory follows the collector there and not the program, and a page in a browser cannot read it at all. So the
tensors are the memory of such a run, and what lies beside them is a channel of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

T = TypeVar("T")

TENSORS: Final = "tfjs.tensors"
TENSOR_BYTES: Final = "tfjs.bytes"
HEAP_BYTES: Final = "js.heap_bytes"
# In Node: buffers outside the heap.
EXTERNAL_BYTES: Final = "js.external_bytes"
RESIDENT_BYTES: Final = "process.rss_bytes"
# Worked out: what V8 keeps of heap and buffers beside the tensors.
KEPT: Final = "js.kept"
# The name of their tensors, as a program writes it.
TENSOR: Final = "tf.Tensor"
# Of the environment, and of a mark where it has changed since: whether TensorFlow.js itself says that its bytes may be
# freed already.
UNRELIABLE: Final = "tfjs_memory_unreliable"


def is_javascript(series: Mapping[str, T]) -> bool:
    return TENSOR_BYTES in series


def is_page(series: Mapping[str, T]) -> bool:
    """Whether nobody reads the memory of the process, as in a browser."""
    return is_javascript(series) and RESIDENT_BYTES not in series
