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
  MXFP4 = 9, IQ4_NL = 10
};
// What activations are turned into before a matrix product.
// I8: a float scale per 32 values; I8SignMagnitude: the same numbers, their magnitudes and signs apart;
// I8Row: one scale for the row; I8Block: one per 256 values.
enum class ActType : int { F32 = 0, BF16 = 1, I8 = 2, I8Row = 3, I8Block = 4, I8SignMagnitude = 5 };
constexpr int kActTypes = 6;
// I8: a float scale per token and head. I4: a scale and a minimum, bfloat16 both, per token and
// kKvGroup values of a head's K, and per token and head's V.
enum class KvType : int { F32 = 0, BF16 = 1, I8 = 2, I4 = 3 };

constexpr int64_t kPanel = 32;     // output rows (n) per packed panel
constexpr int64_t kMaxCachedStride = 272;  // floats: of a product's rows that are read as soon as they are made
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
  int64_t window;      // 0: full attention; else query at p sees positions > p - window, and where
                       // not causal those < p + window
  float softcap = 0;   // 0: none; else scores s become softcap * tanh(s / softcap)
  const float* slopes = nullptr;  // per head, subtracted from scores per token of distance
  bool chunked = false;           // the window does not slide: it begins at its own multiples
  bool causal = true;
  int64_t seen_to = 0;            // where not causal: every query sees the positions below it

  // First position that the query at `pos` sees.
  int64_t oldest(int64_t pos) const {
    if (window <= 0) return 0;
    if (chunked) return pos / window * window;
    return pos < window ? 0 : pos - window + 1;
  }
  // The query behind the last one that sees position `pos`, were there no end.
  int64_t last_seer(int64_t pos) const {
    return chunked ? (pos / window + 1) * window : pos + window;
  }
  // The first query that sees position `pos`, were there no beginning.
  int64_t first_seer(int64_t pos) const {
    if (causal) return pos;
    return window > 0 ? pos - window + 1 : 0;
  }
  // The position behind the last one that the query at `pos` sees.
  int64_t end(int64_t pos) const {
    if (causal) return pos + 1;
    return window > 0 && pos + window < seen_to ? pos + window : seen_to;
  }
};

// What a thread attends to after a span: positions [from, to) of a KV head; none without a table.
struct AttnNext {
  const int32_t* block_table = nullptr;
  int64_t kv_head = 0, from = 0, to = 0;
};

// What a feed-forward block does between its products.
// (Sigmoid gates attention alone.)
enum class Activation : int { Silu, Gelu, GeluTanh, Relu, Relu2, SwigluClamped, Sigmoid };

// One head of a recurrent mixer over the tokens of a row; see KernelTable::scan.
struct Scan {
  int64_t count, key_dim, value_dim;
  bool delta;                // what the state says of the key is taken off the value
  const float *q, *k, *v;    // of the first token
  const float *decay, *gain; // one number per token
  float* out;                // [value_dim]
  int64_t stride;            // floats from token to token, of all of these
  float skip;                // of the value, added to the output
  const float* from;         // state [key_dim, value_dim] before the first token; null: zeros
  float* to;                 // and after the last one; not `from`
};

// What a thread brings closer beside the products it computes: ranges of bytes behind `base`, a few
// lines with every group of weights, as far as the products leave memory idle. A product keeps its place.
struct ByteRange {
  int64_t from, to;
};
struct alignas(64) KvPrefetch {
  const uint8_t* base = nullptr;
  const ByteRange *next = nullptr, *last = nullptr;  // that have not begun
  const uint8_t *at = nullptr, *to = nullptr;        // of the one that has
};

struct KernelTable {
  const char* isa;     // its name, such as "avx2": what --isa takes

  // --- matrices ---
  // Activation type used for a weight type when computing in float32 / bfloat16.
  ActType (*act_type)(WeightType weight, bool float32_compute);
  int64_t (*panel_bytes)(WeightType weight, ActType act, int64_t k);
  // Pack kPanel rows starting at row n0 (zero rows past n) from `source`, whose rows have type
  // `from`, into `panel`. from == to, or from is F32/F16/BF16 and to any type (quantizing) but
  // the K types, MXFP4 and IQ4_NL, which are packed from themselves alone.
  // Quantization follows GGUF's reference rule (Q8_0: d = max|x|/127; Q4_0: d = x_absmax/-8);
  // I8 does as Q8_0 with the whole row for a group.
  void (*pack_panel)(WeightType from, const void* source, WeightType to, ActType act,
                     int64_t n0, int64_t n, int64_t k, uint8_t* panel);
  // Multiple of 64. The layout of packed activations (and of panels) is this table's own: rows
  // packed by one table must not meet another table's gemm.
  int64_t (*act_row_bytes)(ActType act, int64_t k);
  void (*pack_act)(ActType act, const float* x, int64_t k, uint8_t* out);  // one row
  // How many values are packed together; 0: all of a row.
  int64_t (*act_part)(ActType act);
  // Values [from, from + n) of a row of k that begins at `out`, from x[0] on: whole parts, but for the
  // row's end. All parts are what pack_act makes of the row.
  void (*pack_act_part)(ActType act, const float* x, int64_t from, int64_t n, int64_t k,
                        uint8_t* out);
  // out[m * ldo + (p * kPanel + j)] = sum_k act[m][k] * w[p * kPanel + j][k] (+ bias) for
  // m in [0, m_rows), p in [p0, p1), rows past n not written. While computing a panel it brings what
  // lies behind it in the matrix closer. `alone`: no other thread reads weights beside this one,
  // whose one row the hardware's own prefetching then serves better. `beside` may be null. Rows of `out`
  // more than kMaxCachedStride apart may be written past the caches.
  void (*gemm)(const PackedMatrix& w, const uint8_t* acts, int64_t act_stride, int64_t m_rows,
               int64_t p0, int64_t p1, const float* bias, float* out, int64_t ldo, bool alone,
               KvPrefetch* kv_prefetch);
  // Row n of a packed matrix back to float (embedding look-up in a tied matrix).
  void (*unpack_row)(const PackedMatrix& w, int64_t row, float* out);

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
  // Write K [kv_heads, head_dim] and V [kv_heads, v_dim] of one token into slot `slot` of `block`.
  void (*kv_write)(const KvLayer& kv, int64_t block, int64_t slot, const float* k, const float* v);
  // Copy a token out as float (tests).
  void (*kv_read)(const KvLayer& kv, int64_t block, int64_t slot, float* k, float* v);
  // The same without loss, in the cache's own element type (F32: float; BF16: uint16 bits; I8: int8
  // and a float scale per head; I4: 0..15 in a byte, and per head and group (V has one) floats scale
  // and minimum; scales are null otherwise), and back: moving blocks keeps their bits.
  void (*kv_export)(const KvLayer& kv, int64_t block, int64_t slot, void* k, void* v,
                    float* k_scale, float* v_scale);
  void (*kv_import)(const KvLayer& kv, int64_t block, int64_t slot, const void* k, const void* v,
                    const float* k_scale, const float* v_scale);
  // Bytes of scratch attn_span needs for nq queries, 64-byte aligned.
  int64_t (*attn_scratch_bytes)(const AttnShape& shape, int64_t nq);
  // Attention of `nq` consecutive queries (first at absolute position `pos0`; q points at the
  // first query's [heads, head_dim], q_stride floats apart) of the `heads / kv_heads` query heads
  // that share KV head `kv_head`, over the positions of span `span` (kSpan * span ...) that each
  // query may see. Writes, for query i and head-in-group g, at index i * group + g: the running
  // maximum m, the sum l and the unnormalised accumulator acc[v_dim]. A query that sees no
  // position of the span gets m = -inf, l = 0, acc = 0.
  // `next` is brought closer beside the last positions.
  void (*attn_span)(const AttnShape& shape, const KvLayer& kv, const int32_t* block_table,
                    const float* q, int64_t q_stride, int64_t nq, int64_t pos0, int64_t kv_head,
                    int64_t span, const AttnNext& next, float* m, float* l, float* acc,
                    void* scratch);
  // Merge one later span's (m, l, acc) of `count` query-heads into the running one; spans are
  // merged in ascending order, starting from m = -inf, l = 0, acc = 0.
  void (*attn_merge)(int64_t count, int64_t v_dim, float* m, float* l, float* acc,
                     const float* m2, const float* l2, const float* acc2);
  // out = acc / l for one query-head.
  void (*attn_finish)(int64_t v_dim, float l, const float* acc, float* out);

  // --- recurrent mixers, one row each ---
  // out = silu(bias + sum_j weight[j * n ..] * rows[j]) over n channels, j ascending; bias may be
  // null.
  void (*conv_token)(const float* const* rows, int64_t taps, const float* weight,
                     const float* bias, int64_t n, float* out);
  // Token after token: u = gain * (v - delta * S^T k * decay), S = decay * S + k u^T,
  // out = S^T q + skip * v; sums over key_dim ascending.
  void (*scan)(const Scan& s);

  // --- sampling ---
  float (*max_value)(const float* x, int64_t n);
  // sum over i of exp(x[i] - max), in one fixed order, accumulated in double
  double (*sum_exp)(const float* x, int64_t n, float max);
};

// The best table this machine can run, or the one named (nullptr if it cannot run here).
const KernelTable* select_kernels(const char* isa_or_null);
// Whether the processor is a Zen 5 or a later one, which gains by being asked for more than others are, or
// otherwise:
//   every line of one row's weights of K types (1.15 to 1.3 times the rate; Zen 4 0.65 times, whose own
//   prefetching keeps up once it is told of the next page);
//   beside products what is read after them (steps of 16 and 32 sequences take 0.92 of their time; Zen 4's
//   1.02 to 1.08);
//   nothing, where few rows attend to more than a span, but keys of several blocks at once
//   (SpanJob::streams; attention reads 1.14 times as fast; not measured elsewhere);
//   weights, keys and values as what is read once, so that their way out of the second-level cache does not
//   push out of the third what was asked for beside (another 0.93 to 0.97; not measured elsewhere).
bool is_zen5_or_later();
// What is_zen5_or_later() answers from here on: checks run the loops of other processors, too. No other thread
// may compute meanwhile.
void assume_zen5_or_later(bool more);
// Names this build contains and this machine can run, best first, terminated by nullptr.
const char* const* available_isas();

}  // namespace tidemill
