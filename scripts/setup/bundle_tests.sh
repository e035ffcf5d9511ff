#!/usr/bin/env bash
# Run a bundle's tests with the libtorch of $LIBTORCH, by default that of python3's torch. Arguments go to the Go tests,
# for example -test.run CUDA or -test.bench .
set -euo pipefail
cd "$(dirname "$0")"
libtorch=${LIBTORCH:-$(cd / && python3 -c "import importlib.util, os; print(os.path.dirname(importlib.util.find_spec('torch').origin))")}
for set in base avx2 avx512 avx512_bf16; do
  echo "core_tests $set"
  LD_LIBRARY_PATH=$libtorch/lib OMP_WAIT_POLICY=PASSIVE ./core_tests "$set" || [[ $? == 77 ]] # 77: not supported by this CPU
done
if command -v nvidia-smi > /dev/null; then
  echo "cuda_tests device"
  LD_LIBRARY_PATH=$libtorch/lib ./cuda_tests device
fi
export RLTRAIN_LIB=$PWD/../lib/librltrain.so
for package in torch torch/transformers; do
  echo "$package"
  (cd "$package" && ./test "$@")
done
