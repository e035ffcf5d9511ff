#!/usr/bin/env bash
# Run every fuzz target of the module for $FUZZTIME (default 10s).
set -euo pipefail
cd "$(dirname "$0")/.."
grep -rn --include='*_test.go' -oE '^func Fuzz[A-Za-z0-9_]*' . | sort | while IFS=: read -r file _ func; do
  name=${func#func }
  echo "$(dirname "$file") $name"
  go test -run '^$' -fuzz "^$name\$" -fuzztime "${FUZZTIME:-10s}" "$(dirname "$file")" < /dev/null
done
