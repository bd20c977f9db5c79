# Two commands matter: `make demo` and `make test`. Both install what they need into .venv.
SHELL := /bin/bash
VENV ?= .venv
INTEGRATIONS ?= .venv-integrations
PYTHON := $(VENV)/bin/python
TORCH ?= torch==2.13.0
DEMO_ARGS ?=
TEST_ARGS ?=
BENCH_ARGS ?=
CHECK ?=
GPU_PYTHON ?= python3
GPU_ARGS ?= --json gpu-results.json
AUDIT ?= .venv-audit
COMPARED_ARGS ?=
OFFLINE ?=
# A change of these makes the editable install again, which compiles the native modules.
INSTALLED := pyproject.toml .ci/prepare hatch_build.py $(wildcard agent_client/native/*.c agent_client/native/*.h agent_client/native/*.py server/native/*.c server/native/*.h)
export VENV TORCH

.PHONY: help demo test test-long test-leaks test-soak test-fuzz test-coverage audit lock test-integrations test-native test-gpu lint types format docs screenshots bench-client bench-peers bench-detection bench-server bench-server-peers bench-scale bench-pages compared clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(VENV)/.demo ## serve the dashboard, train a leaking and a fixed run for real (DEMO_ARGS=--exit ends by itself)
	@exec $(PYTHON) -m leakline demo $(DEMO_ARGS)

test: $(VENV)/.test lint types ## lint, types and every test that belongs to a change (under 20 minutes on 2 cores)
	@.ci/test $(PYTHON) short $(TEST_ARGS)

test-long: $(VENV)/.test ## what a change seldom breaks and what takes long: the server's tests once more on Postgres, statistics, every page and state; CI runs it after make test
	@.ci/test $(PYTHON) long $(TEST_ARGS)

test-leaks: $(VENV)/.test ## train with every leak switch, and 44 programs with their healthy twins, through the real chain (CHECK=1 enforces)
	CHECK=$(CHECK) $(PYTHON) -m pytest -m leaks $(TEST_ARGS)

test-soak: $(VENV)/.test ## kill, fork and starve trainings hundreds of times; nothing may be corrupt, double or stuck
	$(PYTHON) -m pytest -m soak $(TEST_ARGS)

test-fuzz: $(VENV)/.test ## schemathesis over every operation and ten thousand hostile bodies, against real servers on SQLite and Postgres (BODIES, EXAMPLES, SEED)
	LEAKLINE_FUZZ_BODIES=$${BODIES:-10000} LEAKLINE_FUZZ_EXAMPLES=$${EXAMPLES:-100} LEAKLINE_FUZZ_SEED=$${SEED:-10} \
	  $(PYTHON) -m pytest -s -o timeout=3600 tests/server/test_fuzz.py tests/server/test_limits_over_http.py $(TEST_ARGS)

test-integrations: $(INTEGRATIONS)/.integrations ## real trainings of five frameworks and what else needs packages or tools of its own (under 15 minutes)
	@.ci/bring-tfjs .peers/tfjs
	@$(INTEGRATIONS)/bin/python -m benchmarks.server.install prometheus
	$(INTEGRATIONS)/bin/python -m pytest -m integrations tests/integrations $(TEST_ARGS)

test-native: $(VENV)/.test ## the native modules in every interpreter at hand, under sanitizers, ten minutes beside a program that does its worst
	LEAKLINE_SOAK_SECONDS=$${LEAKLINE_SOAK_SECONDS:-600} \
	LEAKLINE_TEST_PYTHONS="$$LEAKLINE_TEST_PYTHONS:$$(ls -d ~/.pyenv/versions/3.1[1-4].*/bin 2>/dev/null | paste -sd:)" \
	  $(PYTHON) -m pytest tests/native $(TEST_ARGS)

test-gpu: ## check the client on a machine with one NVIDIA GPU and torch, without a network, in eight minutes (GPU_PYTHON, GPU_ARGS)
	@PYTHONPATH="agent_client:.$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) -m benchmarks.client.gpu $(GPU_ARGS)

test-coverage: $(VENV)/.test ## branches of the detector, spool, ingest and webhooks that their tests take; below 90 % fails
	@.ci/coverage $(PYTHON) $(TEST_ARGS)

audit: $(VENV)/.test $(AUDIT)/.tools ## known holes and licences of what the image installs, and the age of base images (OFFLINE=1: without holes; OFFLINE=ok: holes where a network allows)
	@OFFLINE=$(OFFLINE) .ci/audit $(AUDIT) $(PYTHON)

lock: $(AUDIT)/.tools ## write requirements/server.txt and build.txt anew, what the image installs and what builds it, with hashes
	@.ci/lock $(AUDIT)

lint: $(VENV)/.test ## ruff
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types: $(VENV)/.test ## mypy --strict over both packages
	$(PYTHON) -m mypy

format: $(VENV)/.test ## let ruff format the code
	$(PYTHON) -m ruff format .

docs: $(VENV)/.test ## write docs/reference anew from the code (series, commands, Python, HTTP)
	$(PYTHON) docs/reference/generate.py

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

compared: $(VENV)/.test $(if $(findstring --again,$(COMPARED_ARGS)),,bench-peers bench-server-peers) ## measure briefly beside the peers and write the cost table of docs/compared.md (about ten minutes)
	$(PYTHON) -m benchmarks.compared $(COMPARED_ARGS)

clean: ## remove the virtual environments and caches (never .leakline and .leakline-server, which hold your runs)
	rm -rf $(VENV) $(INTEGRATIONS) $(AUDIT) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.demo: $(INSTALLED)
	@.ci/prepare demo && touch $@

$(VENV)/.test: $(INSTALLED)
	@.ci/prepare test && touch $@

$(AUDIT)/.tools: requirements/tools.txt
	@python3 -m venv $(AUDIT) && $(AUDIT)/bin/pip install --quiet --disable-pip-version-check -r requirements/tools.txt && touch $@

$(INTEGRATIONS)/.integrations: $(INSTALLED) requirements/ml.txt requirements/trackers.txt
	@VENV=$(INTEGRATIONS) .ci/prepare integrations && touch $@
