# Two commands matter: `make demo` and `make test`. Both install what they need into .venv.
SHELL := /bin/bash
VENV ?= .venv
PYTHON := $(VENV)/bin/python
TORCH ?= torch==2.13.0
DEMO_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=
CHECK ?=
# A change of these makes the editable install again, which compiles the native modules.
INSTALLED := pyproject.toml .ci/prepare hatch_build.py $(wildcard agent_client/native/*.c agent_client/native/*.h agent_client/native/*.py server/native/*.c server/native/*.h)
export VENV TORCH

.PHONY: help demo test test-leaks test-soak test-native lint types format screenshots bench-client bench-peers bench-detection bench-server bench-server-peers bench-scale bench-pages clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.demo ## serve the dashboard, train a leaking and a fixed run for real (DEMO_ARGS=--exit ends by itself)
	@exec $(PYTHON) -m leakline demo $(DEMO_ARGS)

test: $(VENV)/.test lint types ## lint, types and every test that belongs to a change (under 20 minutes on 2 cores)
	@.ci/test $(PYTHON) $(TEST_ARGS)

test-leaks: $(VENV)/.test ## train with every leak switch, and 44 programs with their healthy twins, through the real chain (CHECK=1 enforces)
	CHECK=$(CHECK) $(PYTHON) -m pytest -m leaks $(TEST_ARGS)

test-soak: $(VENV)/.test ## kill, fork and starve trainings hundreds of times; nothing may be corrupt, double or stuck
	$(PYTHON) -m pytest -m soak tests/soak $(TEST_ARGS)

test-native: $(VENV)/.test ## the native modules in every interpreter at hand, under sanitizers, ten minutes beside a program that does its worst
	LEAKLINE_SOAK_SECONDS=$${LEAKLINE_SOAK_SECONDS:-600} \
	LEAKLINE_TEST_PYTHONS="$$LEAKLINE_TEST_PYTHONS:$$(ls -d ~/.pyenv/versions/3.1[1-4].*/bin 2>/dev/null | paste -sd:)" \
	  $(PYTHON) -m pytest tests/native $(TEST_ARGS)

lint: $(VENV)/.test ## ruff
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types: $(VENV)/.test ## mypy --strict over both packages
	$(PYTHON) -m mypy

format: $(VENV)/.test ## let ruff format the code
	$(PYTHON) -m ruff format .

screenshots: $(VENV)/.test ## train both stories of the demo and take the pictures of the documents anew (a few minutes)
	$(PYTHON) docs/images/take.py $(SERVER)

bench-client: $(VENV)/.test ## what the client costs, beside its peers (CHECK=1 enforces; HEAPS, PARTS, PAIRS choose)
	CHECK=$(CHECK) $(PYTHON) -m benchmarks.client $(BENCH_ARGS)

bench-peers: $(VENV)/.test ## install what bench-client compares with
	$(PYTHON) -m pip install --quiet objgraph pympler guppy3 memray

bench-detection: $(VENV)/.test ## false alarms, recall and accuracy of the analysis, beside five baselines (CHECK=1 enforces; RUNS, FAMILIES, FRESH, JOBS, SOAK choose)
	CHECK=$(CHECK) $(PYTHON) -m benchmarks.detection $(BENCH_ARGS)

bench-server: $(VENV)/.test ## what the server costs, beside its peers (CHECK=1 enforces; ROWS, SHORT, KILLS choose)
	CHECK=$(CHECK) $(PYTHON) -m benchmarks.server $(BENCH_ARGS)

bench-server-peers: $(VENV)/.test ## bring what bench-server compares with into .peers, starting nothing
	$(PYTHON) -m benchmarks.server.install

bench-pages: $(VENV)/.test ## what the pages cost in a real browser (CHECK=1 enforces; ROWS, SHORT choose)
	CHECK=$(CHECK) $(PYTHON) -m benchmarks.pages $(BENCH_ARGS)

bench-scale: $(VENV)/.test ## post as thousands of training processes would (BENCH_ARGS=--help)
	$(PYTHON) -m benchmarks.scale $(BENCH_ARGS)

clean: ## remove the virtual environment and caches (never .leakline, which holds your runs)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.demo: $(INSTALLED)
	@.ci/prepare demo && touch $@

$(VENV)/.test: $(INSTALLED)
	@.ci/prepare test && touch $@
