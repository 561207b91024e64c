# Each target sets up what it needs in .venv; a machine needs python3 (3.11 or newer), pip and make.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin
INSTALL := PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(RUN)/python -m pip install --quiet

.PHONY: demo test check docs results clean

demo: $(VENV)/.installed  ## Adam, pruned Adam and Group Adam on a synthetic click log
	$(RUN)/sparsegroup demo

test: check  ## Lint, types and the whole test suite
	$(RUN)/pytest --numprocesses auto --maxprocesses 8

check: $(VENV)/.installed-dev
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

docs: $(VENV)/.installed-docs  ## The documentation, into site/
	$(RUN)/mkdocs build --strict

results: $(VENV)/.installed  ## The README's comparison on real data, half an hour on 2 cores; wants DATA=folder
	$(RUN)/python benchmarks/pruning.py --data $(DATA) --json benchmarks/results/pruning.json \
	  --markdown benchmarks/results/pruning.md

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(RUN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, PYTHON=$(PYTHON) is " + sys.version)'
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m pip install --quiet virtualenv && $(PYTHON) -m virtualenv $(VENV); }

$(VENV)/.installed: pyproject.toml constraints.txt | $(RUN)/python
	$(INSTALL) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[dev]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(INSTALL) --editable '.[docs]'
	touch $@
