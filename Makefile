# make reproduce   kernels, mini runs, tables, figures and verdicts (the same as `snakemake --cores all`)
# make fresh       the full-size runs again, on this machine's GPUs
# make test        every test; those that need a GPU skip where there is none      make test-gpu   those alone
# make lint        what .ci/run checks beside the tests
# make lock        envs/lock.txt from the present .venv
#
# Each sets up .venv first, once: Python 3.11 to 3.13 and a C++ compiler are all that a machine must have.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: reproduce fresh test test-gpu lint lock setup

PYTHON ?= python3
CORES ?= all
VENV := .venv
READY := $(VENV)/.ready
LIBRARY := kernels/build/libtaco.so
SOURCES := $(wildcard kernels/*.cu kernels/*.cuh kernels/*.cpp kernels/*.h)
RUN := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" OMP_NUM_THREADS=1

reproduce: $(READY)
	$(RUN) snakemake --cores $(CORES) --show-failed-logs
	@echo "Made:"
	@ls -1 $(LIBRARY) results/{mini,logged}/*.csv figures/{mini,logged}/*.svg 2>/dev/null | sed 's/^/  /' || true

fresh: $(READY)
	$(RUN) snakemake --cores $(CORES) --show-failed-logs fresh

test: $(READY) $(LIBRARY)
	$(RUN) python -m pytest -rs $(PYTEST)

test-gpu: $(READY) $(LIBRARY)
	$(RUN) python -m pytest -m gpu $(PYTEST)

lint: $(READY)
	$(RUN) ruff check
	$(RUN) ruff format --check
	$(RUN) snakefmt --check Snakefile
	$(RUN) lint-imports
	$(RUN) snakemake --lint
	$(RUN) python .ci/lengths.py

lock:
	( sed -n '/^#/p' envs/lock.txt; $(VENV)/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' ) > envs/lock.new
	mv envs/lock.new envs/lock.txt

setup: $(READY)

$(READY): envs/lock.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit(f"got Python {v[0]}.{v[1]}; need 3.11 to 3.13; because envs/lock.txt holds for those (choose one: make PYTHON=python3.12)")'
	[ -x $(VENV)/bin/python ] || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --requirement envs/lock.txt
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

$(LIBRARY): $(SOURCES) taco/kernels.py | $(READY)
	$(RUN) python -m taco kernels build
