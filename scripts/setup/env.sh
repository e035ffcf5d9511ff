#!/usr/bin/env bash
# Print the exports that plain go build, go test, go vet and gopls need. Builds libtokenizers.a if it is missing.
set -euo pipefail
cd "$(dirname "$0")/../.."
tokenizers=$(scripts/setup/tokenizers.sh)
# Go's build cache ignores headers outside the package, so the flags contain a checksum.
header=$(sha256sum csrc/include/rltrain.h)
# Inner quotes: Go splits the flags at spaces.
cat << END
export CGO_CFLAGS="-O2 -g '-I$PWD/csrc/include' -DRLTRAIN_HEADER=0x${header:0:8}"
export CGO_LDFLAGS="-O2 -g '-L$tokenizers'"
export RLTRAIN_LIB="$PWD/build/lib/librltrain.so"
END
