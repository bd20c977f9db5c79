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
OFFLINE ?=
# A change to these files repeats the editable install, which compiles the native modules.
INSTALLED := pyproject.toml .ci/prepare hatch_build.py $(wildcard agent_client/native/*.c agent_client/native/preload/*.c agent_client/native/*.h agent_client/native/*.py server/native/*.c server/native/*.h)
export VENV TORCH

# Not part of `make test` and `make test-all`: each has its own target.
APART := leaks or soak or integrations
# $(call tests,MARKS): first the tests that need the machine to themselves, then the rest on all cores. Both always run.
# pytest exits with 5 if it finds no test, and TEST_ARGS may leave none for one of the two.
define tests
@status=0; none=0; \
$(PYTHON) -m pytest -q --durations=10 --durations-min=5 -m "alone and not ($(APART))$(1)" $(TEST_ARGS) || status=$$?; \
if [ $$status = 5 ]; then none=5; status=0; fi; \
$(PYTHON) -m pytest -q --durations=30 --durations-min=5 -m "not (alone or $(APART))$(1)" -n auto --dist loadfile --no-loadscope-reorder $(TEST_ARGS) || \
  { found=$$?; [ $$found = 5 ] && found=$$none; [ $$found = 0 ] || status=$$found; }; \
exit $$status
endef

.PHONY: help demo test test-all test-leaks test-weekly test-integrations test-gpu audit lint format docs bench-peers clean

help: ## list the targets
	@grep -hE '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

demo: $(VENV)/.demo ## serve the dashboard and train a leaking and a fixed run into it
	@exec $(PYTHON) -m leakline demo $(DEMO_ARGS)

test: $(VENV)/.test lint ## lint, types and the tests of a change: ten minutes on two cores
	$(call tests, and not long)

test-all: $(VENV)/.test lint ## what CI runs: also the slow tests, and the audit
	$(call tests)
	@$(MAKE) --no-print-directory audit

test-leaks: $(VENV)/.test ## programs with planted leaks and their healthy twins (CHECK=1 enforces)
	CHECK=$(CHECK) $(PYTHON) -m pytest -m leaks $(TEST_ARGS)

test-weekly: $(VENV)/.test ## hours: soak, fuzzing, sanitizers, coverage of the core
	LEAKLINE_SOAK_SECONDS=$${LEAKLINE_SOAK_SECONDS:-600} LEAKLINE_FUZZ_BODIES=$${LEAKLINE_FUZZ_BODIES:-10000} \
	LEAKLINE_FUZZ_EXAMPLES=$${LEAKLINE_FUZZ_EXAMPLES:-100} .ci/weekly $(PYTHON) $(TEST_ARGS)

test-integrations: $(INTEGRATIONS)/.integrations ## frameworks, public examples, other tools (45 minutes)
	@.ci/bring-tfjs .peers/tfjs
	@$(INTEGRATIONS)/bin/python -m benchmarks.server.install prometheus
	$(INTEGRATIONS)/bin/python -m pytest -m integrations tests/integrations $(TEST_ARGS)

test-gpu: ## the client on an NVIDIA GPU, without a network (GPU_PYTHON, GPU_ARGS)
	@PYTHONPATH="agent_client:.$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) -m benchmarks.client.gpu $(GPU_ARGS)

audit: $(VENV)/.test $(AUDIT)/.tools ## vulnerabilities, licences, age of images (OFFLINE=1, OFFLINE=ok)
	@OFFLINE=$(OFFLINE) .ci/audit $(AUDIT) $(PYTHON)

lint: $(VENV)/.test ## ruff, mypy --strict over both packages, and the words of all text
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) .ci/prose

format: $(VENV)/.test ## let ruff format the code
	$(PYTHON) -m ruff format .

docs: $(VENV)/.test ## write docs/reference from the code
	$(PYTHON) docs/reference/generate.py

bench-peers: $(VENV)/.test ## install the tools that the benchmarks compare with
	$(PYTHON) -m pip install --quiet objgraph pympler guppy3 memray
	$(PYTHON) -m benchmarks.server.install

bench-%: $(VENV)/.test ## client, server, detection, pages, scale, flows, compared (CHECK=1)
	CHECK=$(CHECK) $(PYTHON) -m benchmarks.$* $(BENCH_ARGS)

clean: ## remove environments and caches, never your runs
	rm -rf $(VENV) $(INTEGRATIONS) $(AUDIT) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.demo: $(INSTALLED)
	@.ci/prepare demo && touch $@

$(VENV)/.test: $(INSTALLED)
	@.ci/prepare test && touch $@

$(AUDIT)/.tools: requirements/tools.txt
	@python3 -m venv $(AUDIT) && $(AUDIT)/bin/pip install --quiet --disable-pip-version-check -r requirements/tools.txt && touch $@

$(INTEGRATIONS)/.integrations: $(INSTALLED) requirements/ml.txt requirements/trackers.txt
	@VENV=$(INTEGRATIONS) .ci/prepare integrations && touch $@
