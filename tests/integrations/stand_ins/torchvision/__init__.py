"""The few names of torchvision that the public examples use, for random images.

The wheels of torchvision are built for one build of torch each, and tests run with whichever build is installed.
"""

from . import datasets, transforms, utils

__all__ = ["datasets", "transforms", "utils"]
