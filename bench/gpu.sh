#!/usr/bin/env bash
# Every check and benchmark that needs a GPU, in one go, on a machine with PyTorch or JAX and perhaps no TensorFlow:
#
#     bench/gpu.sh [FOLDER]         results in build/gpu, or in FOLDER
#
# PYTHON: the interpreter that has fastfeed and its extras (default: .venv's, else python3). KERAS_BACKEND: torch, jax or
# tensorflow (default: the first of them that is installed). PHOTOS: a folder of .jpg files (default: those of
# $FASTFEED_DATA or ../shared/data; without any, pictures are made). SECONDS_EACH: length of one run (3).
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/gpu}
mkdir -p "$out"
out=$(realpath "$out")
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi
has() { "$PYTHON" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)" 2>/dev/null; }
if [ -z "${KERAS_BACKEND:-}" ]; then
    for name in torch jax tensorflow; do
        if has "$name"; then KERAS_BACKEND=$name; break; fi
    done
fi
export KERAS_BACKEND PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" XLA_PYTHON_CLIENT_PREALLOCATE=false
seconds=${SECONDS_EACH:-3}

command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv | tee "$out/gpu.csv"
if ! "$PYTHON" -c 'import sys; from fastfeed.probes.gpu import GpuMeter; n = GpuMeter().name; print(n or ""); sys.exit(n is None)'; then
    echo "no GPU to be seen (needed: an NVIDIA GPU and nvidia-ml-py)" >&2
    exit 2
fi
photos=${PHOTOS:-${FASTFEED_DATA:-../shared/data}/photos}
if ! ls "$photos"/*.jpg >/dev/null 2>&1; then
    photos=$out/photos
    "$PYTHON" -m bench.made_photos "$photos"
fi

executors=producers
has nvidia.dali && executors=producers,dali-cpu,dali-gpu

failed=()
part() { # NAME COMMAND...: its output goes to a file, too
    local name=$1
    shift
    printf '\n== %s\n' "$name"
    "$@" 2>&1 | tee "$out/$name.txt" || failed+=("$name")
}
bench() { "$PYTHON" -c 'from fastfeed.cli import main; main()' bench --seconds "$seconds" "$@"; }

part checks "$PYTHON" -m pytest -q -m gpu -p no:cacheprovider tests
if has keras; then
    part mnist bench --consumer mnist-keras --threads 1,4,8 --output "$out/mnist"
    part resnet bench --workload "photos:$photos" --consumer resnet50 --batch-size 64 --threads 2,8,16 \
        --augment standard --augment-on "${executors/dali-cpu,/}" --output "$out/resnet"
fi
part augment bench --workload "photos:$photos" --consumer none --batch-size 64 --threads 1,4,8,16 \
    --augment standard --augment-on "$executors" --output "$out/augment"
if has torch; then part gap "$PYTHON" -m bench.device_gap; fi
part photos "$PYTHON" -m bench.photos --gpu --photos "$photos" --workers 4 16 --seconds "$seconds" --output "$out/photos"

printf '\n'
if [ ${#failed[@]} -gt 0 ]; then
    echo "failed: ${failed[*]}; the rest is in $out"
    exit 1
fi
echo "all of it is in $out"
