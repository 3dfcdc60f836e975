#!/usr/bin/env bash
# Apache Kafka on this machine: the broker that our conformance tests must also pass, and the peer of our benchmarks.
#
#   scripts/kafka.sh fetch                      download the jars from Maven Central once; prints where they are
#   scripts/kafka.sh start N PORT DIR [k=v ...] run N nodes on 127.0.0.1, node i serving on PORT+10*(i-1) (its controller one
#                                               above), data and logs under DIR/i; returns when every node answers
#   scripts/kafka.sh stop DIR                   stop the nodes that were started in DIR and wait for them
#   scripts/kafka.sh format N PORT DIR [k=v ...] what `start` does before it starts the nodes
#   scripts/kafka.sh run DIR NODE               be one node of a formatted DIR, in the foreground, for callers that signal it
#   scripts/kafka.sh tool CLASS [ARG ...]       run a Kafka command-line class, e.g. org.apache.kafka.tools.TopicCommand
#
# Needs Java 17 or newer, and Maven for the first fetch. KAFKA_HOME moves the cache; KAFKA_HEAP is the nodes' heap (default 1g).
set -euo pipefail

VERSION=4.3.1
CLUSTER_ID=bXFkLWNvbmZvcm1hbmNlLQ
KAFKA_HOME=${KAFKA_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/mqd/kafka-$VERSION}
KAFKA_HEAP=${KAFKA_HEAP:-1g}
READY_SECONDS=60
STOP_SECONDS=30

fail() { echo "kafka.sh: $*" >&2; exit 1; }

usage() { sed -n '4,11s/^# \{0,1\}//p' "$0" >&2; exit 2; }

need_java() {
  command -v java >/dev/null || fail "Apache Kafka needs Java 17 or newer, and there is no 'java' in PATH. Install a JRE (Debian: apt install openjdk-17-jre-headless)."
  local major
  major=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1)
  [ "${major:-0}" -ge 17 ] || fail "Apache Kafka $VERSION needs Java 17 or newer; 'java' in PATH is version ${major:-unknown}."
}

fetch() {
  [ -d "$KAFKA_HOME/libs" ] && return
  command -v mvn >/dev/null || fail "fetching Apache Kafka needs Maven, and there is no 'mvn' in PATH. Install it (Debian: apt install maven) or point KAFKA_HOME at a folder whose libs/ holds the jars."
  mkdir -p "$KAFKA_HOME"
  dependency() { echo "<dependency><groupId>$1</groupId><artifactId>$2</artifactId><version>$3</version></dependency>"; }
  {
    echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    echo '<groupId>mqd</groupId><artifactId>kafka-jars</artifactId><version>1</version><dependencies>'
    dependency org.apache.kafka kafka_2.13 "$VERSION"
    dependency org.apache.kafka kafka-tools "$VERSION"
    dependency org.slf4j slf4j-simple 1.7.36
    echo '</dependencies></project>'
  } >"$KAFKA_HOME/pom.xml"
  rm -rf "$KAFKA_HOME/libs.part"
  mvn --quiet --batch-mode --file "$KAFKA_HOME/pom.xml" dependency:copy-dependencies -DoutputDirectory="$KAFKA_HOME/libs.part" >&2 \
    || fail "Maven could not fetch Apache Kafka $VERSION (its output is above)."
  mv "$KAFKA_HOME/libs.part" "$KAFKA_HOME/libs"
}

java_with() { # java_with HEAP CLASS [ARG ...]; replaces this shell
  local heap=$1
  shift
  exec java "-Xmx$heap" -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -Dorg.slf4j.simpleLogger.defaultLogLevel=warn -cp "$KAFKA_HOME/libs/*" "$@"
}

node_port() { echo $((base_port + 10 * ($1 - 1))); }

write_properties() { # write_properties NODE [k=v ...]; later keys win, as in any properties file
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
  [ -f "$1/pid" ] && tr '\0' ' ' 2>/dev/null <"/proc/$(cat "$1/pid")/cmdline" | grep -qF "$1/server.properties"
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
    (java_with 256m kafka.tools.StorageTool format -t "$CLUSTER_ID" -c "$home/server.properties.part") >"$home/format.log" 2>&1 \
      || fail "formatting node $node failed; see $home/format.log"
    mv "$home/server.properties.part" "$home/server.properties"
  done
}

start() {
  format "$@"
  local node home
  for node in $(seq "$nodes"); do
    home=$directory/$node
    running "$home" && fail "node $node of $directory runs already"
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

wait_until_ready() { # an open port is not yet a broker: wait for an answer to the smallest ApiVersions request
  local home=$directory/$1 port deadline=$((SECONDS + READY_SECONDS))
  port=$(node_port "$1")
  until answers "$port"; do
    running "$home" || [ $SECONDS -lt $((deadline - READY_SECONDS + 2)) ] || fail "node $1 died; see $home/log"
    [ $SECONDS -lt $deadline ] || fail "node $1 did not answer on port $port within ${READY_SECONDS}s; see $home/log"
    sleep 0.1
  done
}

answers() ( # length 10; key 18 version 0, correlation id 1, null client id
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
        echo "kafka.sh: $home did not stop within ${STOP_SECONDS}s, killing it" >&2
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
