# The daily commands; `make help` lists them. Everything is built into .venv and build/.
.SHELLFLAGS := -eu -c
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
BUILD := build
JOBS ?= $(shell nproc)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

SOURCES := $(shell find CMakeLists.txt pyproject.toml cmake aoizora python/bindings python/aoizora -type f \
  -not -name '*.pyc' -not -name _core.pyi)
CPP_FILES = $(shell find aoizora python/bindings fuzz examples cmake judges -name '*.cpp' -o -name '*.h')

EXAMPLE := --model wan2.1-14b --size 480x832 --frames 21 --slice v5e:4x4

PYTEST := $(BIN)/pytest -n $(JOBS) --maxprocesses 4 --dist worksteal
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: help plan setup test test-all cpp-tests judge docs lint tidy format clean

help: ## list these commands
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

plan: setup ## set up, then plan the example (Wan 2.1 14B, 480x832, 21 frames, v5e:4x4) into plan.json
	$(BIN)/aoizora plan $(EXAMPLE) --out plan.json
	@printf '\nThe plan is in plan.json. To go on, or to plan something else:\n'
	@printf '  %s\n' ". $(BIN)/activate" "aoizora explain plan.json" "aoizora --help" \
	  "aoizora plan --model wan2.1-14b --size 720x1280 --frames 81 --slice v5e:2x4"

setup: $(VENV)/installed ## build the package into .venv

$(VENV)/ready: tools/prerequisites.sh pyproject.toml
	@python=$$(tools/prerequisites.sh) && echo "Setting up $(VENV) with $$($$python --version)" && $$python -m venv $(VENV)
	@$(BIN)/python tools/requirements.py build > $(VENV)/requirements.txt
	$(PIP) install -r $(VENV)/requirements.txt
	@touch $@

# pip builds in build/, and so do the C++ tests: nothing is compiled twice. mypy reads the stub beside the sources.
$(VENV)/installed: $(VENV)/ready $(SOURCES)
	@echo "Building the C++ library: about four minutes on two cores"
	$(PIP) install --no-build-isolation --config-settings build-dir=$(BUILD) .
	@cp $(BUILD)/python/bindings/_core.pyi python/aoizora/
	@touch $@

$(VENV)/tools: $(VENV)/ready
	@$(BIN)/python tools/requirements.py test lint docs > $(VENV)/requirements.txt
	$(PIP) install -r $(VENV)/requirements.txt
	@touch $@

cpp-tests: $(VENV)/installed
	@PATH="$(abspath $(BIN)):$$PATH" cmake -S . -B $(BUILD) -DAOIZORA_BUILD_TESTS=ON > /dev/null
	PATH="$(abspath $(BIN)):$$PATH" cmake --build $(BUILD)
	PATH="$(abspath $(BIN)):$$PATH" ctest --test-dir $(BUILD) --no-tests=error --output-on-failure -j $(JOBS)

test: cpp-tests $(VENV)/tools ## C++ and Python tests, but for the slow ones (under ten minutes on two cores)
	$(PYTEST) -m "not slow and not timed"

test-all: cpp-tests $(VENV)/tools ## all tests, the slow ones with the real TPU compiler too
	$(PYTEST) -m "not timed"
	$(BIN)/pytest -m timed

judge: $(VENV)/installed ## time collectives with SimGrid and over network namespaces, into docs/judges.md (seven minutes)
	$(BIN)/python -m judges.run --build $(BUILD)/judges --out docs/judges.md

docs: $(VENV)/installed $(VENV)/tools ## the documentation site, into build/docs; a broken reference is an error
	$(BIN)/sphinx-build -W --keep-going -q -b html docs $(BUILD)/docs
	@echo "The site starts at $(BUILD)/docs/index.html"

lint: $(VENV)/installed $(VENV)/tools ## formatting, ruff, mypy, and the includes against the walk
	tools/check_walk.py
	$(BIN)/clang-format --dry-run --Werror $(CPP_FILES)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/tools ## format C++ and Python in place
	$(BIN)/clang-format -i $(CPP_FILES)
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

clean: ## remove .venv, build/ and what the tools left
	rm -rf python/aoizora/_core.pyi $(VENV) $(BUILD) dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
