#!/usr/bin/env bash
# The C++ core under sanitizers, in a build folder of its own (`make sanitizers`):
#   address,undefined: every kernel of every instruction set, and steps driven from Python
#   thread:            the thread pool, the queue of steps, and packing beside them
# and, where it is asked for (fuzz), hostile model files: INPUTS of them (100,000) are read as `make
# fuzz` reads them, with the portable kernels instrumented.
set -euo pipefail
cd "$(dirname "$0")/../.."
python="$PWD/.venv/bin/python"
folder="$PWD/build/sanitizers"
jobs="${JOBS:-2}"
what="${*:-kernels steps threads}"

export ASAN_OPTIONS="detect_leaks=0:strict_string_checks=1:abort_on_error=0:exitcode=99"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
export TSAN_OPTIONS="exitcode=99:halt_on_error=1"

build() { # folder, source, sanitizers, target, further options
  # At -O3, instrumented kernels take a compiler ten minutes each. Position independent all, so that
  # a compiler's cache has the kernels of one part for the other.
  cmake -S "$2" -B "$folder/$1" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O1" \
    -DTIDEMILL_KERNEL_OPTIMIZE=-O1 -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
    -DCMAKE_CXX_FLAGS="-fsanitize=$3 -fno-omit-frame-pointer -g1" \
    -DCMAKE_EXE_LINKER_FLAGS="-fsanitize=$3" "${@:5}" >"$folder/$1.configured"
  cmake --build "$folder/$1" --target "$4" -j "$jobs" >"$folder/$1.built"
}

preload_for() { # folder; sets preload, what must be there before Python
  local compiler
  compiler="$(sed -n 's/^CMAKE_CXX_COMPILER:[^=]*=//p' "$folder/$1/CMakeCache.txt")"
  preload="$("$compiler" -print-file-name=libasan.so):$("$compiler" -print-file-name=libstdc++.so)"
}

mkdir -p "$folder"
for part in $what; do
  case "$part" in
    kernels)
      build kernels csrc/tests address,undefined kernel_check
      "$folder/kernels/kernel_check"
      ;;
    steps)
      # The module's name tells Python's stable ABI; the plugin loads it instead of the usual one.
      build steps . address,undefined all -DPython_EXECUTABLE="$python" \
        -DSKBUILD_SABI_VERSION=3.11 -DTIDEMILL_SANITIZE=address,undefined
      preload_for steps
      # One test lets memory run out, which the address sanitizer takes for the end of the world.
      # Leaks are not looked for: the interpreter itself keeps what it has at the end.
      LD_PRELOAD="$preload" TIDEMILL_SANITIZED="$folder/steps" PYTHONPATH=tests PYTHONMALLOC=malloc \
        "$python" -m pytest -q -p helpers.sanitized_core -p no:cacheprovider \
        tests/base/test_texts.py tests/base/test_text_lists.py tests/text/test_merged_vocabulary.py \
        tests/backends/test_native_steps.py tests/backends/test_native_sampling.py \
        tests/backends/test_native_reference.py tests/backends/test_native_slices.py \
        --deselect tests/text/test_merged_vocabulary.py::test_a_million_of_one_character_takes_no_second_and_no_giving_up \
        --deselect tests/backends/test_native_steps.py::test_a_step_that_runs_out_of_memory_fails_with_those_after_it
      ;;
    fuzz)
      build fuzz . address,undefined all -DPython_EXECUTABLE="$python" \
        -DSKBUILD_SABI_VERSION=3.11 -DTIDEMILL_SANITIZE=address,undefined -DTIDEMILL_PORTABLE=ON
      preload_for fuzz
      LD_PRELOAD="$preload" TIDEMILL_SANITIZED="$folder/fuzz" PYTHONPATH=tests PYTHONMALLOC=malloc \
        "$python" -m fuzz.run --inputs "${INPUTS:-100000}" --seed "${SEED:-2}" --sanitized \
        --report docs/fuzz.md
      ;;
    threads)
      build threads csrc/tests thread thread_check
      "$folder/threads/thread_check"
      ;;
    *)
      echo "unknown part $part; there are kernels, steps, threads, fuzz" >&2
      exit 2
      ;;
  esac
  echo "$part: clean"
done
