#!/usr/bin/env bash
# What a machine with one GPU can tell in under 8 minutes, with nothing to download: equality on CUDA, step times, and
# the ladder of the paper's Table 6, with graphs and without. `bash bench/gpu_check.sh OUT [seconds]`
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec "${PYTHON:-python3}" bench/gpu_check.py --out "${1:?where the results go}" --seconds "${2:-450}"
