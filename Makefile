# Two commands: `make demo` and `make test`. Each installs what it needs into .venv first; a second
# run installs nothing until pyproject.toml or constraints.txt changes.
#
#   PYTHON=...   the interpreter to build .venv with (3.11 or newer)
#   ARGS=...     extra arguments for pytest (make test) or for every benchmark (make bench)
#   VENV=...     where the environment is; DEMO=... where the demo's run is: elsewhere, if this folder is read-only
#   wheelhouse/  when this folder exists, everything is installed from it and no index is asked

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
DEMO ?= runs/demo
WHEELHOUSE ?= wheelhouse
JOBS ?= 2
ARGS ?=

BIN := $(VENV)/bin
# pip writes beside what it installs, so of a read-only checkout a copy in the environment is installed.
READONLY := $(if $(shell test -w . && echo writable),,yes)
SOURCE := $(if $(READONLY),$(VENV)/source,.)
PIP_SOURCE := $(if $(wildcard $(WHEELHOUSE)),--no-index --find-links $(WHEELHOUSE),)
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt $(PIP_SOURCE)

# The stamps are the memory of what is installed: newer than both files below means up to date.
CORE_STAMP := $(VENV)/core.stamp
DEV_STAMP := $(VENV)/dev.stamp
DOCS_STAMP := $(VENV)/docs.stamp
PINS := pyproject.toml constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup demo test docs stress night mutants lint format types bench release wheelhouse clean

help:
	@echo "make demo        install the core, then train one protected study on four hospitals"
	@echo "make test        install everything, then run the test suite"
	@echo "make stress      the test suite five times, each in another order and from another seed, overloaded"
	@echo "make night       agents and an aggregator for one night of kills, full disks and wrong clocks (Linux)"
	@echo "make mutants     put one mistake at a time into a copy, and see that a test notices it"
	@echo "make setup       install everything (core, extras, development tools) into $(VENV)"
	@echo "make lint        ruff: rules and formatting; import-linter: the order of the packages"
	@echo "make format      ruff: apply the formatting and the safe fixes"
	@echo "make types       mypy --strict"
	@echo "make docs        build the documents as a site, with executed notebooks, in docs/_build/html"
	@echo "make bench       run every benchmarks/bench_*.py, which takes long; tables go to runs/bench"
	@echo "make wheelhouse  download every pinned wheel into $(WHEELHOUSE)/ for a machine without internet"
	@echo "make release     wheel, source distribution, pins with hashes, SBOM and provenance, in dist/"
	@echo "make clean       remove $(VENV), caches, build output and the demo's run"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no python3 found: install Python 3.11 or newer, or set PYTHON=" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than Python 3.11: set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@mkdir -p "$(VENV)" 2>/dev/null \
	  || { echo "$(VENV) cannot be made here: name a folder that can be written with VENV=, and one with DEMO=" >&2; exit 1; }
	@echo "==> creating $(VENV)"
	@"$(PYTHON)" -m venv "$(VENV)" \
	  || { rm -rf "$(VENV)"; echo "$(PYTHON) cannot make a virtual environment: install its venv module" >&2; exit 1; }

# A source distribution holds no links; the rooms are found by them in a checkout.
secfed/%:
	@ln -s ../$* $@

$(VENV)/source: | $(BIN)/python
	@mkdir -p $@ && cp -R pyproject.toml README.md LICENSE NOTICE secfed crypto dp algorithms deploy examples $@ && chmod -R u+w $@

# setuptools comes first and from the pins, so that the build of secfed itself asks no index either.
$(CORE_STAMP): $(PINS) | $(BIN)/python secfed/crypto secfed/dp secfed/algorithms secfed/deploy $(filter-out .,$(SOURCE))
	@echo "==> installing secfed and its core dependencies into $(VENV)"
	@$(PIP_INSTALL) setuptools
	@$(PIP_INSTALL) --no-build-isolation --editable $(SOURCE)
	@touch $@

$(DEV_STAMP): $(CORE_STAMP)
	@echo "==> installing every extra and the development tools into $(VENV)"
	@$(PIP_INSTALL) --no-build-isolation --editable '$(SOURCE)[dev]'
	@touch $@

$(DOCS_STAMP): $(CORE_STAMP)
	@echo "==> installing what builds the documents into $(VENV)"
	@$(PIP_INSTALL) --no-build-isolation --editable '$(SOURCE)[docs,he]'
	@touch $@

setup: $(DEV_STAMP)

demo: $(CORE_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/secfed simulate examples/breast-cancer.toml --out $(DEMO) --overwrite --drop hospital-3@mask:4
	OMP_NUM_THREADS=1 $(BIN)/secfed audit report $(DEMO) --out $(DEMO)/audit-report.html
	@echo "Try to break the protection: $(BIN)/secfed attack"

# One thread per process: with $(JOBS) processes on as many cores, more threads only wait for each other.
test: $(DEV_STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 \
	  $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(if $(READONLY),-p no:cacheprovider )$(ARGS)

# Three times as many processes as cores: whatever depends on time, order, seed or a port is to show here.
SEEDS ?= 1 2 3 4 5
LOAD ?= $(shell expr 3 '*' $$(getconf _NPROCESSORS_ONLN))
stress: $(DEV_STAMP)
	@for seed in $(SEEDS); do echo "==> order and seed $$seed, $(LOAD) processes"; \
	  OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest \
	    -n $(LOAD) --dist worksteal --order-seed $$seed --hypothesis-seed $$seed $(ARGS) || exit 1; \
	done

# Seeds: ARGS="--seed 7"; without, another night every time. Takes ten to twenty minutes on two busy cores.
night: $(DEV_STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m tests.deploy.night $(ARGS)

# One: ARGS="--only noise-dropped". The table: ARGS="--write docs/mutations.md"; only what it lacks: --stale, too.
mutants: $(DEV_STAMP)
	$(BIN)/python -m tests.mutations --jobs $(JOBS) $(ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

format: $(DEV_STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(DEV_STAMP)
	$(BIN)/mypy -p secfed

# The notebooks are executed; a broken link is an error.
docs: $(DOCS_STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# Every script says how long it took, and the next time before it begins.
bench: $(DEV_STAMP)
	@mkdir -p runs/bench
	@for script in benchmarks/bench_*.py; do \
	  took=runs/bench/$$(basename "$$script" .py).seconds; \
	  echo "==> $$script, last time $$(cat "$$took" 2>/dev/null || echo '?') s"; \
	  began=$$(date +%s); $(BIN)/python "$$script" $(ARGS) || exit 1; \
	  echo $$(( $$(date +%s) - began )) | tee "$$took" | sed 's/^/    took /; s/$$/ s/'; \
	done
	@echo "Tables are in runs/bench; make bench ARGS=--update-docs rewrites those in docs/."

# From the last commit, twice, compared byte for byte. ARGS=--offline asks no index, and writes no hashes.
release: $(DEV_STAMP)
	$(BIN)/python .ci/release.py $(ARGS)

# Wheels for this machine's Python and platform. Sources without a wheel are built here, once. The
# folder appears only when it is complete: half a wheelhouse would make every later setup fail.
wheelhouse: | $(BIN)/python
	@rm -rf $(WHEELHOUSE).part
	$(BIN)/python -m pip wheel --disable-pip-version-check --wheel-dir $(WHEELHOUSE).part \
	  --constraint constraints.txt --requirement constraints.txt
	@rm -rf $(WHEELHOUSE) && mv $(WHEELHOUSE).part $(WHEELHOUSE)

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis $(DEMO) docs/_build docs/jupyter_execute
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
