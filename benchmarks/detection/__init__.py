"""How often the analysis is wrong, and how soon it is right, beside five simple detectors: `make bench-detection`."""
