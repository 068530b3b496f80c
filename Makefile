# Every target works on a machine that has Python 3.11+, make and a package index; nothing else is installed by hand.
# Only test-full wants more: on Debian it installs a browser and other programs as root, elsewhere it names what is missing.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet

# The tests start hundreds of processes: each would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

# For each pip, those inside of pip too: an index may be slow to answer.
export PIP_RETRIES := 10

# Before and after what does not say itself how long it took.
BEGIN := begun=$$(date +%s)
TOOK  := echo "took $$(( $$(date +%s) - begun )) s"

.DEFAULT_GOAL := help
.PHONY: help demo test test-full check format gen docs bench bench-peers conform study fuzz soak coverage clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: $(PYTHON) is older than Python 3.11; run make PYTHON=/path/to/a/newer/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo "error: $(PYTHON) cannot make $(VENV); on Debian and Ubuntu install python3-venv, then run make again" >&2; exit 1; }

# One stamp for each set of extras, so that `make demo` does not install the developers' tools.
$(VENV)/.run: pyproject.toml | $(BIN)/python
	@echo "installing yeto into $(VENV) ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing yeto and its development tools into $(VENV) ..."
	@$(PIP) --editable '.[dev]'
	@touch $(VENV)/.run $@

$(VENV)/.full: pyproject.toml | $(BIN)/python
	@echo "installing yeto and all that its tests can use into $(VENV) ..."
	@$(PIP) --editable '.[full]'
	@touch $(VENV)/.run $(VENV)/.dev $@

$(VENV)/.peers: pyproject.toml | $(BIN)/python
	@echo "installing yeto and what its benchmarks are compared with into $(VENV) ..."
	@$(PIP) --editable '.[peers]'
	@touch $(VENV)/.run $(VENV)/.dev $(VENV)/.full $@

demo: $(VENV)/.run ## Train a small language model with one syncer and three learners, kill one, print the report's place
	@$(BIN)/yeto-learner demo --output build/demo $(ARGS)

test: $(VENV)/.dev ## Run the test suite (about five minutes on two cores)
	@$(BIN)/python -m pytest -n 2 -m "not full" $(ARGS)

test-full: $(VENV)/.full ## Run everything: torch, leaks, scale, and the property tests with many examples
	@tests/foreign/install.sh build/foreign
	@tests/browser/install
	@tests/packaging/install
	@$(BIN)/python -m pytest -n 2 $(ARGS)
	@YETO_HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -n 2 tests/property

check: $(VENV)/.dev ## Format, lint, types, import contracts, generated code, spec rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m codegen --check

format: $(VENV)/.dev ## Format the code and mend what the linter can mend
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

gen: $(VENV)/.dev ## Write the generated code from spec/
	@$(BIN)/python -m codegen

docs: $(VENV)/.dev ## Build the documentation into build/site
	@$(BEGIN); NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file site/mkdocs.yml && \
		echo "wrote build/site ($$(find build/site -name '*.html' | wc -l) pages); open build/site/index.html" && $(TOOK)

conform: $(VENV)/.dev ## Grade this implementation: a matrix each for syncer, learner and codec; writes build/conform
	@$(BEGIN); $(BIN)/python -m yeto_proto.conform.cli run --jobs 4 --output build/conform $(ARGS); code=$$?; $(TOOK); exit $$code

bench: $(VENV)/.dev ## Measure every row of the speed table beside its raw limit; writes build/bench.json
	@$(BIN)/python tests/bench/run.py $(ARGS)

bench-peers: $(VENV)/.peers ## Measure whole synchronisations beside gloo and torchft
	@$(BIN)/python tests/bench/peers.py $(ARGS)

study: $(VENV)/.dev ## Play the goodput study (some ten minutes) and write its page of the documentation
	@$(BIN)/python -m tests.study $(ARGS)

fuzz: $(VENV)/.dev ## Run the property tests with many examples each, the batches over all frames for a minute
	@YETO_HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest tests/property $(ARGS)

soak: $(VENV)/.dev ## 5,000 rounds with reconnects under hostile load; memory, descriptors and threads must not grow
	@$(BIN)/python tests/soak/run.py $(ARGS)

coverage: $(VENV)/.dev ## Branch coverage of yeto_proto, and the table of spec rules with their cases and tests
	@$(BIN)/coverage run --source=yeto_proto -m pytest -q tests/unit/test_*.py tests/property tests/vectors tests/machines $(ARGS)
	@$(BIN)/coverage report --skip-covered
	@$(BIN)/python -m codegen --coverage

clean: ## Remove what the targets wrote, the virtual environment included
	@rm -rf build dist $(VENV) *.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
