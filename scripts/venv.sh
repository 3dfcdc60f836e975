#!/bin/sh
# Create the virtual environment of all make targets: scripts/venv.sh DIR
#
# It uses $PYTHON, otherwise the first Python 3.11 or newer in PATH. It replaces an environment that
# was made with another Python than $PYTHON. constraints.txt pins all packages,
# also those of the build.
set -eu
venv=$1
needed='import sys; sys.exit(sys.version_info < (3, 11))'
# prints the same in an environment and through a link or shim
interpreter='import sys; print(sys.base_prefix, sys.version)'

fail() { echo "mqd: $*" >&2; exit 1; }

if [ -n "${PYTHON:-}" ]; then
  "$PYTHON" -c "$needed" 2>/dev/null ||
    fail "PYTHON=$PYTHON is not Python 3.11 or newer ($("$PYTHON" --version 2>&1 || :))"
  python=$PYTHON
  current=$("$venv/bin/python" -c "$interpreter" 2>/dev/null || :)
  if [ "$current" = "$("$python" -c "$interpreter")" ]; then same=yes; else same=no; fi
else
  same=yes
  python=
  for candidate in python3.11 python3 python3.12 python3.13 python3.14 python; do
    # run it: a version manager may have put a shim into PATH that fails
    if "$candidate" -c "$needed" >/dev/null 2>&1; then python=$candidate; break; fi
  done
  [ -n "$python" ] || fail \
    "needs Python 3.11 or newer, found $(python3 --version 2>&1 || echo none)." \
    "Install one, or specify it: make PYTHON=/path/to/python3.11"
fi

if [ $same = no ] || ! "$venv/bin/python" -c "$needed" >/dev/null 2>&1; then
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "'$python' has no module venv or ensurepip." \
      "Install it (Debian: apt install python3-venv)," \
      "or specify another Python: make PYTHON=/path/to/python3.11"
  echo "mqd: creating $venv with $("$python" --version 2>&1)" >&2
  "$python" -m venv --clear "$venv"
fi

echo "mqd: installing the packages of constraints.txt into $venv (once, a minute or two)" >&2
constraints=$(pwd)/constraints.txt
# the variable, not the option -c, also applies to the environment in which pip builds the wheel
PIP_CONSTRAINT=$constraints PIP_DISABLE_PIP_VERSION_CHECK=1 \
  "$venv/bin/python" -m pip install --quiet --editable '.[dev]' ||
  fail "pip failed. It needs access to the package index. See its output above."

# PySpark searches the folders of sys.path for data sources; an editable install adds none there
"$venv/bin/python" -c 'import pathlib, sys, sysconfig
path = pathlib.Path(sysconfig.get_path("purelib"), "mqd-spark.pth")
path.write_text(sys.argv[1] + "\n")' "$(pwd)/spark"
