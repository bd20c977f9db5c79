"""torchmetrics imports names of models if there is a torchvision, and the examples use none of them."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
