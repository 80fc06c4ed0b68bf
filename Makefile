# Everything a developer or user needs, from a fresh clone with git, make and Python >= 3.11.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Python keeps what it has compiled, also where it is told not to: the tests start it thousands of times.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-fabric test check format bench peers torture experiments docs lock clean

help: ## Show what can be made.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | \
	    while IFS='|' read -r target text; do printf '%-20s %s\n' "$$target" "$$text"; done

setup: $(STAMP) ## Install Ringdove and its tools into .venv, at locked versions.

$(STAMP): requirements/dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "Ringdove needs Python 3.11 or newer; say: make $(MAKECMDGOALS) PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup ## A fleet of meters, a pipeline on Spark, things that go wrong: two minutes, with a report.
	@$(BIN)/ringdove demo

demo-fabric: setup ## The same on five servers in two rings, one of which is killed half way.
	@tools/get-program redis-server valkey-server
	@$(BIN)/ringdove demo --fabric

test: setup ## Run the tests.
	@tools/get-program redis-server valkey-server
	@tools/get-program memcached
	@tools/get-program chromium chromium-browser google-chrome
	@tools/get-program libcoap3-bin coap-client-notls coap-client
	@tools/get-program mosquitto
	@tools/get-program mosquitto-clients mosquitto_pub
	@tools/get-program beanstalkd
	@$(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

check: setup ## Lint, check types and style.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: setup ## Put the source into its standard form.
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup ## Measure this machine (minutes).
	@tools/get-program redis-server valkey-server
	@tools/get-program mosquitto
	@for name in engine groups leases backlog e2e latency parked load sqs mqtt fabric spark traces; do \
	    $(BIN)/ringdove bench $$name || exit 1; done

peers: setup ## Measure beside other brokers, which are installed; writes docs/peers-results.md (a quarter of an hour).
	@$(BIN)/ringdove bench peers --save benchmarks/peers/results.json --plot docs/img/peers.png
	@$(BIN)/ringdove bench peers --load benchmarks/peers/results.json --markdown > docs/peers-results.md
	@mkdir -p experiments/out && cp benchmarks/peers/results.json experiments/out/peers.json
	@$(BIN)/python -m experiments results

torture: setup ## Kill the engine and cut its power a thousand times each, kill servers, break a fabric (hours).
	@tools/get-program redis-server valkey-server
	@RINGDOVE_KILLS=1000 RINGDOVE_CUTS=1000 RINGDOVE_EXAMPLES=2000 RINGDOVE_SERVER_KILLS=300 \
	    RINGDOVE_FABRIC_FAULTS=200 RINGDOVE_MQTT_KILLS=100 RINGDOVE_SLOW=1 RINGDOVE_TIER_MESSAGES=1000000 RINGDOVE_TIER_KILLS=30 \
	    RINGDOVE_STANDBY_FAULTS=100 \
	    $(BIN)/python -m pytest -q --timeout=14400 tests/faults tests/stores tests/server tests/fabric tests/mqtt \
	    tests/tiers tests/bench/test_spark.py tests/spark/test_demo.py

experiments: setup ## Repeat the experiments of the source documents: figures and plots (an hour).
	@tools/get-program redis-server valkey-server
	@tools/get-program memcached
	@mkdir -p experiments/out
	@for name in $$($(BIN)/python -c 'from experiments import NAMES; print(*NAMES)'); do \
	    echo "experiment $$name"; $(BIN)/python -m experiments $$name \
	    --json experiments/out/$$name.json --plot experiments/out/$$name.png || exit 1; done
	@for name in e2e load rds; do echo "bench $$name"; \
	    $(BIN)/ringdove bench $$name --json --plot experiments/out/bench-$$name.png \
	    > experiments/out/bench-$$name.json || exit 1; done
	@$(BIN)/python -m experiments results

docs: setup ## Build the documentation as a site, in site/, that works without a network.
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

lock: ## Choose the newest versions that pyproject.toml allows, and lock them.
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe --strip-extras --extra dev --extra plots --extra spark --extra docs \
	    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --output-file requirements/dev.lock pyproject.toml

clean: ## Remove everything that was made.
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
