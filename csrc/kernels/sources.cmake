# Sources of the kernels, one translation unit per instruction set with its own flags.
# Include this file and add ${TIDEMILL_KERNEL_SOURCES} to a target.
set(TIDEMILL_KERNEL_SOURCES
  ${CMAKE_CURRENT_LIST_DIR}/dispatch.cpp
  ${CMAKE_CURRENT_LIST_DIR}/peaks.cpp
  ${CMAKE_CURRENT_LIST_DIR}/tables/portable.cpp)

# No contraction: a fused multiply-add appears only where it is written. Warning about ABI of
# vector arguments (they never cross a translation unit), and gcc 12's about its own intrinsics.
set(TIDEMILL_KERNEL_OPTIMIZE -O3 CACHE STRING "Optimization of the kernels, whatever the build type")
set(TIDEMILL_KERNEL_FLAGS ${TIDEMILL_KERNEL_OPTIMIZE} -ffp-contract=off -fno-math-errno
  -fno-trapping-math -Wno-psabi -Wno-uninitialized -Wno-maybe-uninitialized)
# The others take an instrumented build most of an hour.
option(TIDEMILL_PORTABLE "Only the portable kernels" OFF)
set(TIDEMILL_AVX2_FLAGS -mavx2 -mfma -mf16c)
# GCC gives out registers by regions, and would keep some of a tile's sums in memory with two free.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND TIDEMILL_AVX2_FLAGS -fira-region=one)
endif()
set(TIDEMILL_AVX512BW_FLAGS
  -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprefer-vector-width=512)
set(TIDEMILL_AVX512_FLAGS ${TIDEMILL_AVX512BW_FLAGS} -mavx512vnni)

if(TIDEMILL_PORTABLE)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/dispatch.cpp PROPERTIES
    COMPILE_DEFINITIONS TIDEMILL_PORTABLE)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64|i[3-6]86)$")
  list(APPEND TIDEMILL_KERNEL_SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/tables/avx2.cpp
    ${CMAKE_CURRENT_LIST_DIR}/tables/avxvnni.cpp
    ${CMAKE_CURRENT_LIST_DIR}/tables/avx512bw.cpp
    ${CMAKE_CURRENT_LIST_DIR}/tables/avx512.cpp
    ${CMAKE_CURRENT_LIST_DIR}/tables/avx512bf16.cpp
    ${CMAKE_CURRENT_LIST_DIR}/tables/amx.cpp)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/tables/avx2.cpp PROPERTIES
    COMPILE_OPTIONS "${TIDEMILL_KERNEL_FLAGS};${TIDEMILL_AVX2_FLAGS}")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/tables/avxvnni.cpp PROPERTIES
    COMPILE_OPTIONS "${TIDEMILL_KERNEL_FLAGS};${TIDEMILL_AVX2_FLAGS};-mavxvnni")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/tables/avx512bw.cpp PROPERTIES
    COMPILE_OPTIONS "${TIDEMILL_KERNEL_FLAGS};${TIDEMILL_AVX512BW_FLAGS}")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/tables/avx512.cpp PROPERTIES
    COMPILE_OPTIONS "${TIDEMILL_KERNEL_FLAGS};${TIDEMILL_AVX512_FLAGS}")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/tables/avx512bf16.cpp PROPERTIES
    COMPILE_OPTIONS "${TIDEMILL_KERNEL_FLAGS};${TIDEMILL_AVX512_FLAGS};-mavx512bf16")
  # Tiles are reached through assembly alone, which needs no option of the compiler's.
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/tables/amx.cpp PROPERTIES
    COMPILE_OPTIONS "${TIDEMILL_KERNEL_FLAGS};${TIDEMILL_AVX512_FLAGS};-mavx512bf16")
endif()
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  set(TIDEMILL_NEON_FLAGS ${TIDEMILL_KERNEL_FLAGS})
  # GCC would move loads ahead before it gives out registers, and spill the sums of a tile for it.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND TIDEMILL_NEON_FLAGS -fno-schedule-insns)
  endif()
  list(APPEND TIDEMILL_KERNEL_SOURCES
    ${CMAKE_CURRENT_LIST_DIR}/tables/neon.cpp
    ${CMAKE_CURRENT_LIST_DIR}/tables/i8mm.cpp)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/tables/neon.cpp PROPERTIES
    COMPILE_OPTIONS "${TIDEMILL_NEON_FLAGS};-march=armv8.2-a+dotprod")
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/tables/i8mm.cpp PROPERTIES
    COMPILE_OPTIONS "${TIDEMILL_NEON_FLAGS};-march=armv8.2-a+dotprod+i8mm+bf16")
endif()
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/tables/portable.cpp PROPERTIES
  COMPILE_OPTIONS "${TIDEMILL_KERNEL_FLAGS}")
