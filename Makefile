# SPDX-License-Identifier: Apache-2.0
# Everything a user or a developer types.  Each target works alone, as the first command in a fresh
# clone: it makes .venv, builds and installs what it needs, and does so again only when sources
# changed.
#
#   make run     build, install into .venv, run the main job (a GPU if there is one, else emulated)
#   make test    the native tests and the Python tests

PYTHON ?= python3
# A machine without a GPU needs only the CPU build of torch: TORCH=path/to/torch-...+cpu.whl
TORCH ?= torch==2.13.0
VENV ?= .venv
DEVICE ?= auto
PYTEST_FLAGS ?=
TSAN_FLAGS ?=
# Tests of one file share what they build, so a file stays with one process.
PYTEST := python -m pytest --numprocesses $(shell nproc) --dist loadfile
# CUDA builds that the torch adapter is tested with, without a GPU; 0.5 GB of download for each.
TORCH_CUDA ?= 2.11.0 2.13.0 2.15.0
# Below the weights of the checkpoint that comes with Penstock.
RUN_TEXT_MEMORY ?= 8MiB

BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
# What the tests run with, release by release; empty for the newest of everything.
LOCKED ?= --constraint tools/locked.txt
# Tools that came with the environment (cmake, ninja) come before the machine's.
export PATH := $(abspath $(BIN)):$(PATH)
# Without what it has compiled before, each process takes seconds longer to import torch.
unexport PYTHONDONTWRITEBYTECODE

NATIVE := $(shell find native -type f) CMakeLists.txt CMakePresets.json
PACKAGE := $(shell find src -type f ! -path '*/__pycache__/*') pyproject.toml README.md
C_SOURCES := 'native/*.[ch]pp' 'native/*.[ch]' 'tests/native/*.[ch]pp' 'tests/preload/*.[ch]'
# ThreadSanitizer's fixed shadow ranges collide with the layouts that some kernels draw at random.
FIXED_LAYOUT := $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)

.PHONY: help run test build-native test-python test-slow test-all test-native test-asan test-tsan test-torch-cuda coverage mutation-test lint format docs site wheel newcomer clean
.DEFAULT_GOAL := help

help:
	@echo 'make run          build, install into $(VENV), run the main job'
	@echo 'make test         native tests and Python tests'
	@echo 'make test-all     these, the slow ones, and the native ones under sanitizers'
	@echo 'make test-native  native tests alone; test-asan, test-tsan: under a sanitizer'
	@echo 'make test-torch-cuda  penstock.enable() in CUDA builds of torch, without a GPU'
	@echo 'make coverage     how many of the C++ lines make test-asan ran'
	@echo 'make mutation-test  each rule of the contract taken out: some test has to fail'
	@echo 'make lint         formatters, linters, types, layers, exported symbols'
	@echo 'make format       apply the formatters'
	@echo 'make docs         write docs/reference anew'
	@echo 'make site         the documentation as pages, into build/site'
	@echo 'make wheel        sdist and wheel into dist/'
	@echo 'make newcomer     from an installation to a first result, timed, in three ways'
	@echo 'make clean        remove what the other targets made, $(VENV) included'

$(STAMPS)/venv: tools/venv.sh
	PYTHON="$(PYTHON)" tools/venv.sh $(VENV) "$(TORCH)"
	@mkdir -p $(@D) && touch $@

$(STAMPS)/package: $(STAMPS)/venv $(NATIVE) $(PACKAGE)
	SKBUILD_BUILD_DIR=build/package $(PIP) install --quiet --no-build-isolation --no-deps .
	@touch $@

# The package is there by now, so pip adds what its extras name and nothing else.
$(STAMPS)/run: pyproject.toml | $(STAMPS)/package
	$(PIP) install --quiet --no-compile $(LOCKED) 'penstock[torch,hf]'
	@touch $@

$(STAMPS)/test: pyproject.toml | $(STAMPS)/package
	$(PIP) install --quiet --no-compile $(LOCKED) 'penstock[test]'
	@touch $@

$(STAMPS)/dev: pyproject.toml | $(STAMPS)/package
	$(PIP) install --quiet --no-compile $(LOCKED) 'penstock[test,dev]'
	@touch $@

$(STAMPS)/docs: pyproject.toml | $(STAMPS)/package
	$(PIP) install --quiet --no-compile $(LOCKED) 'penstock[docs]'
	@touch $@

# Text under a budget below the weights of the checkpoint that is included (10 MiB), then a larger
# shape. On a GPU the workspace of the matrix products alone exceeds that checkpoint, so there only
# the larger shape is beyond its budget. A recipe is expanded when it runs: torch is there by then.
ON_GPU = $(shell [ $(DEVICE) != emulated ] && \
  $(BIN)/python -c 'import torch; raise SystemExit(not torch.cuda.is_available())' \
  2>/dev/null && echo yes)
TEXT_BUDGET = $(if $(ON_GPU),512MiB,7MiB)
SHAPE = $(if $(ON_GPU),--model gpt2_xl --dtype float16 --gpu-memory 2GiB,\
  --model gpt2_small --seq-len 64 --steps 5 --gpu-memory 450MiB)

run: $(STAMPS)/package $(STAMPS)/run
	PENSTOCK_EMULATED_GRANULARITY=64KiB $(BIN)/penstock gpt --device $(DEVICE) --check \
	  --prompt 'The function returns' --generate 120 --gpu-memory $(TEXT_BUDGET)
	@echo
	$(BIN)/penstock gpt --device $(DEVICE) $(SHAPE)

test: test-native test-python

test-all: test test-slow test-asan test-tsan

test-python: $(STAMPS)/package $(STAMPS)/test
	$(BIN)/$(PYTEST) -m 'not slow' $(PYTEST_FLAGS)

test-slow: build-native $(STAMPS)/package $(STAMPS)/test
	ctest --preset dev --parallel $(shell nproc) --label-regex sweep
	$(BIN)/$(PYTEST) -m slow --dist load --maxschedchunk 1 $(PYTEST_FLAGS)

build-native: $(STAMPS)/venv
	cmake --preset dev
	MAKEFLAGS= cmake --build --preset dev

test-native: build-native
	ctest --preset dev --parallel $(shell nproc) --label-exclude sweep

test-asan: $(STAMPS)/venv
	cmake --preset asan
	MAKEFLAGS= cmake --build --preset asan
	find build/asan -name '*.gcda' -delete
	ctest --preset asan --parallel $(shell nproc)

# Of the C++ lines by the last test-asan; of Python by pytest --cov.
coverage: $(STAMPS)/dev
	$(BIN)/gcovr --root . --filter native/ --exclude native/preload/ --merge-lines -j $(shell nproc) \
	  --gcov-ignore-parse-errors=negative_hits.warn --gcov-suspicious-hits-threshold=0 \
	  --txt build/asan/lines.txt --print-summary build/asan

test-tsan: $(STAMPS)/venv
	cmake --preset tsan
	MAKEFLAGS= cmake --build --preset tsan
	$(FIXED_LAYOUT) ctest --preset tsan --parallel $(shell nproc) $(TSAN_FLAGS)

# The package that is installed, over the emulated driver that the native tests build.
test-torch-cuda: $(STAMPS)/package $(STAMPS)/test
	cmake --preset dev
	MAKEFLAGS= cmake --build --preset dev --target emulated_cuda
	$(BIN)/python tests/torch_cuda/run.py --driver build/dev/emulated_cuda/libcuda.so.1 \
	  --folder build/torch_cuda $(TORCH_CUDA) -- $(PYTEST_FLAGS)

mutation-test: $(STAMPS)/venv
	MAKEFLAGS= $(BIN)/python tools/mutation_test.py

lint: $(STAMPS)/package $(STAMPS)/dev
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	git ls-files $(C_SOURCES) | \
	  xargs clang-format --dry-run --Werror
	$(BIN)/python -m mypy
	$(BIN)/python tools/check_layers.py
	$(BIN)/python tools/check_text.py
	$(BIN)/python tools/check_symbols.py
	$(BIN)/python tools/check_hooks.py
	$(BIN)/python tools/compile_kernels.py --check

format: $(STAMPS)/package $(STAMPS)/dev
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .
	git ls-files $(C_SOURCES) | \
	  xargs clang-format -i

docs: $(STAMPS)/package $(STAMPS)/run
	$(BIN)/python tools/generate_docs.py

# mkdocs-material announces in a frame of colours that it has a successor.
site: $(STAMPS)/package $(STAMPS)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

# The proxy's own dependency is a name that only penstock run gives to the driver.  Each file is
# compiled by itself here, so that a missing #include shows.
wheel: $(STAMPS)/package $(STAMPS)/dev
	rm -rf dist build/dist
	SKBUILD_BUILD_DIR=build/manylinux CMAKE_TOOLCHAIN_FILE=$(abspath tools/manylinux.cmake) \
	  $(BIN)/python -m build --no-isolation --sdist --wheel --outdir build/dist \
	  --config-setting=cmake.define.CMAKE_UNITY_BUILD=OFF
	$(BIN)/auditwheel repair --plat manylinux_2_28_x86_64 --only-plat --exclude libcuda_real.so.1 \
	  --wheel-dir dist build/dist/*.whl
	mv build/dist/*.tar.gz dist/

newcomer: wheel
	$(BIN)/python tools/newcomer.py dist

clean:
	rm -rf $(VENV) build dist
