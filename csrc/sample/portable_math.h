// Logarithm and exponential in double precision, in an arithmetic of additions, multiplications and
// divisions alone, so that every build and the torch executor (backends/draw/portable_math.py) get the
// same bits. The C library's differ by an ulp between versions and instruction sets.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace tidemill {

constexpr double kLn2 = 0.693147180559945309417232;

// Natural logarithm of a finite x > 0 that is not subnormal; error below 2 ulp. x = 2^k * m with m in
// [sqrt(1/2), sqrt(2)), and log m = 2 atanh(s), s = (m - 1) / (m + 1), as a series.
inline double portable_log(double x) {
  constexpr double kTwo = 6.93147180369123816490e-01, kTwoLow = 1.90821492927058770002e-10;
  const auto bits = std::bit_cast<uint64_t>(x);
  auto exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xfffffffffffffULL) | 0x3ff0000000000000ULL);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double f = m - 1.0, s = f / (m + 1.0), q = s * s;
  double series = 1.0 / 23.0;
  for (int odd = 21; odd >= 3; odd -= 2) series = series * q + 1.0 / odd;
  const double k = exponent;
  return k * kTwo + (2.0 * s + (2.0 * s * q * series + k * kTwoLow));
}

// exp(x), error below 2 ulp; 0 below -700, and x is at most 700.
inline double portable_exp(double x) {
  if (x < -700.0) return 0.0;
  x = x < 700.0 ? x : 700.0;
  const double k = std::floor(x * (1.0 / kLn2) + 0.5);
  const double r = (x - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
  double series = 1.0;
  for (int n = 14; n >= 1; --n) series = series * r / n + 1.0;
  const auto power = static_cast<uint64_t>(static_cast<int64_t>(k) + 1023) << 52;
  return series * std::bit_cast<double>(power);
}

}  // namespace tidemill
