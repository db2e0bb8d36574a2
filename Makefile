# Everything runs from the checkout with relative paths, so a folder name with a
# space works. PYTHON=/path/to/python chooses the interpreter.
PYTHON ?=
VENV := .venv
RUN := $(VENV)/bin/python
EXTRAS ?= dev

.PHONY: train test test-fast test-slow parity lint setup peers aot help clean

train: setup  ## the main job: train Hadamax-PQN on MiniGrid DoorKey
	$(RUN) -m experiments.hadamax_pqn_minigrid $(ARGS)

test: setup  ## lint, types, tests, documentation examples
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright
	$(RUN) -m pytest -n 2 --dist loadfile $(ARGS)

test-fast: setup  ## pytest alone
	$(RUN) -m pytest -n 2 --dist loadfile $(ARGS)

test-slow: setup  ## the long sweeps and learning runs left out of `make test`
	$(RUN) -m pytest -m slow $(ARGS)

lint: setup
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .
	$(RUN) -m pyright

setup: $(VENV)/.installed  ## create .venv and install, nothing else

$(VENV)/.installed: pyproject.toml $(wildcard constraints/*.txt) .ci/setup
	@PYTHON="$(PYTHON)" EXTRAS="$(EXTRAS)" sh .ci/setup "$(VENV)"

peers:  ## environments of the programs that benchmarks compare with; NAMES= for some
	sh .ci/peers $(NAMES)

parity: setup  ## tests against live peers; each is skipped where its peer is missing
	$(RUN) -m pytest -m parity $(ARGS)

aot:  ## compile the kernels for described chips (extra aot), no hardware needed
	$(MAKE) setup EXTRAS=dev,aot
	$(RUN) -m kernels_pallas.aot $(ARGS)

help:
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:[^#]*## */: /'

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
