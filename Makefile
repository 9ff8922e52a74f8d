# What one does with a checkout. `make` alone lists it.

PYTHON ?= python3
JOBS ?= 2
PY := .venv/bin/python
OLDEST_TORCH := 2.10.0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help quickstart test lint fmt verify bench bench-card bench-hopper bench-hopper-backward train-card nightly clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' Makefile

# Everything is installed again when what is wanted changes.
.venv/ready: requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fagen needs Python 3.11 or newer; say which with PYTHON=..."; exit 1; }
	@test -x $(PY) || $(PYTHON) -m venv .venv
	@echo "installing what requirements-dev.txt lists into .venv (the first time takes a few minutes)"
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@touch .venv/ready

quickstart: .venv/ready  ## Install into .venv, build and check specs/cpu.yaml, run an example
	$(PY) -m fagen build specs/cpu.yaml
	$(PY) examples/quickstart.py

test: .venv/ready  ## Run the tests
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n $(JOBS) tests

lint: .venv/ready  ## Check style and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

fmt: .venv/ready  ## Put the code into its usual form
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

verify: .venv/ready  ## Write all generated text anew and show what changed: rendered kernels, docs/spec.md, schema
	$(PY) -m fagen.spec.reference_doc docs/spec.md
	$(PY) -m fagen schema > specs/schema.json
	FAGEN_UPDATE_SNAPSHOTS=1 $(PY) -m pytest -q $(wildcard tests/golden) tests/unit/test_spec_errors.py
	git diff --stat --exit-code -- docs specs tests

# The cells and limits of docs/performance.md.
BENCHED := $(foreach d,d64 d128 d64_bf16 d128_bf16,-v full_$(d) -v causal_$(d))
bench: .venv/ready  ## Measure specs/cpu.yaml against PyTorch, fail if slow; figures and a picture go to .build/
	$(PY) -m fagen build specs/cpu.yaml
	mkdir -p .build
	$(PY) -m fagen bench cpu $(BENCHED) --size B1,H8,S1024 --size B1,H8,S4096 \
	  --write .build/bench.json --plot .build/bench.png \
	  --at-least forward=1.5 --at-least backward=1.2 --at-least cell=0.95

# The same for cards: what every one of them has a peer for, at the lengths that are usual.
CARD_PYTHON ?= $(PY)
CARD_BENCHED := $(foreach d,64 128 256,-v full_d$(d) -v causal_d$(d))
bench-card: .venv/ready  ## Measure specs/a100.yaml on this machine's card, fail if slow; CARD_PYTHON=... has torch with CUDA
	$(PY) -m fagen build specs/a100.yaml
	mkdir -p .build
	$(CARD_PYTHON) -m fagen.bench generated/a100 $(CARD_BENCHED) --tokens 16384 \
	  --length 512 --length 2048 --length 8192 --length 16384 \
	  --write .build/bench-card.json --at-least forward=1.0 --at-least backward=1.0 --at-least cell=0.9

# The grids of docs/performance.md, whose times are kept there.
HOPPER_GRIDS := $(foreach grid,standard sustained second custom short host,--grid $(grid))
bench-hopper: .venv/ready  ## Measure the grids of specs/h100.yaml on this machine's card; CARD_PYTHON=... has torch with CUDA
	$(PY) -m fagen build specs/h100.yaml
	mkdir -p docs/performance
	$(CARD_PYTHON) -m fagen.bench generated/h100 $(HOPPER_GRIDS) --write docs/performance/h200-forward.json

bench-hopper-backward: .venv/ready  ## The same of gradients, of specs/h100_training.yaml, fail if slow
	$(PY) -m fagen build specs/h100_training.yaml
	mkdir -p docs/performance
	$(CARD_PYTHON) -m fagen.bench generated/h100_training --grid standard --grid custom --backward-only \
	  --write docs/performance/h200-backward.json \
	  --at-least cell/fastest=1.0 --at-least backward/cudnn=1.18 --at-least cell/flex=1.5 --at-least backward/flex=2.0 \
	  --at-least cell/deterministic=0.85

# On another card than a Hopper one: TRAINED=a100.
TRAINED ?= h100_training
train-card: .venv/ready  ## Train a small transformer on this machine's card beside torch's own attention; CARD_PYTHON=...
	$(PY) -m fagen build specs/$(TRAINED).yaml
	$(CARD_PYTHON) examples/train.py --module $(TRAINED) --control

CARDS := t4 a100 h100 h100_training rtx4090 rtx5090  # specs of cards whose kernels are built; checked in the emulator
nightly: .venv/ready  ## What takes long: full checks (those of kernels for cards need nvcc), the ready specs' reports, and the module under the oldest PyTorch it supports (a large download)
	$(PY) -m fagen build $(foreach spec,cpu $(CARDS),specs/$(spec).yaml) --check full
	OMP_NUM_THREADS=1 $(PY) -m pytest -q -n $(JOBS) -m nightly tests
	$(PYTHON) -m venv .build/torch-$(OLDEST_TORCH)
	.build/torch-$(OLDEST_TORCH)/bin/python -m pip install --quiet --disable-pip-version-check torch==$(OLDEST_TORCH) numpy
	.build/torch-$(OLDEST_TORCH)/bin/python -m generated.cpu check

clean:  ## Remove what was built, but for .venv and the cache of compiled objects
	rm -rf .build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find generated -mindepth 1 -maxdepth 1 -type d -exec rm -rf {} +
	find fagen tests examples -name __pycache__ -type d -exec rm -rf {} +
