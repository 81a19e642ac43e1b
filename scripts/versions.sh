#!/bin/sh
# Run the tests of tensor parallelism with each version of transformers that is named, or else with
# the oldest that lensview takes, the one of .venv, and one that it must refuse. The environment of
# another version, .venv-5.19.0 say, holds that transformers alone, and has all else from .venv.
set -eu
export PIP_DISABLE_PIP_VERSION_CHECK=1
taken="tests/ranks tests/parallel"
refused="tests/ranks/test_versions.py"

# The folder of an environment with this transformers, made if it is not there.
environment() {
    place=.venv-$1
    said=$("$place/bin/python" -c 'import transformers; print(transformers.__version__)' 2>/dev/null || true)
    [ "$said" = "$1" ] && return
    echo "versions: making $place"
    .venv/bin/python -m venv --clear --without-pip "$place"
    packages='import site; print(site.getsitepackages()[0])'
    others=$(.venv/bin/python -c "$packages")
    echo "import site; site.addsitedir('$others')" >"$("$place/bin/python" -c "$packages")/of_venv.pth"
    # Without its dependencies: transformers itself says at its import which of .venv's do not fit.
    .venv/bin/python -m pip --python "$place/bin/python" install -q --no-deps --ignore-installed \
        "transformers==$1"
}

run() {
    "$1" -c 'import transformers as t, torch; print(f"versions: transformers {t.__version__}, torch {torch.__version__}")'
    python=$1
    shift
    "$python" -m pytest -p no:cacheprovider -q "$@"
}

if [ $# -gt 0 ]; then
    for version in "$@"; do
        environment "$version"
        run "$place/bin/python" $taken
        run "$place/bin/python" -m '' $refused
    done
    exit
fi
environment 5.18.0
run "$place/bin/python" -m '' $refused
environment 5.19.0
run "$place/bin/python" $taken
run "$place/bin/python" -m '' $refused
run .venv/bin/python $taken
run .venv/bin/python -m '' $refused
