# make quickstart   build everything and train on real data
# make test         every check and test there is
#
# Each target installs what it needs into .venv and build/, and does nothing twice.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
RUN := .ci/with-tools
UV := $(BIN)/uv --quiet --no-progress
UV_VERSION := $(shell sed -n 's/.*"\(uv==[^"]*\)".*/\1/p' python/pyproject.toml)
NATIVE := Cargo.toml Cargo.lock rust-toolchain.toml $(shell find native -name '*.rs' -o -name Cargo.toml)
PACKAGE := python/pyproject.toml $(shell find python/flambeau -name '*.py')
SPARKS := spark35 spark40
LINTED := python tests examples benchmarks notebooks .ci

.PHONY: help
help:
	@sed -n 's/^#: //p' Makefile

#: make quickstart    build, then train on 336,776 flights on two workers
.PHONY: quickstart
quickstart: build
	@$(RUN) $(BIN)/python examples/flights.py

#: make build         the environment in .venv and the native extension in it
.PHONY: build
build: $(VENV)/.extension

#: make test          lint, then every Rust, Python and cross-language test
.PHONY: test
test: build
	@$(RUN) $(BIN)/python .ci/check.py

#: make test-matrix   the main job on the older Spark lines, each in an environment of its own
.PHONY: test-matrix
test-matrix: $(SPARKS:%=test-%)

.PHONY: $(SPARKS:%=test-%)
$(SPARKS:%=test-%): test-%: build/%/.installed
	@FLAMBEAU_VENV=$(CURDIR)/build/$* $(RUN) $(CURDIR)/build/$*/bin/python -m pytest \
		-c python/pyproject.toml -q -m matrix tests python/tests

#: make lint          formatting, lints and types
.PHONY: lint
lint: build
	@$(RUN) $(BIN)/python .ci/check.py --lint

#: make format        rewrite the sources as lint wants them
.PHONY: format
format: $(VENV)/.synced
	@$(RUN) cargo fmt
	@cd python && $(BIN)/ruff check --fix --quiet $(LINTED:%=../%); $(BIN)/ruff format --quiet $(LINTED:%=../%)

#: make docs/params.md   the table of params, from their schema
docs/params.md: docs/training-job.schema.json .ci/params_page.py $(VENV)/.synced
	@$(BIN)/python .ci/params_page.py >$@

#: make clean         remove everything that the targets made
.PHONY: clean
clean:
	rm -rf $(VENV) build target python/flambeau/_native*.so

# The environment: uv, in the version that pyproject.toml names, then all that uv.lock names. Compiled once here, or each
# worker process compiles torch for itself where Python may not write its bytecode.
$(VENV)/.uv: python/pyproject.toml
	@[ -x $(BIN)/python ] || "$$($(RUN) --python)" -m venv $(VENV)
	@[ "$$($(BIN)/uv --version 2>/dev/null | cut -d' ' -f1,2)" = "$(subst ==, ,$(UV_VERSION))" ] \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV_VERSION)
	@touch $@

$(VENV)/.synced: $(VENV)/.uv python/uv.lock
	@echo "flambeau: installing the Python packages of python/uv.lock"
	@UV_PROJECT_ENVIRONMENT=$(CURDIR)/$(VENV) $(UV) sync --frozen --compile-bytecode --project python --no-install-project
	@touch $@

$(VENV)/.extension: $(VENV)/.synced $(NATIVE) python/pyproject.toml
	@echo "flambeau: building the native extension"
	@cd python && ../$(RUN) $(BIN)/maturin develop --release --locked --uv --quiet
	@touch $(CURDIR)/$@

# A wheel, for the environments of the matrix.
build/wheels/.built: $(VENV)/.extension $(PACKAGE)
	@rm -rf build/wheels
	@cd python && ../$(RUN) $(BIN)/maturin build --release --locked --quiet --interpreter $(BIN)/python --out ../build/wheels
	@touch $@

build/%/.installed: $(VENV)/.synced build/wheels/.built
	@echo "flambeau: making the environment of $*"
	@UV_PROJECT_ENVIRONMENT=$(CURDIR)/build/$* $(UV) sync --frozen --compile-bytecode --project python --no-install-project \
		--no-default-groups --group dev --group examples --group $*
	@$(UV) pip install --python build/$*/bin/python --no-deps --reinstall build/wheels/*.whl
	@touch $@
