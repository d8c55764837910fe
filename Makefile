# What people type. PYTHON=... chooses the interpreter, ARGS=... goes on to the command.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
AUDIT := .venv-audit
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
WRITTEN := pyproject.toml constraints.txt

.PHONY: help demo test system-packages soak containers check audit format setup protos constraints clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/.installed-train ## train a tiny model and watch it learn: make demo ARGS=--headless
	$(BIN)/astraflow demo $(ARGS)

test: $(VENV)/.installed-dev ## all tests, on two cores: make test ARGS="-k recipe"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

system-packages: ## install the Debian packages without which tests are skipped; with sudo where this is not root
	@packages="$$($(PYTHON) -m tests.tools packages)" || exit 1; \
	if [ -z "$$packages" ]; then echo "all of them are installed"; exit 0; fi; \
	command -v apt-get >/dev/null || { echo "cannot install $$packages: there is no apt-get; install what they bring" >&2; exit 1; }; \
	sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	$$sudo apt-get update -qq && \
	$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$packages >/dev/null

soak: $(VENV)/.installed-dev ## kill, stop and cut off a run at random, and check it: make soak ARGS="--minutes 20 --seed 7"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak $(ARGS)

containers: $(VENV)/.installed-dev ## docker-compose.yml in a Docker Engine of its own, with kills: needs root on Debian
	$(BIN)/python -m tests.containers $(ARGS)

check: $(VENV)/.installed-dev ## everything that is found without running anything
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell
	$(BIN)/djlint --lint --quiet web/templates
	$(BIN)/bandit --quiet --recursive --severity-level high astraflow web maintainer recipes

audit: $(AUDIT)/.made ## known weaknesses in what constraints.txt pins: asks PyPI's advisories, so it needs the internet
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

format: $(VENV)/.installed-dev ## as ruff likes it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(VENV)/.installed-dev ## .venv with everything to work on the project
	$(BIN)/pre-commit install

protos: $(VENV)/.installed-dev ## generate astraflow/wire/pb from astraflow/wire/protos
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m astraflow.wire.generate

constraints: $(VENV)/.installed-dev ## write down the releases that .venv has now
	{ grep '^#' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt

clean: ## remove .venv and what tools left behind
	rm -rf $(VENV) $(AUDIT) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs no tools for developers; both install once, and again when what they install has changed.
$(VENV)/.installed-train: $(VENV)/.made $(WRITTEN)
	$(INSTALL) -e '.[train]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made $(WRITTEN)
	$(INSTALL) -e '.[train,data,dev]'
	@touch $@ $(VENV)/.installed-train

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not here: install Python 3.11, or name another: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Apart: what looks for weaknesses is not to decide which releases the project has.
$(AUDIT)/.made:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --disable-pip-version-check pip-audit==2.10.1
	@touch $@
