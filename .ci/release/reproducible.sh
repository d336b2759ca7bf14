#!/usr/bin/env bash
# Builds the release twice in different folders, the second time without a compiler cache, and compares
# the bytes: .ci/release/reproducible.sh (twice the minutes of `make wheel`).
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.ci/release/build.sh "$work/one" > /dev/null
mkdir "$work/elsewhere with another name"
CMAKE_CXX_COMPILER_LAUNCHER='' TMPDIR="$work/elsewhere with another name" .ci/release/build.sh "$work/two" > /dev/null
diff <(cd "$work/one" && sha256sum ./*) <(cd "$work/two" && sha256sum ./*)
echo "two builds are equal:"
(cd "$work/one" && sha256sum ./*)
