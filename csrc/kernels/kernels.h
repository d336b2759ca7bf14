// The kernels' contract: one table of functions per instruction set, chosen at run time.
//
// Invariants every kernel keeps (promise 6):
//  - the arithmetic of one output element does not depend on how many rows are computed together,
//    nor on which thread computes it: sums over k run in one fixed order, no split-K;
//  - tails go through the same (masked or zero-padded) vector code as full tiles;
//  - no fast-math, no implicit contraction (-ffp-contract=off): fma only where written.
#pragma once
#include <cstddef>
#include <cstdint>

namespace tidemill {

// Storage of a source matrix (a row is contiguous) and of a packed one.
enum class WeightType : int {
  F32 = 0, F16 = 1, BF16 = 2, Q8_0 = 3, Q4_0 = 4, Q4_K = 5, Q5_K = 6, Q6_K = 7,
  I8 = 8,  // a row: its float scale, then k int8
  MXFP4 = 9, IQ4_NL = 10, Q4_1 = 11, Q5_0 = 12, Q5_1 = 13
};
// Formats that activations are converted to before a matrix product. I8: one float scale per 32 values.
// I8SignMagnitude: the same values, magnitudes and signs stored separately. I8Row: one scale per row.
// I8Block: one scale per 256 values.
enum class ActType : int { F32 = 0, BF16 = 1, I8 = 2, I8Row = 3, I8Block = 4, I8SignMagnitude = 5 };
constexpr int kActTypes = 6;
// I8: a float scale per token and head. I4: a bfloat16 scale and minimum, for K per token and kKvGroup
// values of a head, for V per token and head.
enum class KvType : int { F32 = 0, BF16 = 1, I8 = 2, I4 = 3 };

constexpr int64_t kPanel = 32;     // output rows (n) per packed panel
constexpr int64_t kMaxCachedStride = 272;  // floats; rows closer than this are read again soon and stay cached
constexpr int64_t kSpan = 512;     // absolute positions per attention span
constexpr int64_t kKvGroup = 32;   // values of K under one scale of an I4 cache

// A matrix [n, k] repacked into panels of kPanel output rows. Panel p starts at
// data + p * panel_bytes; the last panel is padded with zero rows.
struct PackedMatrix {
  WeightType type;
  ActType act;         // activation type this matrix is multiplied with
  int64_t n, k;
  int64_t panel_bytes;
  const uint8_t* data; // 64-byte aligned
};

// A low-rank change of a product with a matrix [n, k]: y becomes (y + B (scale * A x)) * factor + shift.
// Values of A and B are float if `wide`, else bfloat16; x is packed as F32 or BF16 activations
// accordingly.
constexpr int64_t kLowRankStep = 32;  // rows of A are zero-padded to a multiple of so many values
struct LowRank {
  bool wide;
  int64_t n, k, rank;          // rank 0: only factor and shift
  int64_t a_stride;            // bytes
  const uint8_t *a, *b;        // [rank, k]; panels [rank, kPanel] of B, the last padded with zeros
  float scale;
  const float *factor, *shift; // per output, padded to whole panels, or null

  ActType act() const { return wide ? ActType::F32 : ActType::BF16; }
};

// Geometry and storage of one layer's KV cache. The layout inside a block is the kernels' own.
struct KvLayer {
  KvType type;
  int32_t block_size;  // 16, 32, 64 or 128
  int32_t kv_heads, head_dim, v_dim;  // widths of a head's K and of its V
  uint8_t* base;       // block b starts at base + b * block_stride, 64-byte aligned
  int64_t block_stride;
};

struct AttnShape {
  int32_t heads, kv_heads, head_dim, v_dim;
  float scale;
  int64_t window;      // 0: full attention; else the query at p sees positions > p - window
                       // and, if not causal, positions < p + window
  float softcap = 0;   // 0: none; else scores s become softcap * tanh(s / softcap)
  const float* slopes = nullptr;  // per head: ALiBi slope, subtracted from a score per token of distance
  bool chunked = false;           // chunked attention: windows start at multiples of `window` and do not slide
  bool causal = true;
  int64_t seen_to = 0;            // not causal: every query sees the positions below this one

  // First position visible to the query at `pos`.
  int64_t oldest(int64_t pos) const {
    if (window <= 0) return 0;
    if (chunked) return pos / window * window;
    return pos < window ? 0 : pos - window + 1;
  }
  // One past the last query that sees position `pos` (ignoring the end of the text).
  int64_t last_seer(int64_t pos) const {
    return chunked ? (pos / window + 1) * window : pos + window;
  }
  // First query that sees position `pos` (ignoring the beginning of the text).
  int64_t first_seer(int64_t pos) const {
    if (causal) return pos;
    return window > 0 ? pos - window + 1 : 0;
  }
  // One past the last position visible to the query at `pos`.
  int64_t end(int64_t pos) const {
    if (causal) return pos + 1;
    return window > 0 && pos + window < seen_to ? pos + window : seen_to;
  }
};

// K and V to prefetch after a span: positions [from, to) of a KV head. A null table means nothing.
struct AttnNext {
  const int32_t* block_table = nullptr;
  int64_t kv_head = 0, from = 0, to = 0;
};

// Activation of a feed-forward block. (Sigmoid is used by attention output gates only.)
enum class Activation : int { Silu, Gelu, GeluTanh, Relu, Relu2, SwigluClamped, Sigmoid };

// One head of a recurrent mixer over the tokens of a row; see KernelTable::scan.
struct Scan {
  int64_t count, key_dim, value_dim;
  bool delta;                // delta rule: the state's prediction for the key is subtracted from the value
  const float *q, *k, *v;    // of the first token
  const float *decay, *gain; // one per token
  float* out;                // [value_dim]
  int64_t stride;            // floats between tokens, for every array above
  float skip;                // weight of the value added to the output
  const float* from;         // state [key_dim, value_dim] before the first token; null: zeros
  float* to;                 // state after the last token; must differ from `from`
};

// K and V that a thread prefetches while it computes matrix products: byte ranges relative to `base`. A
// few lines are prefetched per group of weights, as many as leave the product's own reads undisturbed.
// The position is kept between products.
struct ByteRange {
  int64_t from, to;
};
struct alignas(64) KvPrefetch {
  const uint8_t* base = nullptr;
  const ByteRange *next = nullptr, *last = nullptr;  // ranges not started yet
  const uint8_t *at = nullptr, *to = nullptr;        // current range
};

struct KernelTable {
  const char* isa;     // name, such as "avx2"; the value of --isa

  // --- matrices ---
  // Activation type for a weight type when computing in float32 or bfloat16.
  ActType (*act_type)(WeightType weight, bool float32_compute);
  int64_t (*panel_bytes)(WeightType weight, ActType act, int64_t k);
  // Packs kPanel rows starting at row n0 (zero rows past n) from `source`, whose rows have type `from`,
  // into `panel`. Either from == to, or `from` is F32, F16 or BF16 and `to` one of F32, F16,
  // BF16, Q8_0, Q4_0 and I8 (the other types are packed only from themselves). Quantization follows GGUF's
  // reference rule (Q8_0: d = max|x| / 127; Q4_0: d = x_absmax / -8). I8 uses Q8_0's rule with the
  // whole row as its group.
  void (*pack_panel)(WeightType from, const void* source, WeightType to, ActType act,
                     int64_t n0, int64_t n, int64_t k, uint8_t* panel);
  // A multiple of 64. The layouts of packed activations and panels belong to this table: rows packed by
  // one table must not be passed to another table's gemm.
  int64_t (*act_row_bytes)(ActType act, int64_t k);
  void (*pack_act)(ActType act, const float* x, int64_t k, uint8_t* out);  // one row
  // Granularity of pack_act_part in values; 0: only a whole row can be packed.
  int64_t (*act_part)(ActType act);
  // Packs values [from, from + n) of a row of k values whose packed form begins at `out`; `x` points at
  // the first of them. `from` and `n` are multiples of act_part(act), except at the end of the row. The
  // result equals pack_act of the whole row.
  void (*pack_act_part)(ActType act, const float* x, int64_t from, int64_t n, int64_t k,
                        uint8_t* out);
  // out[m * ldo + (p * kPanel + j)] = sum_k act[m][k] * w[p * kPanel + j][k] (+ bias) for m in [0,
  // m_rows), p in [p0, p1); output rows past n are not written. While a panel is computed, the next one
  // is prefetched. `alone`: no other thread reads weights concurrently; a single row then relies on the
  // hardware prefetcher. `kv_prefetch` may be null. If ldo > kMaxCachedStride, `out` may be written
  // with non-temporal stores.
  void (*gemm)(const PackedMatrix& w, const uint8_t* acts, int64_t act_stride, int64_t m_rows,
               int64_t p0, int64_t p1, const float* bias, float* out, int64_t ldo, bool alone,
               KvPrefetch* kv_prefetch);
  // Dequantizes row n of a packed matrix (embedding lookup in a tied matrix).
  void (*unpack_row)(const PackedMatrix& w, int64_t row, float* out);

  // --- low-rank changes of some rows: rows[0 .. count), ascending indices ---
  // u[i * rank + r] = scale * A[r] x of row rows[i], for r in [r0, r1).
  void (*low_rank_down)(const LowRank& w, const uint8_t* acts, int64_t act_stride,
                        const int32_t* rows, int64_t count, int64_t r0, int64_t r1, float* u);
  // Changes outputs of panels [p0, p1); row rows[i] is at out + (rows[i] - row0) * ldo, whose first
  // value is the first output of panel p0.
  void (*low_rank_up)(const LowRank& w, const float* u, const int32_t* rows, int64_t count,
                      int64_t row0, int64_t p0, int64_t p1, float* out, int64_t ldo);

  // --- elementwise, one row each ---
  void (*to_float)(WeightType from, const void* source, int64_t count, float* out);
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);
  // (x - mean) / sqrt(variance + eps) * weight + bias; bias may be null.
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int64_t n,
                     float* out);
  void (*add)(float* x, const float* y, int64_t n);                 // x += y
  void (*add_scaled)(float* x, const float* y, float scale, int64_t n);  // x += y * scale
  void (*scale)(float* x, float scale, int64_t n);
  void (*clamp)(float* x, float limit, int64_t n);                  // to [-limit, limit]
  void (*softcap)(float* x, float cap, int64_t n);                  // cap * tanh(x / cap)
  // out = act(gate) * up, or act(gate) where up is null.
  void (*activate)(Activation act, const float* gate, const float* up, int64_t n, float* out);
  // Rotate-half rope on the first `dim` values of each of `heads` heads; cos_sin: dim/2 cosines
  // then dim/2 sines of this position.
  void (*rope)(float* x, int64_t heads, int64_t head_dim, int64_t dim, const float* cos_sin);

  // --- attention ---
  int64_t (*kv_block_bytes)(KvType type, int64_t block_size, int64_t kv_heads, int64_t head_dim,
                            int64_t v_dim);
  // Writes K [kv_heads, head_dim] and V [kv_heads, v_dim] of one token into slot `slot` of `block`.
  void (*kv_write)(const KvLayer& kv, int64_t block, int64_t slot, const float* k, const float* v);
  // Reads one token back as float (tests).
  void (*kv_read)(const KvLayer& kv, int64_t block, int64_t slot, float* k, float* v);
  // Lossless export in the cache's element type, and import of the same. F32: float; BF16: uint16 bits;
  // I8: int8 with a float scale per head; I4: one byte (0..15) per value with a float scale and minimum
  // per head and group (V has one group). Scale pointers are null for the other types.
  void (*kv_export)(const KvLayer& kv, int64_t block, int64_t slot, void* k, void* v,
                    float* k_scale, float* v_scale);
  void (*kv_import)(const KvLayer& kv, int64_t block, int64_t slot, const void* k, const void* v,
                    const float* k_scale, const float* v_scale);
  // Scratch bytes that attn_span needs for nq queries; must be 64-byte aligned.
  int64_t (*attn_scratch_bytes)(const AttnShape& shape, int64_t nq);
  // Attention of `nq` consecutive queries over one span, for the `heads / kv_heads` query heads that
  // share KV head `kv_head`. `pos0` is the absolute position of the first query; q points at its
  // [heads, head_dim], queries are q_stride floats apart. Only positions of span `span` (kSpan * span
  // ...) that a query may see count. Writes, for query i and head-in-group g, at index i * group + g:
  // the maximum m, the sum l and the unnormalised accumulator acc[v_dim]. A query that sees no position
  // of the span gets m = -inf, l = 0, acc = 0. `next` is prefetched during the last positions.
  void (*attn_span)(const AttnShape& shape, const KvLayer& kv, const int32_t* block_table,
                    const float* q, int64_t q_stride, int64_t nq, int64_t pos0, int64_t kv_head,
                    int64_t span, const AttnNext& next, float* m, float* l, float* acc,
                    void* scratch);
  // Merges one later span's (m, l, acc) of `count` query-heads into the running state. Spans are merged
  // in ascending order, starting from m = -inf, l = 0, acc = 0.
  void (*attn_merge)(int64_t count, int64_t v_dim, float* m, float* l, float* acc,
                     const float* m2, const float* l2, const float* acc2);
  // out = acc / l for one query-head.
  void (*attn_finish)(int64_t v_dim, float l, const float* acc, float* out);

  // --- recurrent mixers, one row each ---
  // out = silu(bias + sum_j weight[j * n ..] * rows[j]) over n channels, j ascending; bias may be
  // null.
  void (*conv_token)(const float* const* rows, int64_t conv_kernel, const float* weight,
                     const float* bias, int64_t n, float* out);
  // Per token: u = gain * (v - delta * S^T k * decay), S = decay * S + k u^T, out = S^T q + skip * v.
  // Sums over key_dim are ascending.
  void (*scan)(const Scan& s);

  // --- sampling ---
  float (*max_value)(const float* x, int64_t n);
  // sum over i of exp(x[i] - max), in one fixed order, accumulated in double
  double (*sum_exp)(const float* x, int64_t n, float max);
};

// The best table this machine can run, or the named one (nullptr if this machine cannot run it).
const KernelTable* select_kernels(const char* isa_or_null);
// True on AMD Zen 5 and later, where these prefetch choices pay (measured on Zen 5; ratios of time or
// rate against the default):
//   - every line of one row's weights of K types is prefetched: 1.15 to 1.3 times the rate (Zen 4: 0.65,
//     its hardware prefetcher keeps up once it has seen the first lines of a page);
//   - products prefetch the K and V of the next attention (KvPrefetch): steps of 16 and 32 sequences take
//     0.92 of the time (Zen 4: 1.02 to 1.08);
//   - few rows that attend to more than one span score keys of several blocks at once and prefetch nothing
//     (SpanJob::multi_block): attention reads 1.14 times as fast; not measured elsewhere;
//   - weights, keys and values are prefetched as streaming (non-temporal) data, so that lines evicted from
//     L2 do not displace the prefetched K and V from L3: another 0.93 to 0.97; not measured elsewhere.
bool is_zen5_or_later();
// Overrides is_zen5_or_later() so that checks can run the other code paths. No other thread may
// compute.
void assume_zen5_or_later(bool more);
// Tables of this build that this machine can run, best first, terminated by nullptr.
const char* const* available_isas();

}  // namespace tidemill
