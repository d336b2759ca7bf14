// All kernels for one instruction set. Nothing here may instantiate a shared inline function (see
// simd/scalar.inl), so no standard library beyond plain types.
#include "kernels/kernels.h"
#include "kernels/simd/neon.h"

namespace tidemill::TIDEMILL_NEON {
#include "kernels/gemm/kblocks.inl"
#include "kernels/norm_rope/elementwise.inl"
#include "kernels/gemm/kpack.inl"
#include "kernels/gemm/pack.inl"
#include "kernels/gemm/activations.inl"
#include "kernels/gemm/gemm.inl"
#include "kernels/gemm/low_rank.inl"
#include "kernels/attention/cache.inl"
#include "kernels/attention/tiles.inl"
#include "kernels/attention/span.inl"
#include "kernels/recurrent/scan.inl"
#include "kernels/table.inl"
}  // namespace tidemill::TIDEMILL_NEON
