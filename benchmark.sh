#!/usr/bin/env bash
# The papers' experiments, by name: diagnostics/experiments.py, with the Python that is active here.
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
python=$(command -v python || command -v python3) || {
    echo "benchmark.sh: no python here; activate the environment that has requirements.txt" >&2
    exit 2
}
exec "$python" "$here/diagnostics/experiments.py" "$@"
