import os

import numpy as np
import torch


class MNIST(torch.utils.data.Dataset):
    """Random images; LEAKLINE_TEST_IMAGES is the number of the training images."""

    def __init__(self, root, train=True, download=False, transform=None):
        count = int(os.environ["LEAKLINE_TEST_IMAGES"]) if train else 500
        random = np.random.default_rng(7)
        self.data = torch.from_numpy(random.integers(0, 256, (count, 28, 28), dtype=np.uint8))
        self.targets = torch.from_numpy(random.integers(0, 10, count))
        self.transform = transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(self.data[index]), int(self.targets[index])
