#!/bin/sh
# Run the tests of tensor parallelism with another transformers than the one of .venv: versions.sh
# 5.19.0. The environment is .venv-5.19.0: that transformers alone, and all else from .venv.
set -eu
version=$1
shift
place=.venv-$version
python=$place/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK=1

if [ "$("$python" -c 'import transformers; print(transformers.__version__)' 2>/dev/null)" != "$version" ]; then
    echo "versions: making $place"
    .venv/bin/python -m venv --clear --without-pip "$place"
    rooms='import site; print(site.getsitepackages()[0])'
    others=$(.venv/bin/python -c "$rooms")
    echo "import site; site.addsitedir('$others')" >"$("$python" -c "$rooms")/of_venv.pth"
    # Without its dependencies: what .venv has fits, or transformers says at its import what not.
    .venv/bin/python -m pip --python "$python" install -q --no-deps --ignore-installed "transformers==$version"
fi
"$python" -c 'import transformers, torch; print(f"versions: transformers {transformers.__version__}, torch {torch.__version__}")'
exec "$python" -m pytest -p no:cacheprovider tests/ranks tests/parallel "$@"
