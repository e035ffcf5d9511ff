#!/usr/bin/env bash
# arm64.sh [NAME...]: compile the core for arm64 in build/arm64 and test it under qemu, by default the kernels with each
# instruction set; NAMEs are parts of the names of other tests. Then test the Go packages without C code. Needs Debian's
# g++-aarch64-linux-gnu and qemu-user.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v "$tool" > /dev/null || { echo "skipped: arm64 needs $tool; on Debian or Ubuntu: sudo apt-get install -y g++-aarch64-linux-gnu qemu-user" >&2; exit 0; }
done
names=("$@")
((${#names[@]})) || names=(kernels_ gates_ unpacked_ dequant quant gemm)
qemu=(qemu-aarch64 -cpu max -L /usr/aarch64-linux-gnu)
libtorch=$(go run ./scripts/setup libtorch arm64)
cmake -S . -B build/arm64 "-DLIBTORCH_DIR=$libtorch" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
  -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ > /dev/null
cmake --build build/arm64 --target core_tests -j"$(nproc)"
for set in base neon neon_bf16; do
  echo "core_tests $set"
  "${qemu[@]}" build/arm64/core_tests "$set" "${names[@]}"
done
# qemu cannot start a program of arm64 from within one: packages and tests that start themselves are left to a real processor.
read -ra pure <<< "$(sed -n 's/^PURE := //p' Makefile)"
mapfile -t packages < <(CGO_ENABLED=0 go list "${pure[@]}" | grep -vE '/(internal/program|envs/(code|prompts|reward|sandbox))$')
CGO_ENABLED=0 GOARCH=arm64 go test -timeout 40m -skip '^(TestTwentyKills|TestProcessesAtOnce)$' -exec "${qemu[*]}" "${packages[@]}"
