#!/usr/bin/env bash
# The core for aarch64, cross-compiled and run in emulation (`make neon`): every kernel of every
# table against its double-precision reference, the choice of a table, threads. It says nothing of
# speed.
set -euo pipefail
cd "$(dirname "$0")/../.."

missing=()
need() { command -v "$1" >/dev/null || missing+=("$2"); }
need aarch64-linux-gnu-g++ g++-aarch64-linux-gnu
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static || echo qemu-aarch64)
need "$emulator" qemu-user
need cmake cmake
need make make
if ((${#missing[@]})); then
  echo "make neon needs Debian's packages: apt-get install ${missing[*]}" >&2
  exit 2
fi

folder=build/neon
cmake -S csrc/tests -B "$folder" -DCMAKE_TOOLCHAIN_FILE="$PWD/csrc/tests/aarch64.cmake" >/dev/null
cmake --build "$folder" -j "${JOBS:-2}" --target kernel_check thread_check core

emulate() { "$emulator" -L /usr/aarch64-linux-gnu -cpu "$1" "$folder/$2" "${@:3}"; }

# A processor without the instructions must not be given their table.
refused() {
  local status=0
  emulate "$1" kernel_check "$2" || status=$?
  ((status == 2)) || { echo "$2 is offered to a $1, which cannot run it" >&2; exit 1; }
}
refused neoverse-n1 i8mm
refused cortex-a72 neon

for isa in i8mm neon portable; do emulate max kernel_check "$isa"; done
emulate neoverse-n1 kernel_check neon  # no instruction beyond those asked for
emulate max thread_check 200
