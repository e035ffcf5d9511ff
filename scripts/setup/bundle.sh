#!/usr/bin/env bash
# Build build/rltrain-tests-linux-MACHINE.tar.xz: rltrain, its two libraries, and tests, but not libtorch. Running it needs
# libtorch 2.11.0 from $LIBTORCH, the cache or python3's torch.
set -euo pipefail
cd "$(dirname "$0")/../.."
name=rltrain-tests-linux-$(uname -m) most=$((64 << 20))
folder=$PWD/build/bundle/$name
rm -rf build/bundle
mkdir -p "$folder"/{bin,lib,tests}
scripts/setup/core.sh core_tests
scripts/setup/cuda.sh cuda_tests
cp build/lib/librltrain.so build/lib/librltrain_cuda.so "$folder/lib/"
programs=("$folder"/tests/{core,cuda}_tests)
cp build/core_tests build/cuda_tests "$folder/tests/"
strip "$folder"/lib/* "${programs[@]}"
# rltrain locates libtorch when it runs.
go run ./scripts/setup portable "$folder"/lib/* "${programs[@]}"
eval "$(scripts/setup/env.sh)"
go build -ldflags='-s -w' -o "$folder/bin/rltrain" ./cmd/rltrain
for package in torch torch/transformers; do
  mkdir -p "$folder/tests/$package"
  go test -c -ldflags='-s -w' -o "$folder/tests/$package/test" "./$package"
  if [[ -d $package/testdata ]]; then cp -r "$package/testdata" "$folder/tests/$package/"; fi
done
mkdir -p "$folder/tests/csrc"
cp -r csrc/include "$folder/tests/csrc/" # for a test that reads the headers
cp scripts/setup/bundle_tests.sh "$folder/tests/run.sh"
cp LICENSE "$folder/"
tar -C build/bundle --owner=0 --group=0 --sort=name -c "$name" | xz -T0 > "build/$name.tar.xz"
size=$(stat -c %s "build/$name.tar.xz")
if ((size > most)); then
  echo "error: build/$name.tar.xz has $size bytes, more than $most" >&2
  exit 1
fi
# The bundle runs where glibc has at least the newest version that a file requires.
glibc=$(objdump -T "$folder"/bin/* "$folder"/lib/* "$folder"/tests/core_tests | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
echo "build/$name.tar.xz: $((size >> 20)) MiB; needs ${glibc/_/ } or newer, and libtorch 2.11.0"
