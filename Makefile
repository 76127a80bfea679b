# make quickstart   build everything and train on real data
# make test         the checks and tests of every change
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
NATIVE := Cargo.toml Cargo.lock rust-toolchain.toml $(shell find native -name '*.rs' -o -name '*.cpp' -o -name '*.h' -o -name Cargo.toml)
EXTENSION := $(filter-out native/torch/% native/worker/% native/jni/%,$(NATIVE))
PACKAGE := python/pyproject.toml $(shell find python/flambeau -name '*.py')
JVM := build.gradle settings.gradle jvm/dependencies.lock $(shell find jvm/src -type f)
PLATFORM := linux-$(shell uname -m)
NATIVES := build/native/native/$(PLATFORM)
NATIVE_PACKAGES := -p flambeau-python -p flambeau-worker -p flambeau-jni-store -p flambeau-jni-torch
GRADLE := $(RUN) +gradle gradle --no-daemon --quiet --console=plain
SPARKS := spark35 spark40
TORCHES := torch24 torch28
STAND_IN := build/cuda-stand-in/.built
CARGO_DENY := build/cargo-deny/.0.20.2
CARGO_ABOUT := build/cargo-about/.0.9.3
CARGO_CYCLONEDX := build/cargo-cyclonedx/.0.5.9
LICENCES := build/native/META-INF/LICENSES-THIRD-PARTY
EXAMPLES := $(shell find examples -name '*.scala')
LINTED := python tests examples benchmarks notebooks docs/conf.py deploy .ci

.PHONY: help
help:
	@sed -n 's/^#: //p' Makefile

#: make quickstart    build, then train on 336,776 flights on two workers
.PHONY: quickstart
quickstart: $(VENV)/.extension
	@$(RUN) $(BIN)/python examples/flights.py

#: make build         the environment in .venv with the native extension, the libtorch programs, the jar
.PHONY: build
build: natives jvm

#: make natives       flambeau-worker and the JVM's libraries, for the jar of natives and in python/flambeau/_bin
.PHONY: natives
natives: build/native/.built

#: make jvm           the jar for Spark 4 and that of the natives: build/jvm/libs
.PHONY: jvm
jvm: build/jvm/.built

#: make dist          what others install: wheels, and jars and POMs as a Maven repository, in build/dist
.PHONY: dist
DIST := build/dist
dist: $(DIST)/.built

#: make test          lint, build, then the Rust, Scala, Python and cross-language tests but the long ones
.PHONY: test
test: $(VENV)/.synced build/libtorch/build-version
	@$(RUN) +g++ +gradle $(BIN)/python .ci/check.py

#: make test-all      the same with the long tests, then Lightning, transformers and MLflow, older Spark and torch, the site, and make dist
.PHONY: test-all
test-all: $(VENV)/.synced build/libtorch/build-version $(CARGO_DENY)
	@FLAMBEAU_LONG=1 $(RUN) +g++ +gradle $(BIN)/python .ci/check.py
	@$(MAKE) --no-print-directory test-trainers
	@$(MAKE) --no-print-directory test-matrix
	@$(MAKE) --no-print-directory test-mlflow
	@$(MAKE) --no-print-directory docs
	@$(MAKE) --no-print-directory test-dist

#: make test-jvm      the Scala tests alone
.PHONY: test-jvm
test-jvm: natives
	@$(GRADLE) test

#: make test-matrix   the older lines, each in an environment of its own: Spark's run the main job, torch's the estimator's tests
.PHONY: test-matrix
test-matrix: $(SPARKS:%=test-%) test-jvm-matrix $(TORCHES:%=test-%)

# Scala has one more dimension: Spark 3.5 with Scala 2.12 and 2.13, and the jar of Spark 4 on Spark 4.0.
.PHONY: test-jvm-matrix
test-jvm-matrix: natives
	@$(GRADLE) testAll -Ptag=matrix

.PHONY: $(SPARKS:%=test-%)
$(SPARKS:%=test-%): test-%: build/%/.installed
	@FLAMBEAU_VENV=$(CURDIR)/build/$* $(RUN) $(CURDIR)/build/$*/bin/python -m pytest \
		-c python/pyproject.toml -q -m matrix tests python/tests

# An environment is 6 GB: it goes when its tests have passed. What torch.export saves, and libtorch runs, is of one torch.
ESTIMATOR_TESTS := $(addprefix python/tests/test_,$(addsuffix .py,adapter estimator metrics resume transform uncompiled))

.PHONY: $(TORCHES:%=test-%)
$(TORCHES:%=test-%): test-%: build/%/.installed
	@FLAMBEAU_VENV=$(CURDIR)/build/$* $(RUN) $(CURDIR)/build/$*/bin/python -m pytest \
		-c python/pyproject.toml -q -n 2 --dist loadfile $(ESTIMATOR_TESTS)
	@rm -rf build/$*

#: make test-trainers modules of Lightning and of transformers, in an environment of their own
.PHONY: test-trainers
test-trainers: build/peers/trainers/.installed $(VENV)/.extension
	@$(RUN) env PYTHONPATH=$(CURDIR)/python build/peers/trainers/bin/python -m pytest -c python/pyproject.toml -q \
		python/tests/test_trainers.py
	@rm -rf build/peers/trainers

# MLflow takes older pyarrows than the one of the other tests, so they are in an environment of their own.
#: make test-mlflow   fits as runs of MLflow's, and models of its registry, against a server, and the nightly job, on YARN too
.PHONY: test-mlflow
test-mlflow: build/peers/mlflow/.installed build/jvm/.built
	@$(GRADLE) hadoop
	@FLAMBEAU_VENV=$(CURDIR)/build/peers/mlflow $(RUN) env PYTHONPATH=$(CURDIR)/python \
		$(CURDIR)/build/peers/mlflow/bin/python -m pytest -c python/pyproject.toml -q python/tests/test_mlflow.py

# Root on Debian makes a root of Debian's next release for it; others skip that.
DEBOOTSTRAP = $(if $(filter 0,$(shell id -u)),$(if $(shell command -v apt-get),+debootstrap))

#: make test-dist     what `make dist` wrote, checked, and installed on a bare Debian and beside each Spark; a part of `make test-all`
.PHONY: test-dist
test-dist: build/dist/.built build/peers/dist/.installed
	@$(RUN) $(DEBOOTSTRAP) build/peers/dist/bin/python -m pytest -c python/pyproject.toml -q tests/test_dist.py
	@rm -rf build/peers/dist

# On a machine that has a GPU and no tools to build with: make test-gpu GPU_PYTHON=python3, with the extension of this
# checkout (python/flambeau/_native.abi3.so) and what that Python has.
GPU_PYTHON := $(BIN)/python
GPU_NEEDS := $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(VENV)/.extension)
GPU_RUN := $(if $(GPU_NEEDS),$(RUN) +g++)

#: make test-gpu      the tests that need a GPU; without one it says what it skips
.PHONY: test-gpu
test-gpu: $(GPU_NEEDS)
	@$(GPU_RUN) $(GPU_PYTHON) .ci/gpu.py

#: make test-gpu-stand-in   the same on a machine without a GPU, with threads in a GPU's place
.PHONY: test-gpu-stand-in
test-gpu-stand-in: build stand-in
	@$(RUN) +g++ $(BIN)/python .ci/gpu.py --stand-in

.PHONY: stand-in
stand-in: $(STAND_IN)

# From the docstrings of what is installed, and scaladoc's pages of the jar's classes.
#: make docs          the documentation as a site: build/site/index.html
.PHONY: docs
docs: $(VENV)/.docs $(VENV)/.extension
	@$(GRADLE) scaladoc_spark4_2.13
	@rm -rf build/site
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet -c docs -d build/doctrees . build/site
	@cp -r build/jvm/spark4_2.13/scaladoc build/site/scala
	@echo '<meta http-equiv="refresh" content="0; url=docs/index.html">' >build/site/index.html

$(VENV)/.docs: $(VENV)/.synced
	@UV_PROJECT_ENVIRONMENT=$(CURDIR)/$(VENV) $(UV) sync --frozen --inexact --project python --no-install-project --group docs
	@touch $@

#: make bench-gpu     training on GPUs beside DDP on NCCL; benchmarks/GPU.md
.PHONY: bench-gpu
bench-gpu: $(GPU_NEEDS)
	@$(GPU_RUN) $(GPU_PYTHON) benchmarks/gpu.py

# Peers whose pins clash with ours have environments of their own.
PEERS := $(patsubst benchmarks/peers/%.txt,build/peers/%/.installed,$(filter-out %/dist.txt %/trainers.txt,$(wildcard benchmarks/peers/*.txt)))

#: make bench         measure Flambeau beside what people use instead; benchmarks/RESULTS.md
.PHONY: bench bench-full
bench: build $(PEERS)
	@$(RUN) $(BIN)/python benchmarks/run.py

#: make bench-full    the same at every size
bench-full: build $(PEERS)
	@$(RUN) $(BIN)/python benchmarks/run.py --full

build/peers/%/.installed: benchmarks/peers/%.txt $(VENV)/.synced
	@echo "flambeau: installing the packages of $<"
	@$(UV) venv --clear --python $(BIN)/python build/peers/$*
	@$(UV) pip sync --python build/peers/$*/bin/python --require-hashes --compile-bytecode $<
	@[ ! -e benchmarks/peers/$*.sh ] || $(RUN) +g++ benchmarks/peers/$*.sh build/peers/$*
	@touch $@

build/peers/horovod/.installed: benchmarks/peers/horovod.sh

#: make lint          formatting, lints and types
.PHONY: lint
lint: $(VENV)/.synced build/libtorch/build-version
	@$(RUN) +g++ +gradle $(BIN)/python .ci/check.py --lint

#: make format        rewrite the sources as lint wants them
.PHONY: format
format: $(VENV)/.synced
	@$(RUN) cargo fmt
	@$(GRADLE) format
	@cd python && $(BIN)/ruff check --fix --quiet $(LINTED:%=../%); $(BIN)/ruff format --quiet $(LINTED:%=../%)

#: make params        the params of Python and Scala, and docs/params.md, from the schema of the training job
.PHONY: params
params: $(VENV)/.synced
	@$(BIN)/python .ci/params.py

#: make clean         remove everything that the targets made
.PHONY: clean
clean:
	rm -rf $(VENV) build target .gradle python/flambeau/_native*.so python/flambeau/_bin python/flambeau/_jars \
		python/LICENSES-THIRD-PARTY deploy/databricks/dist

# The environment: uv, in the version that pyproject.toml names, then all that uv.lock names. Compiled once here, or each
# worker process compiles torch for itself where Python may not write its bytecode. Inexact, or the package itself, which
# is no part of the lock, is removed.
$(VENV)/.uv: python/pyproject.toml
	@[ -x $(BIN)/python ] || "$$($(RUN) --python)" -m venv $(VENV)
	@[ "$$($(BIN)/uv --version 2>/dev/null | cut -d' ' -f1,2)" = "$(subst ==, ,$(UV_VERSION))" ] \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check $(UV_VERSION)
	@touch $@

$(VENV)/.synced: $(VENV)/.uv python/uv.lock
	@echo "flambeau: installing the Python packages of python/uv.lock"
	@UV_PROJECT_ENVIRONMENT=$(CURDIR)/$(VENV) $(UV) sync --frozen --inexact --compile-bytecode --project python --no-install-project
	@touch $@

# The extension where it is imported from, and the package's directory on the environment's path.
INSTALL_EXTENSION = cmp -s target/release/lib_native.so python/flambeau/_native.abi3.so \
	|| { cp target/release/lib_native.so build/_native.so && mv build/_native.so python/flambeau/_native.abi3.so; }; \
	echo $(CURDIR)/python >$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("platlib"))')/flambeau.pth; \
	touch $(VENV)/.extension

$(VENV)/.extension: $(VENV)/.synced $(EXTENSION)
	@echo "flambeau: building the native extension"
	@mkdir -p build
	@$(RUN) cargo build --release --locked --quiet -p flambeau-python
	@$(INSTALL_EXTENSION)

# libtorch in the form that torch-sys takes: links to the torch of the environment, whose headers and libraries it is.
build/libtorch/build-version: $(VENV)/.synced
	@torch=$$($(BIN)/python -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])') \
		&& rm -rf build/libtorch && mkdir -p build/libtorch/lib && ln -s "$$torch/include" build/libtorch/include \
		&& ln -s "$$torch"/lib/lib{c10,torch_cpu,torch}.so build/libtorch/lib/ \
		&& sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$$torch/version.py" >$@

# What the JVM and Python start or load, without symbols, and the oldest glibc that it runs with. Cargo knows
# best whether there is anything to compile; the files change only where their contents do. The extension too: built
# alone, its dependencies have fewer features, and Cargo would compile what it shares with the others twice.
build/native/.built: build/libtorch/build-version $(NATIVE)
	@echo "flambeau: building the native extension, flambeau-worker and the JVM's libraries"
	@$(RUN) +g++ cargo build --release --locked --quiet $(NATIVE_PACKAGES)
	@$(INSTALL_EXTENSION)
	@mkdir -p $(NATIVES) python/flambeau/_bin
	@# What an earlier version left there would be packed too.
	@rm -f python/flambeau/_bin/*
	@for file in flambeau-worker libflambeau_jni_store.so libflambeau_jni_torch.so; do \
		strip -o build/native/$$file target/release/$$file; \
		cmp -s build/native/$$file $(NATIVES)/$$file && rm build/native/$$file || mv build/native/$$file $(NATIVES)/; done
	@# Beside torch, the library over libtorch does for the store's too, and has most of its code.
	@ln -f $(NATIVES)/{flambeau-worker,libflambeau_jni_torch.so} python/flambeau/_bin/
	@objdump -T $(NATIVES)/* | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1 | sed 's/GLIBC_//' >build/native/glibc
	@touch $@

# What stands in for CUDA and NCCL in tests: a library before torch's CUDA runtime, one with kernels, which the first one
# opens, and one for NCCL. CUDA's headers come with torch's wheels.
$(STAND_IN): build/libtorch/build-version $(wildcard tests/cuda-stand-in/*) $(shell find tests/nccl-stand-in native/collective/src -name '*.rs')
	@echo "flambeau: building the stand-ins for CUDA and NCCL"
	@mkdir -p $(@D)
	@site=$$(readlink -f build/libtorch/include/../..) && cd tests/cuda-stand-in \
		&& $(CURDIR)/$(RUN) +g++ g++ -std=c++17 -O1 -Wall -Wextra -fPIC -shared -o $(CURDIR)/$(@D)/libcuda.so.1 \
			-Wl,-soname,libcuda.so.1 -isystem "$$site/nvidia/cu13/include" -isystem "$$site/triton/backends/nvidia/include" \
			machine.cpp runtime.cpp driver.cpp -lpthread -ldl \
		&& $(CURDIR)/$(RUN) +g++ g++ -std=c++20 -O1 -Wall -fPIC -shared -o $(CURDIR)/$(@D)/libcuda_kernels.so \
			-isystem "$$site/torch/include" kernels.cpp -L"$$site/torch/lib" -ltorch_cpu -lc10
	@# Alone its dependencies have fewer features, and would be compiled twice.
	@$(RUN) +g++ cargo build --release --locked --quiet $(NATIVE_PACKAGES) -p nccl-stand-in
	@cp target/release/libnccl_stand_in.so $(@D)/libnccl.so.2
	@touch $@

# The jars that flambeau.spark_config() puts on a session.
PACK_JARS = rm -rf python/flambeau/_jars && mkdir python/flambeau/_jars \
	&& ln build/jvm/libs/flambeau-$(1)*[0-9].jar python/flambeau/_jars/

build/jvm/.built: build/native/.built $(JVM)
	@echo "flambeau: building the jars"
	@$(GRADLE) jar
	@$(call PACK_JARS,spark4)
	@touch $@

build/jvm/.examples: build/jvm/.built $(EXAMPLES)
	@$(GRADLE) examples
	@touch $@

# What holds Cargo.lock against deny.toml, gathers the crates' licences, and writes bills of materials, each in the version
# that the name of its stamp tells.
FEATURES :=
$(CARGO_ABOUT): FEATURES := --features cli
$(CARGO_DENY) $(CARGO_ABOUT) $(CARGO_CYCLONEDX):
	@echo "flambeau: installing $(notdir $(@D))"
	@$(RUN) cargo install --quiet --locked $(FEATURES) --root $(@D) $(notdir $(@D))@$(@F:.%=%)
	@touch $@

$(LICENCES): $(CARGO_ABOUT) Cargo.lock native/about.toml native/about.hbs
	@mkdir -p $(@D)
	@# The crates of other platforms too, which no build fetches.
	@$(RUN) cargo fetch --locked --quiet
	@$(RUN) build/cargo-about/bin/cargo-about generate --workspace --frozen --fail -c native/about.toml native/about.hbs -o $@

DATED := SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct)

BILLS := build/native/META-INF/sbom

# From the same commit and directory come the same bytes: all dates are the commit's.
$(DIST)/.built: build/native/.built $(LICENCES) $(CARGO_CYCLONEDX) $(JVM) $(PACKAGE)
	@echo "flambeau: building the wheels and the jars of $(DIST)"
	@rm -rf $(DIST) $(BILLS) && mkdir $(BILLS)
	@# The bills of the native parts but the extension, whose maturin writes. The tool leaves each beside its Cargo.toml.
	@$(DATED) $(RUN) build/cargo-cyclonedx/bin/cargo-cyclonedx cyclonedx --quiet --format json --no-build-deps \
		--target x86_64-unknown-linux-gnu
	@mv native/worker/flambeau-worker.cdx.json native/jni/*/flambeau-jni-{store,torch}.cdx.json $(BILLS)/
	@find native tests -name '*.cdx.json' -delete
	@$(GRADLE) maven -Pdist=$(abspath $(DIST))
	@$(call PACK_JARS,spark)
	@ln -f $(LICENCES) python/
	@cd python && $(DATED) ../$(RUN) $(BIN)/maturin build --release --locked --quiet --compatibility manylinux_2_34 \
		--compression-level 9 --interpreter $(BIN)/python --sbom-include $(abspath $(BILLS))/flambeau-{worker,jni-torch}.cdx.json \
		--out $(abspath $(DIST))
	@$(BIN)/python .ci/wheels.py $(DIST)
	@# A later build's natives are not those of these bills.
	@rm -r $(BILLS)
	@touch $@

# A wheel, for the environments of the matrix.
build/wheels/.built: $(VENV)/.extension build/native/.built $(PACKAGE)
	@rm -rf build/wheels
	@cd python && ../$(RUN) $(BIN)/maturin build --release --locked --quiet --interpreter $(BIN)/python --out ../build/wheels
	@touch $@

build/%/.installed: $(VENV)/.synced build/wheels/.built
	@echo "flambeau: making the environment of $*"
	@UV_PROJECT_ENVIRONMENT=$(CURDIR)/build/$* $(UV) sync --frozen --compile-bytecode --project python --no-install-project \
		--no-default-groups --group dev --group examples --group $* --group $(if $(filter torch%,$*),spark41,torch213)
	@$(UV) pip install --python build/$*/bin/python --no-deps --reinstall build/wheels/*.whl
	@touch $@
