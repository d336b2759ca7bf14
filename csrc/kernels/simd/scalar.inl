// Scalar conversions, included inside each instruction set's namespace. As shared inline functions they
// would be one symbol, and the linker might keep the copy from the translation unit with the widest
// instructions, which crashes on other machines.

constexpr float kInfinity = __builtin_inff();

static inline int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

template <class T>
static inline T load_as(const void* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof(T));
  return value;
}

template <class T>
static inline void store_as(void* p, T value) {
  __builtin_memcpy(p, &value, sizeof(T));
}

static inline uint32_t float_bits(float x) { return load_as<uint32_t>(&x); }
static inline float bits_float(uint32_t x) { return load_as<float>(&x); }

static inline float bf16_to_float(uint16_t h) { return bits_float(uint32_t(h) << 16); }

// Rounds to nearest even; NaN stays NaN.
static inline uint16_t float_to_bf16(float x) {
  const uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1f) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact
    const float magnitude = float(mantissa) * 5.9604644775390625e-8f;
    return bits_float(sign | float_bits(magnitude));
  }
  return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

// IEEE binary16, round to nearest even, overflow to infinity.
static inline uint16_t float_to_half(float x) {
  const uint32_t u = float_bits(x);
  const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {                        // subnormal: rounded by the float addition
    const float rounded = bits_float(magnitude) + 0.5f;
    return uint16_t(sign | (float_bits(rounded) - 0x3f000000u));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return uint16_t(sign | ((rounded - 0x38000000u) >> 13));
}
