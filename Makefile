# Every command a user or CI needs. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# Python 3.11 or 3.12 to build .venv with; the lock was made on 3.11.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || echo python3)
# More arguments for pip, such as an index that holds a CPU build of torch (head of requirements/cpu.lock).
PIP_ARGS ?=
CONFIG ?= configs/quickstart.yaml
OVERRIDES ?= []
IMAGE ?= registry.invalid/verl-flyte:dev
VERSION ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo dev)

VENV := .venv
PY := $(VENV)/bin/python
PYFLYTE := $(VENV)/bin/pyflyte
STAMP := $(VENV)/.installed

export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
# Each command starts a Ray of its own and never attaches to one that happens to run on the machine.
export RAY_ADDRESS ?= local
export RAY_AUTH_MODE ?= disabled
export RAY_ENABLE_AUTO_CONNECT ?= 0
export RAY_USAGE_STATS_ENABLED ?= 0
export RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO ?= 0
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help env lock quickstart run test test-slow lint format explain equivalence crash-test algorithms-page oracle bench-core bench-modes bench-algorithms recipes simulate package register-dry-run clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

env: $(STAMP) ## create .venv from requirements/cpu.lock (once)

$(STAMP): requirements/cpu.lock requirements/check.py
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@$(PY) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' || \
	  { echo "Python 3.11 or 3.12 is needed: rm -r $(VENV), then make env PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo 'installing the packages of requirements/cpu.lock into $(VENV): some minutes'
	@$(PY) -m pip install -qq --disable-pip-version-check --no-input --no-deps $(PIP_ARGS) -r requirements/cpu.lock || \
	  { printf '%s\n' 'pip could not install requirements/cpu.lock: see its message above.' \
	    'If it found no torch==...+cpu, give pip an index that carries CPU builds of torch (as 2.13.0+cpu):' \
	    '  make env PIP_ARGS="--extra-index-url <that index>"' >&2; exit 1; }
	@$(PY) requirements/check.py
	@touch $@

lock: ## write requirements/cpu.lock anew from what .venv holds
	@head="$$(grep '^#' requirements/cpu.lock)"; \
	rest="$$($(PY) -m pip freeze --all | grep -viE '^(pip|wheel|torchvision|torchaudio|torchcodec)==' | sort -f)"; \
	printf '%s\n%s\n' "$$head" "$$rest" > requirements/cpu.lock

quickstart: env ## the quickstart: GRPO on one-digit sums, ends in runs/quickstart/report.html
	$(PYFLYTE) run workflows/train.py train --config configs/quickstart.yaml --overrides '$(OVERRIDES)'

run: env ## train with CONFIG and OVERRIDES
	$(PYFLYTE) run workflows/train.py train --config $(CONFIG) --overrides '$(OVERRIDES)'

test: env ## the test suite, under 15 minutes on two cores
	$(PY) -m pytest

test-slow: env ## the slow tests
	$(PY) -m pytest -m slow --timeout 1800

lint: env ## ruff, mypy --strict on verl_core, the layers
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PY) -m pytest tests/test_layers.py

format: env ## let ruff lay out the code
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

explain: env ## print the resolved CONFIG and where each key came from
	@$(PY) -m verl_core.config $(CONFIG) --overrides '$(OVERRIDES)'

equivalence: env ## every path to the same weights, out/equivalence.json
	$(PY) -m benchmarks.equivalence

crash-test: env ## twenty SIGKILLs and resumes, out/crash.json
	$(PY) -m benchmarks.crash_test

algorithms-page: env ## write docs/algorithms.md anew from the docstrings
	$(PY) -m verl_core.algorithms > docs/algorithms.md

oracle: out/oracle-venv/.installed ## the algorithms beside TRL's and torchrl's, out/oracle.json
	out/oracle-venv/bin/python -m benchmarks.oracle

# An environment of its own: it reads the project's packages and adds the peers without their dependencies.
out/oracle-venv/.installed: $(STAMP)
	@mkdir -p out && $(PY) -m venv --without-pip out/oracle-venv
	@packages="$$(echo $(CURDIR)/out/oracle-venv/lib/python3*/site-packages)"; \
	echo $(CURDIR)/$(VENV)/lib/python3*/site-packages > "$$packages/project.pth"; \
	$(PY) -m pip install -qq --disable-pip-version-check --no-deps $(PIP_ARGS) --target "$$packages" \
	  trl==1.16.0 torchrl==0.14.1 accelerate datasets dill multiprocess xxhash
	@touch $@

bench-algorithms: out/verl-venv/.installed ## the algorithms' time beside verl 0.9.1's, out/bench_algorithms.json
	out/verl-venv/bin/python -m benchmarks.bench_algorithms

# Like the oracle's: verl alone, on the project's packages.
out/verl-venv/.installed: $(STAMP)
	@mkdir -p out && $(PY) -m venv --without-pip out/verl-venv
	@packages="$$(echo $(CURDIR)/out/verl-venv/lib/python3*/site-packages)"; \
	echo $(CURDIR)/$(VENV)/lib/python3*/site-packages > "$$packages/project.pth"; \
	$(PY) -m pip install -qq --disable-pip-version-check --no-deps $(PIP_ARGS) --target "$$packages" verl==0.9.1 codetiming orjson
	@touch $@

bench-core: env ## the costs of the core, out/bench_core.json
	$(PY) -m benchmarks.bench_core

recipes: env ## each recipe of configs/ learns, out/recipes.json; some 3 to 8 minutes each
	$(PY) -m benchmarks.recipes

bench-modes: env ## three modes on simulated devices, out/bench_modes.json and .html; about an hour
	$(PY) -m benchmarks.modes.main

simulate: env ## the trainer under a virtual clock, out/simulate.json and .html; some 6 minutes
	$(PY) -m benchmarks.simulate

package: env ## package the workflows for a cluster, out/flyte-package.tgz
	@mkdir -p out
	$(PYFLYTE) --pkgs workflows package --image $(IMAGE) --output out/flyte-package.tgz --force

register-dry-run: env ## what a registration would send, offline
	$(PYFLYTE) register --dry-run --non-fast --image $(IMAGE) --version $(VERSION) workflows

clean: ## remove caches and out/; runs/ and .venv stay
	rm -rf out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +
