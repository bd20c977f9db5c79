"""Error rates and delays of the analysis, compared with five simple detectors: `make bench-detection`."""
