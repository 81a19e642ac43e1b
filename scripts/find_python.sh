#!/bin/sh
# Print the first Python that can make the environment: 3.11 or newer, with venv.
set -eu
found=
for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    found="$found $candidate is $version;"
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || continue
    if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$candidate"
        exit 0
    fi
    found="$found it lacks venv: apt-get install python$version-venv;"
done
echo "setup: no Python 3.11 or newer that can make a virtual environment (${found:-none found})." >&2
echo "       Install one (on Debian: apt-get install python3 python3-venv), or name yours: make setup PYTHON=/path/to/python3" >&2
exit 1
