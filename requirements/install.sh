#!/bin/sh
# Creates the environment $VENV from requirements/$EXTRA.lock with uv, which the environment itself brings along, and installs $PACKAGE into it:
# this folder to work in, or a wheel. Whatever the lock has hashes of is verified. The lock is complete: what a package asks for beyond it is left out
# on purpose (torchvision, whose build on PyPI does not fit torch's CPU build).
# The CPU lock takes torch's CPU build: from a wheel named by PIP_FIND_LINKS where there is one, else from PyTorch's own index.
set -eu
if ! "${PYTHON:-false}" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))'; then
    echo "Python 3.11 or 3.12 is needed; name it with: make PYTHON=/path/to/python3.11" >&2
    exit 2
fi
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
"$VENV/bin/python" -m pip --version >/dev/null 2>&1 || "$VENV/bin/python" -m ensurepip --default-pip >/dev/null
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "uv==0.13.8"
tag=$("$VENV/bin/python" -c 'import sys; print(f"cp{sys.version_info[0]}{sys.version_info[1]}")')
backend=
if [ "$EXTRA" = cpu ]; then
    backend="--torch-backend cpu"
    for folder in ${UV_FIND_LINKS:-}; do
        ls "$folder"/torch-*+cpu-"$tag"-*.whl >/dev/null 2>&1 && backend=
    done
fi
# shellcheck disable=SC2086
"$VENV/bin/uv" pip install --quiet --compile-bytecode --no-deps --python "$VENV/bin/python" $backend -r "requirements/$EXTRA.lock"
# shellcheck disable=SC2086
"$VENV/bin/uv" pip install --quiet --python "$VENV/bin/python" --no-deps ${PACKAGE:--e .}
