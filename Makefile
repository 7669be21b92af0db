# A newcomer needs two commands, `make demo` and `make test`. Every target sets up .venv by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEMO   := runs/demo
METHODS := strata ease simplecil finetune
# One test process more than cores, since some wait for a server or the disk; one torch thread each, since more crawl.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
# What the tests of a file share is made once; files that take long are begun first (tests/conftest.py).
BY_FILE := --dist loadfile --no-loadscope-reorder

# The tests start hundreds of processes, and without its bytecode each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test cluster-test lint docs bench faults fuzz soak second clean

help: ## print this help
	@echo "ease: class-incremental learning with a frozen ViT"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## create .venv and install the package with its tools

$(READY): pyproject.toml src/ease/__init__.py
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

demo: $(READY) ## run strata, ease, simplecil and finetune on 60 glyphs: a table, a plot, a report
	@rm -rf $(DEMO)
	@for method in $(METHODS); do \
	  $(BIN)/ease run --dataset glyphs --protocol "B0 Inc6" --method $$method --preset few-images --out $(DEMO)/$$method > /dev/null || exit $$?; \
	done
	@$(BIN)/ease report $(foreach method,$(METHODS),$(DEMO)/$(method)) --out $(DEMO)/comparison

# A Ray cluster needs the cores for itself, so its tests come after the others.
test: $(READY) ## run the test suite, then the loss of a node on a Ray cluster
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) --ignore tests/cluster
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/cluster -m "not long"

cluster-test: $(READY) ## every loss on a Ray cluster of two nodes (about 10 minutes)
	OMP_NUM_THREADS=1 EASE_CLUSTER_TESTS=all $(BIN)/python -m pytest tests/cluster

lint: $(READY) ## check style and types
	$(BIN)/ruff check src tests benchmarks campaign examples docs/*.py
	$(BIN)/ruff format --check src tests benchmarks campaign examples docs/*.py
	$(BIN)/mypy

docs: $(READY) ## build the documentation into site/; broken links are errors
	@$(BIN)/python -c "import mkdocs, material, mkdocstrings_handlers.python" 2> /dev/null \
	  || $(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

bench: $(READY) ## measure speed and memory against the released schedule (about 30 minutes)
	$(BIN)/python -m benchmarks.speed

faults: $(READY) ## fail every system call of every writing command, and random sequences of changes (about 30 minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m campaign.faults
	OMP_NUM_THREADS=1 EASE_FAULT_EXAMPLES=200 $(BIN)/python -m pytest tests/faults/test_state_machine.py tests/faults/test_api_schema.py

SECONDS ?= 60
fuzz: $(READY) ## fuzz files, requests and settings for SECONDS=60 under a memory limit
	$(BIN)/python -m campaign.fuzz --seconds $(SECONDS)

MINUTES ?= 2
soak: $(READY) ## disturb a real server and its clients for MINUTES=2
	$(BIN)/python -m campaign.soak --minutes $(MINUTES)

SEED ?= 1
second: $(READY) ## inputs by a tester who had not read the code (about 45 minutes); SEED=1
	OMP_NUM_THREADS=1 $(BIN)/python -m campaign.second --seed $(SEED)

clean: ## remove .venv, caches and demo results
	rm -rf $(VENV) $(DEMO) site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
