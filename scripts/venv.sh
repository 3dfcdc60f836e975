#!/bin/sh
# Makes the virtual environment that every target of the Makefile runs in: scripts/venv.sh DIR
# Takes $PYTHON, or the first Python 3.11 or newer that it finds and that can make virtual environments. An environment
# of another Python than $PYTHON is made anew. The versions installed are those of constraints.txt, the build's included.
set -eu
venv=$1
needed='import sys; sys.exit(sys.version_info < (3, 11))'
interpreter='import sys; print(sys.base_prefix, sys.version)'  # the same through a link, a shim and an environment

fail() { echo "mqd: $*" >&2; exit 1; }

if [ -n "${PYTHON:-}" ]; then
  "$PYTHON" -c "$needed" 2>/dev/null || fail "PYTHON=$PYTHON is not Python 3.11 or newer ($("$PYTHON" --version 2>&1 || :))"
  python=$PYTHON
  if [ "$("$venv/bin/python" -c "$interpreter" 2>/dev/null)" = "$("$python" -c "$interpreter")" ]; then ours=yes; else ours=no; fi
else
  ours=yes
  python=
  for candidate in python3.11 python3 python3.12 python3.13 python3.14 python; do
    # run it: a shim of a version manager may stand in the path and fail
    if "$candidate" -c "$needed" >/dev/null 2>&1; then python=$candidate; break; fi
  done
  [ -n "$python" ] || fail "needs Python 3.11 or newer, and found $(python3 --version 2>&1 || echo none). Install one, or name it: make PYTHON=/path/to/python3.11"
fi

if [ $ours = no ] || ! "$venv/bin/python" -c "$needed" >/dev/null 2>&1; then
  "$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python cannot make virtual environments. Install the missing part (Debian: apt install python3-venv), or name another: make PYTHON=/path/to/python3.11"
  echo "mqd: making $venv with $("$python" --version 2>&1)" >&2
  "$python" -m venv --clear "$venv"
fi

echo "mqd: installing into $venv what constraints.txt lists; a minute or two, once" >&2
constraints=$(pwd)/constraints.txt
# the environment variable, not -c: it also holds for the environment that the wheel is built in
PIP_CONSTRAINT=$constraints PIP_DISABLE_PIP_VERSION_CHECK=1 "$venv/bin/python" -m pip install --quiet --editable '.[dev]' \
  || fail "installing failed; it needs a network to the package index"

# PySpark looks for data sources in the folders of sys.path, where an editable install puts nothing
"$venv/bin/python" -c 'import pathlib, sys, sysconfig
pathlib.Path(sysconfig.get_path("purelib"), "mqd-spark.pth").write_text(sys.argv[1] + "\n")' "$(pwd)/spark"
