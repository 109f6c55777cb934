# Everything works in a fresh clone; nothing has to be typed before any of these.
#
#   make run     the main job on real data: publish, read back, prove, show
#   make test    what a landing needs: Python, Java, Spark, HBase with instances (installs what is missing, or says what to);
#                LANES="python spark" only these
#   make test-long   the rest, for hours: HDFS, HBase 2.5, kills of Spark, half an hour of soak, 6,000 fresh seeds, mutants, Pythons
#   make test-kafka  Kafka's clients in C, Java, Go, JavaScript and Python on a running service; a part of make test-long
#   make kafka-table put the clients and requests that the last make test-kafka saw into docs/kafka.md
#   make check   format, lint, types, and what the house promises of itself: directions of imports, constructors, calls, bounds
#   make quick   a minute on two cores, no JVM: the rooms that only compute, the log, the engine, the contracts in one process
#   make test-pythons   make quick's tests and a bare wheel on every Python that there is or uv can fetch: PYTHONS="3.11 3.12 3.13 3.14"
#   make sim     SEED=n: replay one run of the simulation exactly; TO=m: all from n to m;
#                SIM_FLAGS=--instances: of several instances
#   make corpus  choose anew which seeds of the simulation cover the engine (CANDIDATES=n: from seeds 1 to n)
#   make bugs    search for seeds that find the planted bugs which their seeds no longer find (BUGS_FLAGS=--all: for all)
#   make mutants ROOM=log: change the room's code in 200 places, one at a time; the tests must notice
#                (COUNT=n, SEED=n, JOBS=n; the rooms stand in python/mutants/rooms.py)
#   make hbase   a real HBase to try TMS on, until Ctrl-C: hbase://127.0.0.1:9090 (or HBASE_PORT=n;
#                HBASE_FLAGS="--directory PATH" keeps it)
#   make java    build and test the Java side, the coprocessor, on HBase 2.6 and 2.5
#   make jar     only build the coprocessor, for `tms hbase install`
#   make wheel   dist/: TMS to be installed with pip, with the coprocessor in it
#   make soak    SECONDS=n: real processes, all features, kills and lost answers; SEED=s ROUND=n: one again
#   make orders  exactly once: 10,000 orders, a worker that is killed 200 times
#   make bench   the benchmarks behind docs/benchmarks.md
#   make pictures   the pictures of the console's pages in docs/pictures, anew
#   make chart   render the chart for its tests, after it was changed: needs Helm 3 or 4 (HELM=path)
#   make env     .venv with the locked dependencies and this package (all of the above call it)
#   make env-spark35   .venv-spark35: the same for Spark 3.5, which cannot be beside Spark 4
#   make lock    resolve the dependencies of pyproject.toml anew
#   make clean   remove caches and build output (.venv and .venv-spark35 stay)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PY := .venv/bin/python
STAMP := .venv/.installed-from-lock
PY_SPARK35 := .venv-spark35/bin/python
STAMP_SPARK35 := .venv-spark35/.installed-from-lock
HBASE_PORT ?= 9090

# Modules are compiled once, whatever the environment says, and not by each of the processes that tests start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help env env-spark35 check quick test test-long test-pythons java jar jars wheel hbase hbase-jars hbase-2.5-jars spark35-jars spark-java run chart sim soak mutants orders bench lock clean system-tools
.PHONY: test-kafka kafka-clients kafka-tools kafka-table

help:
	@sed -n 's/^#   //p' Makefile

env: $(STAMP)

$(STAMP): requirements-dev.lock requirements-installer.lock pyproject.toml
	@if ! $(PY) -c '' 2>/dev/null; then \
	  python=""; \
	  for candidate in $${PYTHON:-} python3.11 python3.12 python3 python; do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	      python="$$candidate"; break; \
	    fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "error: no Python 3.11 or newer found; install one, or name it: make env PYTHON=…" >&2; exit 1; \
	  fi; \
	  echo "making .venv with $$("$$python" --version)"; \
	  "$$python" -m venv --clear .venv || { \
	    echo "error: $$python cannot make environments; on Debian: apt-get install python3-venv" >&2; exit 1; }; \
	fi
	@echo "installing the locked dependencies (once; about a minute)"
	@export PIP_DISABLE_PIP_VERSION_CHECK=1 VIRTUAL_ENV=$(CURDIR)/.venv; \
	if $(PY) -m pip install -q --require-hashes -r requirements-installer.lock && \
	   .venv/bin/uv pip install -q --require-hashes -r requirements-dev.lock; then :; else \
	  echo "uv could not; trying pip"; \
	  $(PY) -m pip install -q --require-hashes -r requirements-dev.lock; \
	fi
	@$(PY) -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
	@touch $(STAMP)

env-spark35: $(STAMP_SPARK35)

# hatchling is in .venv only, so the package is made ready there.
$(STAMP_SPARK35): requirements-spark35.lock pyproject.toml | env
	@echo "making .venv-spark35 for pyspark 3.5 (once; about a minute)"
	@$(PY) -m venv --clear --without-pip .venv-spark35
	@export PIP_DISABLE_PIP_VERSION_CHECK=1 VIRTUAL_ENV=$(CURDIR)/.venv-spark35; \
	if .venv/bin/uv pip install -q --require-hashes -r requirements-spark35.lock; then :; else \
	  echo "uv could not; trying pip"; \
	  $(PY) -m pip --python $(PY_SPARK35) install -q --require-hashes -r requirements-spark35.lock; \
	fi
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; \
	$(PY) -c "import sys; from hatchling.build import build_editable as b; b(sys.argv[1])" "$$folder"; \
	$(PY) -m pip --python $(PY_SPARK35) install -q --disable-pip-version-check --no-deps --no-index "$$folder"/*.whl
	@touch $(STAMP_SPARK35)

CHECKED := $(addprefix house/test_,imports.py rails.py prose.py names.py room_lists.py constructors.py signatures.py calls.py) $(addprefix simulation/test_,bounds.py bugs.py)
check: env
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@$(PY) -m pytest -q -p no:cacheprovider -p no:schemathesis $(addprefix python/tests/,$(CHECKED))

# A selection of `make test`, which runs everything: whole rooms, and the contracts on engines in one process. What takes
# seconds by itself is marked `slow`.
QUICK_ROOMS := block compaction/test_compaction.py delayed/test_delay.py engine groups house/test_imports.py log model \
  queues store/test_store.py topics transactions
QUICK_CONTRACTS := client/test_client client/test_client_delay client/test_client_groups client/test_client_transactions
QUICK = -m pytest -q -n 2 --dist loadfile -p no:schemathesis -m 'not slow' \
  --deselect python/tests/queues/test_queue_contract.py::TestHttp \
  $(addprefix python/tests/,$(QUICK_ROOMS) $(addsuffix .py::TestEmbedded,$(QUICK_CONTRACTS)))
quick: env
	@$(PY) $(QUICK)

# Each Python has an environment of its own, .venv-3.13, from the same lock. A Python that is neither here nor to be fetched is
# named and left out; PYTHONS names those that are meant, by version or by path.
PYTHONS ?= 3.11 3.12 3.13 3.14
test-pythons: env
	@folder=$$(mktemp -d); trap 'rm -rf "$$folder"' EXIT; left="" failed=""; \
	for bin in "$$HOME"/.pyenv/versions/3.*/bin; do PATH+=":$$bin"; done; \
	$(PY) -c "import sys; from hatchling.build import build_wheel as b; b(sys.argv[1])" "$$folder" >/dev/null; \
	for python in $(PYTHONS); do \
	  if ! .venv/bin/uv python find -q "$$python" >/dev/null 2>&1 && ! .venv/bin/uv python install -q "$$python" 2>/dev/null; then \
	    left+=" $$python"; continue; \
	  fi; \
	  place=.venv-$${python##*/}; echo "== $$(.venv/bin/uv run -q --no-project --python "$$python" python --version)"; \
	  .venv/bin/uv venv -q --clear --python "$$python" "$$folder/bare"; \
	  VIRTUAL_ENV="$$folder/bare" .venv/bin/uv pip install -q --only-binary :all: "$$folder"/*.whl; \
	  "$$folder/bare/bin/tms" --version; \
	  said=$$("$$folder/bare/bin/tms" serve 2>&1 || true); \
	  [[ $$said == *"pip install 'tms-log[server]'"* ]] || { echo "$$said" >&2; failed+=" $$python"; }; \
	  [ -x $$place/bin/python ] || .venv/bin/uv venv -q --python "$$python" $$place; \
	  VIRTUAL_ENV=$$place .venv/bin/uv pip sync -q --require-hashes requirements-dev.lock; \
	  VIRTUAL_ENV=$$place .venv/bin/uv pip install -q --no-deps "$$folder"/*.whl; \
	  PYTHONPATH=python $$place/bin/python $(QUICK) || failed+=" $$python"; \
	done; \
	if [ -n "$$left" ]; then echo "not run, neither here nor to be fetched:$$left" >&2; fi; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

test: env system-tools
	@$(MAKE) -j2 env-spark35 jars
	@cd python && ../$(PY) -m lanes test $(LANES)

test-long: env system-tools hbase-2.5-jars kafka-clients
	@$(MAKE) -j2 env-spark35 jars
	@cd python && ../$(PY) -m lanes long $(LANES)

test-kafka: kafka-clients
	@cd python && ../$(PY) -m lanes long kafka

kafka-clients: env system-tools kafka-tools
	@$(PY) -m integration.kafka_clients.install
	@PYTHONPATH=python:. $(PY) -m integration.kafka_recipes.page

# The table of clients in docs/kafka.md, as the last `make test-kafka` saw them.
kafka-table: env
	@PYTHONPATH=python:. $(PY) -m integration.kafka_clients.table

# One after the other: two Mavens would write to the same local repository.
jars:
	@$(MAKE) jar
	@$(MAKE) hbase-jars
	@$(MAKE) spark35-jars

java: system-tools
	@mvn -B -ntp -q verify
	@mvn -B -ntp -q -Phbase-2.5 verify

jar: system-tools
	@mvn -B -ntp -q -DskipTests package

wheel: env jar
	@.venv/bin/uv build -q --no-build-isolation --offline --python $(PY) --out-dir dist

hbase: env system-tools
	@$(PY) -m integration.cluster --port $(HBASE_PORT) $(HBASE_FLAGS)

# Fetched before the tests, so that none of them has to wait for it.
hbase-jars: env system-tools
	@$(PY) -m integration.cluster --resolve >/dev/null

hbase-2.5-jars: env system-tools
	@$(PY) -m integration.cluster --resolve --line 2.5 >/dev/null

spark35-jars: env system-tools
	@$(PY) -m integration.cluster --resolve-connector >/dev/null

.PHONY: pictures
pictures: env system-tools
	@cd python && ../$(PY) -m tests.console_pictures

HELM ?= helm
chart: env
	@command -v $(HELM) >/dev/null || { echo "error: $(HELM) is not on PATH; install Helm, or name it: make chart HELM=path" >&2; exit 1; }
	@$(PY) python/tests/deploy/render.py $(HELM)

run: env spark-java
	@$(PY) examples/flights.py

sim: env
	@cd python && ../$(PY) -m sim $(SIM_FLAGS) $(SEED) $(TO)

.PHONY: corpus bugs
corpus: env
	@cd python && nice ../$(PY) -m sim.corpus $(if $(CANDIDATES),--candidates $(CANDIDATES))

bugs: env
	@cd python && ../$(PY) -m sim.bugs $(BUGS_FLAGS)

mutants: env
	@cd python && nice ../$(PY) -m mutants $(ROOM) $(if $(COUNT),--count $(COUNT)) $(if $(SEED),--seed $(SEED)) \
	  $(if $(JOBS),--jobs $(JOBS))

soak: env $(if $(findstring --hbase,$(SOAK_FLAGS))$(findstring --instances,$(SOAK_FLAGS)),jar hbase-jars env-spark35 spark35-jars)
	@$(PY) -m integration.soak --seconds $(or $(SECONDS),180) $(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND)) $(SOAK_FLAGS)

orders: env
	@$(PY) examples/orders.py

# What runs with pyspark 3.5 needs its environment too.
bench: env $(if $(findstring spark_connector,$(BENCH_FLAGS)),env-spark35 spark35-jars)
	@$(PY) -m bench $(BENCH_FLAGS)

# strace injects the faults of the crash tests: kill, I/O error, full disk at the n-th system call.
# systemd checks its unit. openssl makes the certificates of tests. Chromium opens the console's pages. Maven and a JDK build the coprocessor, and fetch and run HBase.
JDK := openjdk-17-jdk-headless
system-tools: TOOLS := strace:strace openssl:openssl systemd-analyze:systemd javac:$(JDK) mvn:maven chromium:chromium
kafka-tools: TOOLS := kcat:kcat node:nodejs npm:npm go:golang-go curl:curl pg_ctlcluster:postgresql
system-tools kafka-tools:
	@missing=""; \
	for tool in $(TOOLS); do command -v "$${tool%%:*}" >/dev/null || missing+=" $${tool#*:}"; done; \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing$$missing"; \
	    apt-get update -qq; \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	  else \
	    echo "error: needed and not on PATH:$$missing; install them with your package manager," \
	      "or run make as root on Debian" >&2; exit 1; \
	  fi; \
	fi

# Spark runs on Java. Without it the examples say what they leave out.
spark-java:
	@if ! command -v java >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing $(JDK)"; \
	  apt-get update -qq; \
	  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(JDK) >/dev/null; \
	fi

COMPILE := .venv/bin/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
  --no-annotate --no-header --no-emit-index-url --no-emit-find-links
SERVICE := --extra server --extra hbase --extra kafka # as it runs anywhere: the image of docker/tms, and tests
lock: env
	@$(COMPILE) --upgrade pyproject.toml $(SERVICE) -o requirements.lock
	@$(COMPILE) --upgrade pyproject.toml $(SERVICE) --group dev -o requirements-dev.lock
	@$(COMPILE) --upgrade pyproject.toml $(SERVICE) --extra spark35 --group spark35 -o requirements-spark35.lock
	@grep '^uv==' requirements-dev.lock | tr -d ' \\' | $(COMPILE) - -o requirements-installer.lock

clean:
	@rm -rf build dist target */target .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis
	@find . -path './.venv*' -prune -o -name __pycache__ -type d -print0 | xargs -0 -r rm -rf
