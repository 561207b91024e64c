# Each target sets up what it needs in .venv; a machine needs python3 (3.11 or newer), pip and make.
PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin
CONSTRAINED := PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1
new-venv = $(PYTHON) -m venv $(1) || { $(PYTHON) -m pip install --quiet virtualenv && $(PYTHON) -m virtualenv $(1); }
# Which knows dependency groups.
NEW_PIP = -m pip install --quiet --upgrade 'pip>=25.1'
INSTALL := $(CONSTRAINED) $(RUN)/python -m pip install --quiet

# Processes that tests start read the sources as bytecode, which the first of them writes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test suite test-fast test-slow test-wheel test-torch test-clients check bench docs paper-small \
  paper-bytes paper-criteo clean

help:  ## This list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1 /p' $(MAKEFILE_LIST) | while read -r name text; do printf '%-14s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.installed  ## Adam, pruned Adam and Group Adam on a synthetic click log
	$(RUN)/sparsegroup demo

PARALLEL := --numprocesses auto --maxprocesses 8
# A file's tests are one worker's, which then makes their fixtures once; tests/conftest.py has the long files first.
WORKERS := $(PARALLEL) --dist loadfile --no-loadscope-reorder

test: $(VENV)/.installed-dev  ## Lint, types and the whole test suite
	$(MAKE) --jobs 2 check suite

suite: $(VENV)/.installed-dev
	$(RUN)/pytest $(WORKERS)

FAST = $(addprefix tests/,rules penalties objectives optim kernels table artifact house settings models)

test-fast: $(VENV)/.installed-dev  ## What to run while working: mathematics, kernels, tables, settings; no commands or processes
	$(RUN)/pytest $(WORKERS) --ignore-glob='*gpu*' --ignore-glob='*device*' \
	  -m 'not slow and not whole' $(FAST)

test-slow: $(VENV)/.installed-dev  ## The long tests: many more kills, flipped bits and random sequences; an hour
	$(RUN)/pytest $(PARALLEL) -m slow --hypothesis-profile nightly -o faulthandler_timeout=3600

WHEEL = $(CURDIR)/.venv-wheel
IN_WHEEL = cd $(WHEEL)/tests && env -u PYTHONPATH $(WHEEL)/bin/python -m pytest -q

test-wheel:  ## The sdist, and the wheel made from it, in an empty environment without the repository
	rm -rf dist $(WHEEL) $(WHEEL)-build
	$(call new-venv,$(WHEEL)-build)
	$(CONSTRAINED) $(WHEEL)-build/bin/python -m pip install --quiet build
	$(CONSTRAINED) $(WHEEL)-build/bin/python -m build --outdir dist .
	$(call new-venv,$(WHEEL))
	cp -r tests/installed $(WHEEL)/tests
	$(CONSTRAINED) $(WHEEL)/bin/python -m pip install --quiet dist/*.whl pytest
	$(IN_WHEEL) test_installed_core.py
	$(IN_WHEEL) --doctest-modules --pyargs sparsegroup.rules sparsegroup.optim sparsegroup.models
	$(CONSTRAINED) $(WHEEL)/bin/python -m pip install --quiet "$$(echo dist/*.whl)[cli]"
	$(IN_WHEEL) test_installed_cli.py

TORCH = $(CURDIR)/.venv-torch-$(VERSION)
CORE = $(addprefix tests/,rules/test_rules.py table/test_frozen_table.py table/test_autograd.py table/test_sparsity.py \
  checkpoint/test_others.py optim/test_arguments.py optim/test_optimizer_state.py models/test_networks.py \
  kernels/test_network_passes.py)

test-torch:  ## The optimizers, the table, checkpoints and exports with another torch: VERSION=2.6.0, PYTHON=python3.12
	rm -rf $(TORCH)
	$(call new-venv,$(TORCH))
	grep -Ev '^(torch|triton|sympy)==' constraints.txt > $(TORCH)/constraints.txt
	PIP_CONSTRAINT=$(TORCH)/constraints.txt $(TORCH)/bin/python -m pip install --quiet torch==$(VERSION) \
	  --editable '.[cli]' pytest hypothesis
	$(TORCH)/bin/python -m pytest -p no:cacheprovider -W default $(CORE)

CLIENTS = $(CURDIR)/.venv-clients
IN_CLIENTS = PIP_CONSTRAINT=$(CURDIR)/tests/clients/constraints.txt $(CLIENTS)/bin/python -m pip install --quiet

test-clients: $(CLIENTS)/.installed  ## In Lightning, Hugging Face, DeepCTR-Torch, FuxiCTR, TorchRec: their versions are pinned
	$(CLIENTS)/bin/python -m pytest -p no:cacheprovider -W default --numprocesses auto --maxprocesses 4 tests/clients

$(CLIENTS)/.installed: pyproject.toml tests/clients/constraints.txt
	rm -rf $(CLIENTS)
	$(call new-venv,$(CLIENTS))
	$(CLIENTS)/bin/python $(NEW_PIP)
	$(IN_CLIENTS) torch
	$(IN_CLIENTS) --editable '.[all]' --group clients hypothesis pytest pytest-xdist
	$(IN_CLIENTS) --no-deps torchrec # it asks for fbgemm-gpu, whose build for the CPU has a name of its own
	touch $@

check: $(VENV)/.installed-dev  ## Lint, format and types
	$(RUN)/ruff check .
	$(RUN)/ruff format --check .
	$(RUN)/mypy

bench: $(VENV)/.installed-dev  ## Every figure of README and docs, into benchmarks/results; DATA=folder of public logs; hours
	$(RUN)/python -m benchmarks $(if $(DATA),--data $(DATA))

docs: $(VENV)/.installed-docs  ## The documentation, into site/
	$(RUN)/mkdocs build --strict

PAPER = $(RUN)/sparsegroup-paper
RUNS ?= runs/paper
RESULTS ?= docs/results

paper-small: $(VENV)/.installed  ## All experiments on the small logs in DATA=folder, and one whose truth is known; hours
	$(PAPER) run all --scale small --out $(RUNS)/avazu_sample --report $(RESULTS)/avazu_sample \
	  --dataset avazu --data $(DATA)/avazu_sample.csv.xz
	$(PAPER) run all --scale small --out $(RUNS)/criteo_sample --report $(RESULTS)/criteo_sample \
	  --dataset criteo --data $(DATA)/criteo_sample.txt.xz
	$(PAPER) run all --scale small --out $(RUNS)/ipinyou_sample --report $(RESULTS)/ipinyou_sample \
	  --dataset ipinyou --data $(DATA)/ipinyou_sample.train.libsvm.xz --test $(DATA)/ipinyou_sample.test.libsvm.xz
	$(PAPER) run all --scale small --out $(RUNS)/nycflights13 --report $(RESULTS)/nycflights13 \
	  --dataset nycflights --data $(DATA)/nycflights13.csv.xz
	$(PAPER) run all --scale small --out $(RUNS)/globo_clicks --report $(RESULTS)/globo_clicks \
	  --dataset globo --data $(DATA)/globo_clicks.csv.xz
	$(PAPER) run sparsity-vs-auc fine-tune --out $(RUNS)/globo_clicks-whole --report $(RESULTS)/globo_clicks-whole \
	  --dataset globo --data $(DATA)/globo_clicks.csv.xz
	$(PAPER) run all --scale small --out $(RUNS)/synthetic --report $(RESULTS)/synthetic --dataset synthetic
	$(PAPER) run regret --out $(RUNS)/regret --report $(RESULTS)/regret
	$(PAPER) overview $(RESULTS) --into docs/paper.md

BYTES = $(PAPER) run bytes
BYTES_TO = --out $(RUNS)/bytes-$(1) --report $(RESULTS)/bytes-$(1)
LONG = $(RUNS)/bytes-synthetic-5M

paper-bytes: $(VENV)/.installed  ## The contest at equal served bytes on all logs: DATA=…; a night
	$(BYTES) $(call BYTES_TO,criteo_sample) --dataset criteo --data $(DATA)/criteo_sample.txt.xz
	$(BYTES) $(call BYTES_TO,avazu_sample) --dataset avazu --data $(DATA)/avazu_sample.csv.xz
	$(BYTES) $(call BYTES_TO,ipinyou_sample) --dataset ipinyou --data $(DATA)/ipinyou_sample.train.libsvm.xz \
	  --test $(DATA)/ipinyou_sample.test.libsvm.xz
	$(BYTES) $(call BYTES_TO,globo_clicks) --runs 2 --scale small --dataset globo --data $(DATA)/globo_clicks.csv.xz
	$(BYTES) $(call BYTES_TO,nycflights13) --runs 2 --scale small --dataset nycflights --data $(DATA)/nycflights13.csv.xz
	test -f $(LONG)/log/log.json || $(RUN)/sparsegroup-paper synthesize criteo $(LONG)/log --rows 5000000
	$(BYTES) $(call BYTES_TO,synthetic-5M) --runs 1 --dataset criteo --data $(LONG)/log
	$(PAPER) overview $(RESULTS) --into docs/paper.md

CRITEO = $(RUNS)/synthetic-criteo

paper-criteo: $(VENV)/.installed  ## Tables 2 to 4 and 8, one seed, on a synthetic log of 10M training rows; two hours
	test -f $(CRITEO)/log/log.json || $(RUN)/sparsegroup-paper synthesize criteo $(CRITEO)/log --rows 11666667
	$(PAPER) run sparsity-vs-auc fine-tune best-auc embedding-dim --runs 1 --recipe paper \
	  --out $(CRITEO) --report $(RESULTS)/synthetic-criteo --dataset criteo --data $(CRITEO)/log
	$(PAPER) overview $(RESULTS) --into docs/paper.md

clean:  ## Remove environments, caches and what was built
	rm -rf $(VENV) .venv-* dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(RUN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, PYTHON=$(PYTHON) is " + sys.version)'
	$(call new-venv,$(VENV))

$(VENV)/.installed: pyproject.toml paper/pyproject.toml constraints.txt | $(RUN)/python
	$(CONSTRAINED) $(RUN)/python $(NEW_PIP)
	$(INSTALL) --editable '.[cli]' --editable paper
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(INSTALL) --editable '.[all]' --group dev
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(INSTALL) --group docs
	touch $@
