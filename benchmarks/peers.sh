#!/usr/bin/env bash
# Makes an environment for each peer that the benchmarks compare with: benchmarks/.venvs/<peer>, with the versions of
# benchmarks/constraints-<peer>.txt. The peers never enter the environment of the package. PYTHON chooses the interpreter.
set -euo pipefail
cd "$(dirname "$0")"

install_peer() {
    local peer=$1
    shift
    "${PYTHON:-python3}" -m venv ".venvs/$peer"
    ".venvs/$peer/bin/python" -m pip install --quiet --constraint "constraints-$peer.txt" "$@"
    echo "$peer is ready: benchmarks/.venvs/$peer/bin/python"
}

install_peer sb3 torch stable-baselines3 'gymnasium[mujoco]'
install_peer rllib torch 'ray[rllib]' 'gymnasium[mujoco]'
