# make setup    everything that volstream needs on this machine: .venv, packages, Java, jars
# make engine-s3  what the engine needs besides for a warehouse in S3
# make broker   what the tests need besides for a Kafka broker
# make servers  what the long tests need besides for servers by others: LocalStack, SeaweedFS, Google's Pub/Sub, Azurite
# make test     setup, then lint and the tests
# make test-long  the other tests: 10,000 files or events, random histories, all clouds end to end, other Sparks, ...
# make test-lowest  unit tests, and those of the console, with the lowest versions that pyproject.toml allows, in .cache/lowest
# make storm    kills the processes of a home at random and looks whether its tables are true (SEED=1 KILLS=1000 CATALOG=sqlite|postgres
#               STORM="--files 2200 --jobs 1"; --help); make fuzz feeds broken inputs to all that reads text (SEED=1 INPUTS=1000000)
# make demo     setup, then the picture demo; demo-s3, demo-oss, demo-gcs and demo-azure: the same in a
#               bucket, without an account (the last two need Go and Node.js); demo-ingest: sensors' readings from three processes
# make bench    setup, then the benchmarks (BENCH="--part live" runs one of them; see --help)
# make screenshots  the pictures of the console in docs/images
# make docs     the site of docs/ as HTML, into docs/_build, after its reference pages were written anew from the code
# make lint     style, types and layers
# make lock     writes requirements.lock anew, from which setup installs (LOCK=--upgrade takes newer versions)
# make release-check  builds the distributions, installs the wheel in a fresh environment elsewhere, and tries it (RELEASE=--fetch:
#               with an empty cache, so that the jars are fetched)
# make clean    removes what the others made in this folder (jars stay in the user's cache)

SHELL := /bin/bash
# Tests start hundreds of processes of volstream: each would compile it anew.
unexport PYTHONDONTWRITEBYTECODE
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup java engine engine-s3 broker servers test test-long test-lowest test-services storm fuzz lint lock screenshots docs demo demo-ingest demo-s3 demo-oss demo-gcs demo-azure bench release-check clean

setup: .venv/packages
	@$(MAKE) --no-print-directory -j 2 engine .venv/compiled

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "volstream needs Python 3.11 or newer, and '$(PYTHON)' is not. Name one: make setup PYTHON=python3.12" >&2; exit 1; }
	@echo "Python environment: making .venv"
	@$(PYTHON) -m venv .venv || { \
	  rm -rf .venv; echo "Python has no venv module. On Debian: apt-get install python3-venv" >&2; exit 1; }

# Exactly what was tested, by checksum; what builds packages that come as source is there first, so that nothing else is fetched.
# Folders of wheels that the environment names may have other builds of the same versions, which pip would take and then refuse.
# PySpark, the largest, comes as source; compressing its wheel, which is unpacked at once, would take 20 seconds. It is installed
# beside the others.
INSTALL := PIP_FIND_LINKS= PYTHONWARNINGS=ignore DIST_EXTRA_CONFIG="$(CURDIR)/.venv/wheels.cfg" \
  $(BIN)/python -m pip install --quiet --no-compile --no-deps --require-hashes --no-build-isolation --requirement

.venv/packages: pyproject.toml requirements.lock requirements-build.lock | .venv/bin/python
	@echo "Python packages: installing into .venv"
	@printf '[bdist_wheel]\ncompression = stored\n' > .venv/wheels.cfg
	@PIP_FIND_LINKS= $(BIN)/python -m pip install --quiet --require-hashes --requirement requirements-build.lock
	@$(INSTALL) <(sed -n '/^pyspark==/,/[^\\]$$/p' requirements.lock) & \
	  $(INSTALL) <(sed '/^pyspark==/,/[^\\]$$/d' requirements.lock) && wait $$!
	@rm -rf volstream.egg-info
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	@touch $@

# Beside the making of the engine's archive. Not by pip, one module after the other; not at their first import, for whoever comes
# first would be told of the warnings that some packages give. Some have files that are for other Pythons: they are left out. So are
# large packages that hardly anything imports.
SELDOM := debugpy|fontTools|matplotlib|mypy|mypyc|networkx|pip|scipy|setuptools|skimage|sympy
.venv/compiled: .venv/packages
	@$(BIN)/python -W ignore -m compileall -q -x '/tests?/|/site-packages/($(SELDOM))/' .venv/lib volstream || true
	@touch $@

# Versions that the lock files have stay, where pyproject.toml allows them; LOCK=--upgrade takes the newest.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  --no-emit-index-url --no-emit-find-links $(LOCK)

# All extras but java, which the machine has.
EXTRAS = $(shell $(BIN)/python -c 'import tomllib; print(*(f"--extra {name}" for name in tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"] if name != "java"))')

lock: .venv/packages
	@$(BIN)/python -m pip install --quiet --group lock
	$(COMPILE) pyproject.toml $(EXTRAS) --group dev --group bench --output-file requirements.lock
	$(COMPILE) --group build --output-file requirements-build.lock

java: .venv/packages
	@if ! $(BIN)/python -c 'from volstream.spark.jvm import install; install.find_java()' 2>/dev/null \
	    && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Java: installing openjdk-17-jre-headless"; \
	  { apt-get update && apt-get install -y openjdk-17-jre-headless; } >/dev/null; \
	fi

# Not a stamp: the jars are in the user's cache, which others may clean, and looking takes a moment.
engine: java
	@$(BIN)/python -m volstream setup

# For a warehouse in S3.
engine-s3: java
	@$(BIN)/python -m volstream setup --s3

# Its jars, for the tests.
broker: java
	@$(BIN)/python -m tests.broker

# Into the user's cache. They need a newer Python, Go and Node.js: without them, the tests of these servers are skipped.
servers: .venv/packages
	@$(BIN)/python -m tests.servers

# Packages of Python beside those of the system, then what needs no more than the packages beside the making of the engine's
# archive. Services are not for the second turn: java, too, may install packages of the system.
test:
	@$(MAKE) --no-print-directory -j 2 .venv/packages test-services
	@$(MAKE) --no-print-directory -j 3 engine broker .venv/compiled lint
	$(BIN)/python -m pytest -n 3 --dist worksteal -m 'not long' tests/unit
	$(BIN)/python -m pytest -n 3 --dist worksteal -m 'not long' --durations=40 tests/integration
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m 'not long' --durations=20 tests/e2e

test-long: setup engine-s3 test-services broker servers
	@$(BIN)/python -m pip install --quiet --group lock
	$(BIN)/python -m pytest -n 2 --dist worksteal --timeout 900 --hypothesis-profile long -m 'long or hypothesis' tests

test-lowest: setup
	@$(BIN)/python -m pip install --quiet --group lock
	$(BIN)/python -m tests.lowest

# Of a service: its name, its package in Debian, and a command that succeeds if it is there. Tests start it themselves: systemd does not.
define service
	@if ! { $(3); }; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "$(1): installing"; \
	    { apt-get update && SYSTEMD_OFFLINE=1 DEBIAN_FRONTEND=noninteractive apt-get install -y $(2); } >/dev/null; \
	  else \
	    echo "$(1): not installed; the tests that need it are skipped (on Debian: apt-get install $(2))"; \
	  fi; \
	fi
endef

test-services:
	$(call service,PostgreSQL,postgresql,command -v pg_ctl >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/pg_ctl' >/dev/null)
	$(call service,Chromium,chromium,command -v chromium >/dev/null)
	$(call service,Prometheus,--no-install-recommends prometheus,command -v prometheus >/dev/null)

SEED ?= 1
KILLS ?= 1000
CATALOG ?= sqlite
INPUTS ?= 1000000

storm: setup test-services
	$(BIN)/python -m tests.storm --seed $(SEED) --kills $(KILLS) --catalog $(CATALOG) $(STORM)

fuzz: .venv/packages
	$(BIN)/python -m tests.fuzz --seed $(SEED) --inputs $(INPUTS)

lint: .venv/packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

screenshots: setup test-services
	mkdir -p docs/images
	SCREENSHOTS=docs/images $(BIN)/python -m pytest -q tests/e2e/test_console.py -k screenshots

docs: .venv/packages
	$(BIN)/python docs/generate.py
	@$(BIN)/python -m pip install --quiet --group docs
	$(BIN)/python -m sphinx --quiet -W --keep-going -b html docs docs/_build

demo: setup
	$(BIN)/python examples/pictures/demo.py

demo-ingest: setup
	$(BIN)/python examples/ingest/demo.py

demo-s3 demo-oss demo-gcs demo-azure: demo-%: setup
	$(BIN)/python examples/pictures/demo.py $*

demo-gcs: server-pubsub
demo-azure: server-azurite

server-%: .venv/packages
	@$(BIN)/python -m tests.servers $*

bench: setup
	$(BIN)/python -m benchmarks $(BENCH)

release-check: setup
	$(BIN)/python -m tests.release $(RELEASE)

clean:
	rm -rf docs/_build .venv .demo .bench .bench-environments .bench-files .cache build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
