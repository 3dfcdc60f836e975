#!/usr/bin/env bash
# A standalone Spark cluster on the loopback interface, from the jars of the package pyspark.
#
#   scripts/spark_cluster.sh start WORKERS PORT DIR
#       Start a master on PORT (its web page: PORT+1) and workers with one core each. When all
#       serve, print the URL of the master. Logs and pids are in DIR. The hosts of the workers alternate
#       between 127.0.0.1 and localhost: Spark starts speculative tasks only on another host.
#   scripts/spark_cluster.sh stop DIR
#       Stop the processes that were started in DIR, and wait for their end.
#
# Needs Java 17 or newer. PYTHON: the Python of the workers, with mqd, numpy and pyarrow
# [default: .venv/bin/python].
set -euo pipefail

PYTHON=${PYTHON:-$(dirname "$0")/../.venv/bin/python}
WORKER_MEMORY=${WORKER_MEMORY:-1g}
READY_SECONDS=60
STOP_SECONDS=20

fail() { echo "spark_cluster.sh: $*" >&2; exit 1; }

usage() { sed -n '4,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }

spark_home() {
  "$PYTHON" -c 'from importlib.util import find_spec
print(find_spec("pyspark").submodule_search_locations[0])'
}

alive_workers() {
  "$PYTHON" - "$1" <<'END'
import json, sys, urllib.request
try:
    with urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/json/", timeout=2) as page:
        print(json.load(page)["aliveworkers"])
except OSError:
    print(-1)
END
}

# launch NAME DIR CLASS ARG...: one JVM in the background, its pid in DIR/NAME.pid
launch() {
  local name=$1 dir=$2
  shift 2
  setsid nohup "$SPARK_HOME/bin/spark-class" "$@" >"$dir/$name.log" 2>&1 </dev/null &
  echo $! >"$dir/$name.pid"
}

start() {
  local workers=$1 port=$2 dir=$3 i hosts=(127.0.0.1 localhost)
  command -v java >/dev/null || [ -n "${JAVA_HOME:-}" ] ||
    fail "'java' is not in PATH. Spark needs Java 17, 21 or 25." \
      "Install a JRE (Debian: apt install openjdk-17-jre-headless)."
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  ! ls "$dir"/*.pid >/dev/null 2>&1 ||
    fail "'$dir' already has a cluster. Stop it first: $0 stop $dir"
  PYSPARK_PYTHON=$("$PYTHON" -c 'import sys; print(sys.executable)')
  SPARK_HOME=$(spark_home)
  export PYSPARK_PYTHON SPARK_HOME
  export SPARK_NO_DAEMONIZE=1 SPARK_LOCAL_IP=127.0.0.1 SPARK_DAEMON_MEMORY=256m
  launch master "$dir" org.apache.spark.deploy.master.Master \
    --host 127.0.0.1 --port "$port" --webui-port $((port + 1))
  for i in $(seq "$workers"); do
    launch "worker-$i" "$dir" org.apache.spark.deploy.worker.Worker \
      --host "${hosts[(i - 1) % 2]}" --cores 1 --memory "$WORKER_MEMORY" \
      --webui-port 0 --work-dir "$dir/work-$i" "spark://127.0.0.1:$port"
  done
  for _ in $(seq $((READY_SECONDS * 4))); do
    if [ "$(alive_workers $((port + 1)))" = "$workers" ]; then
      echo "spark://127.0.0.1:$port"
      return
    fi
    sleep 0.25
  done
  stop "$dir"
  fail "the workers did not register within $READY_SECONDS s. See the logs in '$dir'."
}

stop() {
  local dir=$1 file pid
  for file in "$dir"/*.pid; do
    [ -e "$file" ] || continue
    pid=$(cat "$file")
    kill -TERM -- "-$pid" 2>/dev/null || true
  done
  for file in "$dir"/*.pid; do
    [ -e "$file" ] || continue
    pid=$(cat "$file")
    for _ in $(seq $((STOP_SECONDS * 10))); do
      kill -0 -- "-$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL -- "-$pid" 2>/dev/null || true
    rm -f "$file"
  done
}

case "${1:-}" in
  start) [ $# -eq 4 ] || usage; start "$2" "$3" "$4" ;;
  stop) [ $# -eq 2 ] || usage; stop "$2" ;;
  *) usage ;;
esac
