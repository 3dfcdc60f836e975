#!/usr/bin/env bash
# Apache Kafka on this machine. The conformance tests must pass against it, too, and the benchmarks
# compare mqd with it.
#
#   scripts/kafka.sh fetch
#       Download the jars from Maven Central once, and print their folder.
#   scripts/kafka.sh start N PORT DIR [k=v ...]
#       Start N nodes on 127.0.0.1, and wait until all serve. Node i listens on PORT+10*(i-1), its
#       controller on the next port. Data and logs are in DIR/i.
#   scripts/kafka.sh stop DIR
#       Stop the nodes that were started in DIR, and wait for their end.
#   scripts/kafka.sh format N PORT DIR [k=v ...]
#       Format the directories of N nodes, as `start` does first.
#   scripts/kafka.sh run DIR NODE
#       Run one node of a formatted DIR in the foreground, for callers that send signals to it.
#   scripts/kafka.sh tool CLASS [ARG ...]
#       Run a command-line class of Kafka, for example org.apache.kafka.tools.TopicCommand.
#
# Needs Java 17 or newer, and Maven for the first fetch. KAFKA_HOME: the folder of the jars.
# KAFKA_HEAP: the heap of each node [default: 1g].
set -euo pipefail

VERSION=4.3.1
CLUSTER_ID=bXFkLWNvbmZvcm1hbmNlLQ
KAFKA_HOME=${KAFKA_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/mqd/kafka-$VERSION}
KAFKA_HEAP=${KAFKA_HEAP:-1g}
READY_SECONDS=180
STOP_SECONDS=30

fail() { echo "kafka.sh: $*" >&2; exit 1; }

usage() { sed -n '5,18s/^# \{0,1\}//p' "$0" >&2; exit 2; }

need_java() {
  command -v java >/dev/null || fail "'java' is not in PATH. Apache Kafka needs Java 17 or newer." \
    "Install a JRE (Debian: apt install openjdk-17-jre-headless)."
  local major
  major=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
  [ "${major:-0}" -ge 17 ] || fail "'java' in PATH is version ${major:-unknown}." \
    "Apache Kafka $VERSION needs Java 17 or newer."
}

fetch() {
  [ -d "$KAFKA_HOME/libs" ] && return
  command -v mvn >/dev/null || fail "'mvn' is not in PATH." \
    "The download of Apache Kafka needs it. Install Maven (Debian: apt install maven)," \
    "or set KAFKA_HOME to a folder with the jars in libs/."
  mkdir -p "$KAFKA_HOME"
  dependency() {
    echo "<dependency><groupId>$1</groupId><artifactId>$2</artifactId>"
    echo "<version>$3</version></dependency>"
  }
  {
    echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    echo '<groupId>mqd</groupId><artifactId>kafka-jars</artifactId><version>1</version>'
    echo '<dependencies>'
    dependency org.apache.kafka kafka_2.13 "$VERSION"
    dependency org.apache.kafka kafka-tools "$VERSION"
    dependency org.slf4j slf4j-simple 1.7.36
    echo '</dependencies></project>'
  } >"$KAFKA_HOME/pom.xml"
  rm -rf "$KAFKA_HOME/libs.part"
  mvn --quiet --batch-mode --file "$KAFKA_HOME/pom.xml" \
    dependency:copy-dependencies -DoutputDirectory="$KAFKA_HOME/libs.part" >&2 ||
    fail "Maven cannot download Apache Kafka $VERSION. See its output above."
  mv "$KAFKA_HOME/libs.part" "$KAFKA_HOME/libs"
}

java_with() { # java_with HEAP CLASS [ARG ...]; replaces this shell
  local heap=$1
  shift
  exec java "-Xmx$heap" -XX:+UseG1GC -XX:MaxGCPauseMillis=20 \
    -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$KAFKA_HOME/libs/*" "$@"
}

node_port() { echo $((base_port + 10 * ($1 - 1))); }

write_properties() { # write_properties NODE [k=v ...]; the last value of a key counts
  local node=$1 port replicas voters=() i
  shift
  port=$(node_port "$node")
  replicas=$((nodes < 3 ? nodes : 3))
  for i in $(seq "$nodes"); do voters+=("$i@127.0.0.1:$(($(node_port "$i") + 1))"); done
  cat <<PROPERTIES
process.roles=broker,controller
node.id=$node
controller.quorum.voters=$(IFS=,; echo "${voters[*]}")
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:$port,CONTROLLER://127.0.0.1:$((port + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$port
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$directory/$node/data
num.partitions=1
default.replication.factor=$replicas
min.insync.replicas=$((replicas > 2 ? 2 : 1))
offsets.topic.replication.factor=$replicas
transaction.state.log.replication.factor=$replicas
transaction.state.log.min.isr=$((replicas > 2 ? 2 : 1))
share.coordinator.state.topic.replication.factor=$replicas
share.coordinator.state.topic.min.isr=$((replicas > 2 ? 2 : 1))
group.initial.rebalance.delay.ms=0
PROPERTIES
  [ $# -eq 0 ] || printf '%s\n' "$@"
}

running() { # running NODE_DIRECTORY: is the process of its pid file a node of that directory?
  [ -f "$1/pid" ] &&
    tr '\0' ' ' 2>/dev/null <"/proc/$(cat "$1/pid")/cmdline" | grep -qF "$1/server.properties"
}

format() {
  [ $# -ge 3 ] || usage
  nodes=$1 base_port=$2
  mkdir -p "$3"
  directory=$(cd "$3" && pwd)
  shift 3
  need_java
  fetch
  local node home
  for node in $(seq "$nodes"); do
    home=$directory/$node
    mkdir -p "$home"
    [ ! -f "$home/server.properties" ] || continue
    write_properties "$node" "$@" >"$home/server.properties.part"
    (
      java_with 256m kafka.tools.StorageTool format \
        -t "$CLUSTER_ID" -c "$home/server.properties.part"
    ) >"$home/format.log" 2>&1 || fail "cannot format node $node. See '$home/format.log'."
    mv "$home/server.properties.part" "$home/server.properties"
  done
}

start() {
  format "$@"
  local node home
  for node in $(seq "$nodes"); do
    home=$directory/$node
    running "$home" && fail "node $node of '$directory' already runs"
    (java_with "$KAFKA_HEAP" kafka.Kafka "$home/server.properties") >"$home/log" 2>&1 </dev/null &
    echo $! >"$home/pid"
  done
  for node in $(seq "$nodes"); do wait_until_ready "$node"; done
  echo "kafka: $nodes node(s) from 127.0.0.1:$base_port"
}

run() {
  [ $# -eq 2 ] || usage
  local home
  home=$(cd "$1/$2" && pwd)
  java_with "$KAFKA_HEAP" kafka.Kafka "$home/server.properties"
}

wait_until_ready() { # wait for a response to ApiVersions: a port is open before the broker serves
  local home=$directory/$1 port deadline=$((SECONDS + READY_SECONDS))
  port=$(node_port "$1")
  until serves "$port"; do
    running "$home" || [ $SECONDS -lt $((deadline - READY_SECONDS + 2)) ] ||
      fail "node $1 has ended. See '$home/log'."
    [ $SECONDS -lt $deadline ] ||
      fail "node $1 does not serve on port $port after $READY_SECONDS s. See '$home/log'."
    sleep 0.1
  done
}

serves() ( # length 10; key 18 version 0, correlation id 1, null client id
  exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 1
  printf '\0\0\0\12\0\22\0\0\0\0\0\1\377\377' >&3
  [ "$(head -c 4 <&3 | wc -c)" -eq 4 ]
) 2>/dev/null

stop() {
  [ $# -eq 1 ] || usage
  [ -d "$1" ] || return 0
  local directory homes=() home deadline
  directory=$(cd "$1" && pwd)
  for home in "$directory"/*/; do
    home=${home%/}
    if running "$home"; then
      kill "$(cat "$home/pid")"
      homes+=("$home")
    fi
  done
  deadline=$((SECONDS + STOP_SECONDS))
  for home in ${homes[@]+"${homes[@]}"}; do
    while running "$home"; do
      if [ $SECONDS -ge $deadline ]; then
        echo "kafka.sh: '$home' has not stopped after $STOP_SECONDS s: killing it" >&2
        kill -9 "$(cat "$home/pid")"
      fi
      sleep 0.1
    done
    rm -f "$home/pid"
  done
}

command=${1:-}
[ $# -eq 0 ] || shift
case $command in
  fetch) fetch; echo "$KAFKA_HOME" ;;
  start) start "$@" ;;
  format) format "$@" ;;
  run) run "$@" ;;
  stop) stop "$@" ;;
  tool) [ $# -ge 1 ] || usage; need_java; fetch; java_with 512m "$@" ;;
  *) usage ;;
esac
