# Commands for development. PYTHON=... selects the interpreter, ARGS=... is passed to the command.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
AUDIT := .venv-audit
DOCS := .venv-docs
LOWEST := .venv-lowest
CORE_TESTS := $(addprefix tests/,access archive client contract dataflow maintainer/fleet runtime scaling web weights wire)
NOT_CORE := $(addprefix --ignore=tests/,client/test_model_server.py dataflow/test_issuer.py maintainer/fleet/providers/test_kubernetes.py maintainer/fleet/providers/test_static_ssh.py web/accounts/test_sign_on.py web/accounts/test_sign_on_elsewhere.py web/browser weights/codec weights/transfer/test_safetensors_file.py)
# A package of alfworld starts `python` while pip builds it; Debian has only `python3`.
INSTALL := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt
# pip compiles on one core; some packages contain files that are no valid Python, which is no error.
# Packages that are hardly imported, a third of all code, are compiled at their first import.
RARE := site-packages/(databricks|kubernetes/aio|libcst|moto|mypyc?|mypy_boto3_[a-z0-9]*|networkx|nltk|pip|setuptools|spacy|textual|torch/(_inductor|testing)|transformers/models|.*/tests)/
COMPILE := $(BIN)/python -m compileall -q -j 0 -x '$(RARE)' $(CURDIR)/$(VENV)/lib >/dev/null || true
WRITTEN := pyproject.toml constraints.txt

.PHONY: help demo demo-llm test test-long test-lowest engines environments system-packages helm soak soak-cluster soak-hostile coverage mutants recipes gpu agent-clients containers check audit extras release sbom docs format setup protos constraints clean

help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

demo: $(VENV)/.installed-local ## train a tiny model and watch it learn: make demo ARGS=--headless
	$(BIN)/astraflow demo $(ARGS)

demo-llm: $(VENV)/.installed-local ## fetch a small language model and watch it learn: make demo-llm ARGS=--headless
	$(BIN)/astraflow fetch smollm2
	$(BIN)/astraflow run smollm/lora --conversations 4 $(ARGS)

test: $(VENV)/.installed-dev ## run the tests, on two cores with three processes, since many tests wait: make test ARGS="-k recipe"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist worksteal $(ARGS)

test-long: $(VENV)/.installed-dev ## run what is too long for each change: random faults, comparisons of runs, more examples
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 --hypothesis-profile long -m "long or stateful" $(ARGS)

test-lowest: $(LOWEST)/.made ## run the tests of the core with the lowest releases that pyproject.toml admits
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest --numprocesses 3 --dist worksteal -m "not (browser or slow or long)" $(CORE_TESTS) $(NOT_CORE) $(ARGS)

engines: $(VENV)/.installed-dev ## install SGLang and vLLM where they are missing, and test with real servers
	$(BIN)/astraflow engines install --all --yes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m engines $(ARGS)

environments: $(VENV)/.installed-dev ## install environments of other projects where they are missing, and check them
	$(BIN)/python -m tests.environments.foreign
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m environments tests/environments/foreign $(ARGS)

agent-clients: $(VENV)/.installed-dev ## install agents of others where they are missing, and test that they work with the proxy
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.agents.clients $(ARGS)

system-packages: ## install the Debian packages that tests need, with sudo unless root
	@packages="$$($(PYTHON) -m tests.tools packages)" || exit 1; \
	if [ -z "$$packages" ]; then echo "all packages are installed"; exit 0; fi; \
	command -v apt-get >/dev/null || { echo "cannot install $$packages: apt-get is missing; install equivalent packages" >&2; exit 1; }; \
	sudo=; [ "$$(id -u)" = 0 ] || sudo=sudo; \
	$$sudo apt-get update -qq && \
	$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$packages >/dev/null

helm: $(VENV)/.installed-dev ## install the program helm, which renders the chart, into the user's cache
	$(BIN)/python -m deploy.helm.program

soak: $(VENV)/.installed-dev ## run the soak test with random faults: make soak ARGS="--minutes 20 --seed 7"
	OMP_NUM_THREADS=1 $(BIN)/python -m soak $(ARGS)

soak-cluster: $(VENV)/.installed-dev ## run two hosts with PostgreSQL, a bucket and a mirror under faults, as root: make soak-cluster ARGS="--minutes 10 --seed 7"
	OMP_NUM_THREADS=1 $(BIN)/python -m soak.cluster $(ARGS)

soak-hostile: $(VENV)/.installed-dev ## compare the throughput of honest nodes with and without a hostile one: make soak-hostile ARGS="--minutes 4"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile.throughput $(ARGS)

coverage: $(VENV)/.installed-dev ## run the tests with coverage of lines and branches, and write build/coverage/index.html: make coverage ARGS=tests/weights
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist worksteal --cov --cov-report term:skip-covered --cov-report html:build/coverage $(ARGS)

mutants: $(VENV)/.installed-dev ## change code and list the changes that no test notices: make mutants ARGS="astraflow.algorithms.losses.*"
	OMP_NUM_THREADS=1 $(BIN)/mutmut run $(ARGS) && { $(BIN)/mutmut results | grep -v "not checked" || true; }

recipes: $(VENV)/.installed-dev ## run all tiny recipes, one after the other, to their goals: make recipes ARGS="math/tiny --seeds 3"
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.recipe_curves $(ARGS)

gpu: $(VENV)/.installed-dev ## run tests and benchmarks on a GPU, and write build/gpu_report.md: make gpu ARGS="--device cpu"
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.gpu $(ARGS)

containers: $(VENV)/.installed-dev ## test docker-compose.yml in a separate Docker Engine, with faults: needs root on Debian
	$(BIN)/python -m tests.containers $(ARGS)

CHECKS = "ruff check ." "ruff format --check ." mypy "lint-imports --no-cache" codespell "djlint --lint --quiet web" \
	"bandit --quiet --recursive --severity-level high astraflow web maintainer recipes"

check: $(VENV)/.installed-dev ## run all static checks; those after one that fails run too
	@status=0; for tool in $(CHECKS); do echo "$$tool"; $(BIN)/$$tool || status=1; done; exit $$status

audit: $(AUDIT)/.made ## check constraints.txt for known vulnerabilities; needs internet access to PyPI
	$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

extras: ## check that all extras fit together in one environment with the pinned releases, without installing them
	rm -rf build/extras && $(PYTHON) -m venv build/extras
	build/extras/bin/python -m pip install --disable-pip-version-check --quiet --dry-run -c constraints.txt \
		".[$$($(PYTHON) -c 'import tomllib; print(",".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]))')]"

release: $(VENV)/.made ## build the wheel of the last commit into dist, twice, and compare the bytes
	$(INSTALL) --quiet setuptools==84.2.1
	$(BIN)/python -m deploy.release

sbom: release $(AUDIT)/.made ## list the packages that the wheel installs with the extra local: dist/astraflow.cdx.json (CycloneDX)
	rm -rf build/sbom && $(PYTHON) -m venv --without-pip build/sbom
	$(BIN)/python -m pip --python build/sbom/bin/python install --quiet -c constraints.txt "$$(echo dist/*.whl)[local]"
	$(AUDIT)/bin/cyclonedx-py environment build/sbom --pyproject pyproject.toml --output-reproducible --output-file dist/astraflow.cdx.json

docs: $(DOCS)/.made $(VENV)/.installed-dev ## build the site of the documents into build/site; broken links are errors
	rm -rf build/reference && $(BIN)/python -m docs.generate build/reference
	$(DOCS)/bin/python -m docs.generate.site

format: $(VENV)/.installed-dev ## format the code and apply fixes of ruff
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

setup: $(VENV)/.installed-dev ## create .venv with all development dependencies and install the pre-commit hooks
	$(BIN)/pre-commit install

protos: $(VENV)/.installed-dev ## generate astraflow/wire/pb from astraflow/wire/protos
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m astraflow.wire.generate

constraints: $(VENV)/.installed-dev ## write the releases installed in .venv to constraints.txt
	{ grep '^#' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt

clean: ## remove .venv, builds and tool caches
	rm -rf $(VENV) $(AUDIT) $(DOCS) $(LOWEST) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs no development tools. Both targets install again when pyproject.toml or constraints.txt changed.
$(VENV)/.installed-local: $(VENV)/.made $(WRITTEN)
	$(INSTALL) -e '.[local]'
	@$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made $(WRITTEN)
	$(INSTALL) -e '.[local,data,dev]'
	@$(COMPILE)
	@touch $@ $(VENV)/.installed-local

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "cannot create $(VENV): $(PYTHON) is missing; install Python 3.11, or select another: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# Separate environment, so that pip-audit and cyclonedx-py do not affect the releases of the project.
$(AUDIT)/.made:
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --disable-pip-version-check pip-audit==2.10.1 cyclonedx-bom==7.5.0
	@touch $@

# Separate environment, so that the site's packages do not affect the releases of the project.
$(DOCS)/.made: docs/generate/requirements.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --disable-pip-version-check --quiet -r docs/generate/requirements.txt
	@touch $@

# Separate environment without the extras for training, with the oldest release of each package instead of the pinned one.
$(LOWEST)/.made: pyproject.toml constraints.txt tests/lowest_releases.py $(VENV)/.installed-dev
	rm -rf $(LOWEST) && $(PYTHON) -m venv $(LOWEST) && mkdir -p build
	$(BIN)/python -m tests.lowest_releases >build/lowest.txt
	$(LOWEST)/bin/python -m pip install --disable-pip-version-check --quiet -r build/lowest.txt
	$(LOWEST)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps -e .
	$(LOWEST)/bin/python -m pip check
	@touch $@
