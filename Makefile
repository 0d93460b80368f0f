# Everything runs in .venv, made here; nothing but Python >= 3.11 is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint bench docs clean

demo: $(VENV)/.cli  ## train the example model on NumPy
	$(BIN)/python -m baracuda train

test: $(VENV)/.test lint  ## all tests, after the linters
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## time the ops against what one would write without them
	$(BIN)/python -m baracuda bench

docs: $(VENV)/.test  ## the documentation as a site, in docs/_build
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build

clean:
	rm -rf $(VENV) dist docs/_build

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/.cli: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[cli]'
	touch $@

$(VENV)/.test: $(VENV)/.cli
	$(BIN)/python -m pip install --quiet --group dev
	touch $@
