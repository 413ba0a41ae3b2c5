#!/bin/sh
# Runs the tests of the store in a clone of the last commit that no other account can enter, with a copy of the environment:
# private_clone.sh [ARGUMENTS OF PYTEST]. As root the server of PostgreSQL runs as another account. Run it with `make test-places`.
set -eu
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM
umask 077
clone="$folder/Portico läuft"
git clone --quiet --no-hardlinks . "$clone"
cp -R .venv "$clone/.venv"
cd "$clone"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
.venv/bin/python -m pytest -q -n 3 --dist worksteal "${@:-tests/gateway/store}"
