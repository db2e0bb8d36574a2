# Everything runs from the checkout with relative paths, so a folder name with a
# space works. PYTHON=/path/to/python chooses the interpreter.
PYTHON ?=
VENV := .venv
RUN := $(VENV)/bin/python
EXTRAS ?= dev

.PHONY: train test test-fast test-slow parity lint setup peers clean

train: setup  ## the main job: train Hadamax-PQN on MiniGrid DoorKey
	$(RUN) -m experiments.hadamax_pqn_minigrid $(ARGS)

test: setup  ## lint, types, tests, documentation examples
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m pyright
	$(RUN) -m pytest -n 2 $(ARGS)

test-fast: setup  ## pytest alone
	$(RUN) -m pytest -n 2 $(ARGS)

test-slow: setup  ## the long sweeps and learning runs left out of `make test`
	$(RUN) -m pytest -m slow $(ARGS)

lint: setup
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .
	$(RUN) -m pyright

setup: $(VENV)/.installed  ## create .venv and install, nothing else

$(VENV)/.installed: pyproject.toml $(wildcard constraints/*.txt) .ci/setup
	@PYTHON="$(PYTHON)" EXTRAS="$(EXTRAS)" sh .ci/setup "$(VENV)"

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
