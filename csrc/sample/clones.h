// Wider vectors where available; without contraction the results are identical.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__gnu_linux__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define TIDEMILL_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define TIDEMILL_CLONES
#endif
