// Powers of two for softmax: 11 instructions where vexp takes 20 (AVX-512).

// The fractional part of x, and a * 2^floor(x); together they give 2^x for x >= -127 (powers_of_two
// returns zero below).
#ifndef TIDEMILL_FRACTIONS
static inline Vf vfraction(Vf x) {
  x = vmax(vset(-127.0f), x);
  return vsub(x, vfloor(x));
}
static inline Vf vscale2_whole(Vf a, Vf x, Vf fraction) {
  return vscale2(a, vsub(vmax(vset(-127.0f), x), fraction));
}
#endif

// 2^x for x <= 0, to 2.5 ulp: a minimax polynomial of degree 5 in the fractional part, exactly 1 at 0,
// found by Lawson's iteration. Subnormal results are flushed to 0 for the reason given at vexp.
template <int N>
static TIDEMILL_INLINE void powers_of_two(Vf (&x)[N]) {
  constexpr float kCoefficients[] = {9.0170303214e-3f, 5.5799913105e-2f, 2.4016445015e-1f,
                                     6.9315131180e-1f, 1.0f};
  Vf above[N], p[N];
  TIDEMILL_UNROLL
  for (int i = 0; i < N; ++i) above[i] = vfraction(x[i]), p[i] = vset(1.8671300703e-3f);
  TIDEMILL_UNROLL
  for (int k = 0; k < 5; ++k) {
    TIDEMILL_UNROLL
    for (int i = 0; i < N; ++i) p[i] = vfma(p[i], above[i], vset(kCoefficients[k]));
  }
  TIDEMILL_UNROLL
  for (int i = 0; i < N; ++i)
    x[i] = vzero_below(vscale2_whole(p[i], x[i], above[i]), x[i], -126.0f);
}
