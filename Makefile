# Everything runs in .venv, made here; nothing but Python >= 3.11 is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
# What `make quick` runs of the tests: the declarations, the plans, the values.
QUICK := $(addprefix tests/test_, house.py plans.py cache.py errors.py claims.py cross_checks.py \
	docs.py links.py laws.py functors.py kernels.py pages.py typing.py)
# Of one family, `make quick OPS=gated` leaves out what is not about an op.
ABOUT_OPS := $(filter-out %_plans.py %_cache.py %_errors.py %_typing.py, $(QUICK)) \
	--deselect tests/test_docs.py::test_the_code_of_a_page_runs \
	--deselect tests/test_docs.py::test_a_page_that_is_wrong_is_found
# Of all that is installed, the tests import a quarter: what is imported is compiled then, in both
# processes of the tests, not one file after the other.
PIP := $(BIN)/python -m pip install --quiet --no-compile
# So what is imported has to be kept, where the environment says otherwise too.
unexport PYTHONDONTWRITEBYTECODE
# Runs tests, with the linters beside them, and ends well where both do.
define with_linters
	@$(MAKE) --no-print-directory lint >$(VENV)/lint.log 2>&1 & linters=$$!; \
	$(1); \
	tests=$$?; wait $$linters; found=$$?; cat $(VENV)/lint.log; exit $$((tests | found))
endef
# Changes count from the last tag, where there is none from the last merge.
SINCE ?= $(shell git describe --tags --abbrev=0 2>/dev/null || git log -1 --merges --format=%H)

.PHONY: demo quick test test-full test-touched lint fuzz mutants bench docs linkcheck dist clean

demo: $(VENV)/.cli  ## train the example model on NumPy
	$(BIN)/python -m baracuda train

quick: $(VENV)/.test  ## after every edit: the linters beside the fast tests; OPS=gated for one family
	$(call with_linters,BARACUDA_LANE=quick $(if $(OPS),BARACUDA_OPS=$(OPS)) \
	$(PYTEST) -q $(if $(OPS),$(ABOUT_OPS),$(QUICK)))

test: $(VENV)/.test  ## what a newcomer and the continuous integration run
	$(call with_linters,$(PYTEST) --durations 10 --durations-min 1)

test-full: $(VENV)/.test lint  ## everything: every architecture, every dtype on every library
	BARACUDA_LANE=full $(PYTEST) --durations 10 --durations-min 1

test-touched: $(VENV)/.test  ## what `test-full` adds, for what changed since SINCE, in 25 minutes
	@# pytest exits with 5 where no test is left, as after a change of the docs alone.
	BARACUDA_LANE=full BARACUDA_OPS=touched BARACUDA_SINCE=$(SINCE) \
	$(PYTEST) -m full --budget 1440 || [ $$? -eq 5 ]

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fuzz: $(VENV)/.test  ## N=100000 random cases against formulas of others
	$(BIN)/python -m tests.fuzz --cases $(or $(N),20000) --jobs 2

mutants: $(VENV)/.test  ## change one guarantee at a time: the tests that should notice have to fail
	$(BIN)/python -m tests.mutants --jobs 2

bench: $(VENV)/.test  ## time the ops against what one would write without them
	$(BIN)/python -m baracuda bench

docs: $(VENV)/.test  ## the documentation as a site, in docs/_build
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build

dist: $(VENV)/.test  ## wheel and sdist in dist, checked, and installed into each Python found here
	$(BIN)/python -m tests.dist

linkcheck: $(VENV)/.test  ## ask other sites for what the documentation links to; needs a network
	$(BIN)/sphinx-build -q -b linkcheck docs docs/_build/links

clean:
	rm -rf $(VENV) dist docs/_build

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=25.1'

$(VENV)/.cli: $(BIN)/python pyproject.toml
	$(PIP) --editable '.[cli]'
	touch $@

$(VENV)/.test: $(VENV)/.cli
	$(PIP) --group dev
	touch $@
