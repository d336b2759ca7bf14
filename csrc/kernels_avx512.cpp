// All kernels for one instruction set. Nothing here may instantiate a shared inline function (see
// simd/scalar.inl), so no standard library beyond plain types.
#include "kernels.h"
#include "simd/avx512.h"
#if defined(TIDEMILL_AMX_EMULATED)
#include "tests/amx_emulated.h"
#include "tests/halves_emulated.h"
#elif defined(TIDEMILL_AMX)
#include "simd/amx.h"
#include "simd/halves.h"
#endif

namespace tidemill::TIDEMILL_AVX512 {
#include "gemm/kblocks.inl"
#include "norm_rope/elementwise.inl"
#include "gemm/kpack.inl"
#include "gemm/pack.inl"
#include "gemm/activations.inl"
#include "gemm/gemm.inl"
#include "attention/cache.inl"
#include "attention/tiles.inl"
#include "attention/span.inl"
#include "recurrent/scan.inl"
#include "table.inl"
}  // namespace tidemill::TIDEMILL_AVX512
