// Powers of two, of which probabilities are made: 11 instructions where vexp takes 20 (AVX-512).

// What a number is above the whole one it is not below, and a * 2^ that whole one: of what 2^x is made of,
// for x from -127 on (below that powers_of_two has zero whatever these give).
#ifndef TIDEMILL_FRACTIONS
static inline Vf vfraction(Vf x) {
  x = vmax(vset(-127.0f), x);
  return vsub(x, vfloor(x));
}
static inline Vf vscale2_whole(Vf a, Vf x, Vf fraction) {
  return vscale2(a, vsub(vmax(vset(-127.0f), x), fraction));
}
#endif

// 2^x of up to 0, to 2.5 ulp: a minimax polynomial of degree 5 over what x is above a whole number, 1 at
// 0, found by Lawson's iteration. What would be subnormal is 0, for the reason given at vexp.
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
