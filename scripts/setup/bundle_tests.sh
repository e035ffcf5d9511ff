#!/usr/bin/env bash
# Run a bundle's tests with the libtorch of $LIBTORCH, or the one that rltrain finds. Arguments go to the Go tests,
# for example -test.run CUDA or -test.bench .
set -euo pipefail
cd "$(dirname "$0")"
libtorch=${LIBTORCH:-$(../bin/rltrain version --json | sed -n 's/.*"folder": "\(.*\)",/\1/p')}
sets=(base avx2 avx512 avx512_bf16)
[[ $(uname -m) != aarch64 ]] || sets=(base neon neon_bf16)
for set in "${sets[@]}"; do
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
