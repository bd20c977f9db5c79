"""Do the tests notice when the code is changed? `make test-mutation`; `__main__.py` says how."""
