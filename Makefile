# Each target installs what it needs: a virtual environment in .venv, node packages with the real CLIs in .clis, and of other programs in .peers.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLIS := .clis
PEERS := .peers

.DEFAULT_GOAL := help
.PHONY: help install run test test-long test-places test-cluster test-real test-console test-containers test-all smoke check lint types
.PHONY: types-macos format bench bench-guard bench-peers faults faults-cluster fuzz matrix mutants clean

help: ## Print this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Portico needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12 run")'
	@echo 'Installing Portico into $(VENV)' >&2
	@# An environment whose creation has failed or was interrupted has Python, but no pip.
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@# The former name of the distribution. Removed first: its command has the same name.
	@$(BIN)/python -m pip uninstall -qq --disable-pip-version-check --yes portico
	@rm -rf portico.egg-info
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.run
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(VENV)/.console: tests/console/requirements.txt $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/console/requirements.txt
	@touch $@

$(VENV)/.mutants: tests/mutants/requirements.txt $(VENV)/.dev
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests/mutants/requirements.txt
	@touch $@

$(CLIS)/.installed: tests/real/package.json
	@mkdir -p $(CLIS)
	@cp tests/real/package.json $(CLIS)/package.json
	@npm install --prefix $(CLIS) --no-audit --no-fund --no-package-lock --loglevel=error
	@touch $@

$(CLIS)/console/.installed: tests/console/package.json
	@mkdir -p $(CLIS)/console
	@cp tests/console/package.json $(CLIS)/console/package.json
	@npm install --prefix $(CLIS)/console --no-audit --no-fund --no-package-lock --loglevel=error
	@touch $@

$(CLIS)/acpx/.installed: tests/real/acpx.json
	@mkdir -p $(CLIS)/acpx
	@cp tests/real/acpx.json $(CLIS)/acpx/package.json
	@npm install --prefix $(CLIS)/acpx --no-audit --no-fund --no-package-lock --loglevel=error
	@touch $@

$(CLIS)/acp-client/.installed: tests/real/acp/package.json
	@mkdir -p $(CLIS)/acp-client
	@cp tests/real/acp/package.json $(CLIS)/acp-client/package.json
	@npm install --prefix $(CLIS)/acp-client --no-audit --no-fund --no-package-lock --loglevel=error
	@touch $@

# Mistral Vibe needs Python 3.12, which may be newer than the one here: without any, its test is skipped.
$(CLIS)/agents/.installed: tests/real/agents/package.json tests/real/agents/requirements.txt
	@mkdir -p $(CLIS)/agents
	@cp tests/real/agents/package.json $(CLIS)/agents/package.json
	@npm install --prefix $(CLIS)/agents --no-audit --no-fund --no-package-lock --loglevel=error
	@for python in $(PYTHON) python3.14 python3.13 python3.12 $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[2-9]*/bin/python); do \
		$$python -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null || continue; \
		$$python -m venv $(CLIS)/agents/vibe && $(CLIS)/agents/vibe/bin/python -m pip install --quiet --disable-pip-version-check -r tests/real/agents/requirements.txt && break; \
	done; test -x $(CLIS)/agents/vibe/bin/vibe-acp || echo 'No Python 3.12 or newer was found: Mistral Vibe is not installed.'
	@touch $@

$(CLIS)/model-apis/.installed: tests/real/model_apis/package.json tests/real/model_apis/requirements.txt
	@mkdir -p $(CLIS)/model-apis
	@cp tests/real/model_apis/package.json $(CLIS)/model-apis/package.json
	@npm install --prefix $(CLIS)/model-apis --no-audit --no-fund --no-package-lock --loglevel=error
	@test -x $(CLIS)/model-apis/python/bin/python || $(PYTHON) -m venv $(CLIS)/model-apis/python
	@$(CLIS)/model-apis/python/bin/python -m pip install --quiet --disable-pip-version-check -r tests/real/model_apis/requirements.txt
	@rm -rf $(CLIS)/model-apis/openai-python && mkdir -p $(CLIS)/model-apis/openai-python
	@$(CLIS)/model-apis/python/bin/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary openai \
		--dest $(CLIS)/model-apis/openai-python $$(grep '^openai==' tests/real/model_apis/requirements.txt)
	@cd $(CLIS)/model-apis/openai-python && tar -xzf openai-*.tar.gz --strip-components 1
	@touch $@

# aider has hundreds of megabytes of dependencies, and needs Python 3.10 to 3.12: without any, its test is skipped.
$(CLIS)/aider/.installed: tests/real/model_apis/requirements-aider.txt
	@mkdir -p $(CLIS)/aider
	@for python in $(PYTHON) python3.12 python3.11 python3.10 $(wildcard $(or $(PYENV_ROOT),$(HOME)/.pyenv)/versions/3.1[0-2]*/bin/python); do \
		$$python -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null || continue; \
		$$python -m venv $(CLIS)/aider && $(CLIS)/aider/bin/python -m pip install --quiet --disable-pip-version-check -r tests/real/model_apis/requirements-aider.txt && break; \
	done; test -x $(CLIS)/aider/bin/aider || echo 'No Python 3.10 to 3.12 was found: aider is not installed.'
	@touch $@

$(CLIS)/python/.installed: tests/real/requirements.txt
	@test -x $(CLIS)/python/bin/python || $(PYTHON) -m venv $(CLIS)/python
	@$(CLIS)/python/bin/python -m pip install --quiet --disable-pip-version-check -r tests/real/requirements.txt
	@touch $@

$(PEERS)/.installed: benchmarks/peers/package.json
	@mkdir -p $(PEERS)
	@cp benchmarks/peers/package.json $(PEERS)/package.json
	@npm install --prefix $(PEERS) --no-audit --no-fund --no-package-lock --loglevel=error >&2
	@touch $@

install: $(VENV)/.run ## Make the environment with the portico command

run: $(VENV)/.run ## Start the gateway on 127.0.0.1 and print how to use it
	@$(BIN)/portico serve --hints

# Without compiled modules each process of the suite compiles the gateway, and pytest rewrites the assertions of each test, anew.
test test-long test-cluster test-real test-console test-containers smoke: export PYTHONDONTWRITEBYTECODE =

test: $(VENV)/.dev ## Run the documents' examples, then the suite: no model, no CLI, no network
	@$(BIN)/python -m pytest -q -x tests/documents
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal --durations=10 --ignore=tests/documents -m "not long" --hypothesis-profile=short

test-long: $(VENV)/.dev ## Run the tests that take too long for make test: more combinations, more random inputs, larger loads
	@$(BIN)/python -m pytest -q -n 3 --dist worksteal --durations=10 -m "long or hypothesis" --hypothesis-profile=long

test-places: $(VENV)/.dev ## Run the tests of the store in a clone that other accounts cannot enter
	@tests/private_clone.sh

smoke: $(VENV)/.console $(CLIS)/.installed $(CLIS)/acp-client/.installed ## Test in minutes: a browser, the real CLIs, a container, faults
	@$(BIN)/python -m tests.smoke

test-all: $(VENV)/.dev ## Run all steps of tests, go on where an earlier run was interrupted, and print one table (ALL=--fresh: anew)
	@$(BIN)/python -m tests.all_steps $(ALL)

test-cluster: $(VENV)/.dev ## Run the tests of the protocols against two nodes behind a proxy, and print a table
	@$(BIN)/python -m tests.cluster_table

test-real: $(VENV)/.console $(CLIS)/.installed $(CLIS)/acpx/.installed $(CLIS)/acp-client/.installed $(CLIS)/agents/.installed $(CLIS)/model-apis/.installed $(CLIS)/aider/.installed $(CLIS)/python/.installed ## Run the tests with the real CLIs against model servers on loopback
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/real

test-containers: $(VENV)/.dev $(CLIS)/.installed ## Run the tests of containers of agents, in bwrap and podman if they work
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/drivers/runtime/test_containers.py tests/gateway/agents/test_run_in.py tests/real/test_claude_containers.py tests/real/codex/test_codex_containers.py

test-console: $(VENV)/.console $(CLIS)/console/.installed ## Run the tests of the web console in Chromium
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/console

check: $(VENV)/.dev ## Lint, types on Linux and on macOS, and the import contract
	@$(MAKE) --no-print-directory --jobs=2 lint types types-macos

lint: $(VENV)/.dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/lint-imports --no-cache --no-logo

types: $(VENV)/.dev
	@$(BIN)/mypy

types-macos: $(VENV)/.dev
	@$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin

format: $(VENV)/.dev ## Format the code
	@$(BIN)/ruff check --fix --quiet .
	@$(BIN)/ruff format --quiet .

bench: $(VENV)/.dev ## Run the benchmarks with their floors, in three minutes: a table in Markdown
	@$(BIN)/python -m benchmarks

bench-guard: $(VENV)/.dev ## Compare five short benchmarks with the recorded ones, and fail if one is much worse
	@$(BIN)/python -m benchmarks --guard

bench-peers: $(VENV)/.dev $(PEERS)/.installed $(CLIS)/.installed ## Compare with other programs that serve agents, from npm: tables in Markdown
	@$(BIN)/python -m benchmarks.peers

faults: $(VENV)/.dev ## Kill, stop and starve the daemon in many ways: a table of the violations, in less than ten minutes
	@$(BIN)/python -m tests.faults $(FAULTS)

faults-cluster: FAULTS ?= --quick
faults-cluster: $(VENV)/.dev ## Kill and stop nodes and restart PostgreSQL under load: a table of the violations, in a minute (FAULTS= for 200 sessions)
	@$(BIN)/python -m tests.faults.cluster $(FAULTS)

fuzz: $(VENV)/.dev ## Send random commands and mishaps to sessions for MINUTES=5, or once with SEED=: prints how to repeat a failure
	@$(BIN)/python -m tests.fuzz $(or $(MINUTES),5) $(SEED)

matrix: $(VENV)/.dev ## Check releases of the CLIs (CLI=claude|codex|gemini SINCE=6m N=7, VERSION=V): docs/compatibility.md
	@$(BIN)/python -m tests.matrix $(if $(CLI),--cli $(CLI)) $(if $(SINCE),--since $(SINCE)) $(if $(N),--count $(N)) $(if $(VERSION),--version $(VERSION))

mutants: $(VENV)/.mutants ## Change the product in 100 places and print which changes the tests detect, in hours: docs/testing.md
	@$(BIN)/python -m tests.mutants $(MUTANTS)

clean: ## Remove everything that the other targets create
	rm -rf $(VENV) $(CLIS) $(PEERS) .test-all .mutants build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
