// next_group for one instruction set. The includer defines TIDEMILL_TARGET, vectors V of kWidth 64-bit
// lanes, and load, store, splat, xor_of, add, shifted (right by 32) and mul (of the low 32 bits of the
// lanes).

// See race.cpp. Two vectors are computed side by side, since a round waits for its multiplications.
TIDEMILL_TARGET
inline void high_words(const RandomKey& key, uint32_t first_call, uint32_t* words) {
  alignas(64) uint64_t wide[4 * kLanes];
  for (int l = 0; l < kLanes; ++l) wide[l] = first_call + static_cast<uint32_t>(l);
  const V m0 = splat(0xD2511F53u), m1 = splat(0xCD9E8D57u);
  for (int part = 0; part < kLanes; part += 2 * kWidth) {
    V c0[2], c1[2], c2[2], c3[2];
    for (int i = 0; i < 2; ++i) {
      c0[i] = splat(key.choice);
      c1[i] = splat(key.position);
      c2[i] = splat(static_cast<uint32_t>(Draw::kRaceHigh));
      c3[i] = load(wide + part + i * kWidth);
    }
    auto k0 = static_cast<uint32_t>(key.seed), k1 = static_cast<uint32_t>(key.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const V key0 = splat(k0), key1 = splat(k1);
      for (int i = 0; i < 2; ++i) {
        const V a = mul(m0, c0[i]), b = mul(m1, c2[i]);
        c0[i] = xor_of(xor_of(shifted(b), c1[i]), key0);
        c2[i] = xor_of(xor_of(shifted(a), c3[i]), key1);
        c1[i] = b;
        c3[i] = a;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int i = 0; i < 2; ++i) {
      const int at = part + i * kWidth;
      store(wide + at, c0[i]);
      store(wide + kLanes + at, c1[i]);
      store(wide + 2 * kLanes + at, c2[i]);
      store(wide + 3 * kLanes + at, c3[i]);
    }
  }
  for (int i = 0; i < kRaceGroup; ++i) words[i] = static_cast<uint32_t>(wide[i]);
}

TIDEMILL_TARGET
inline int64_t next_group(const float* e, int64_t group, int64_t groups, float bound,
                          const RandomKey& key, uint32_t* words) {
  const float scaled = bound * 4294967296.0f;
  for (; group < groups; ++group) {
    const float* const x = e + group * kRaceGroup;
    int possible = 0;  // for the least time there is
    for (int i = 0; i < kRaceGroup; ++i) possible |= x[i] * scaled >= 0.5f;
    if (possible == 0) continue;
    high_words(key, static_cast<uint32_t>(group * kLanes), words);
    int any = 0;
    for (int i = 0; i < kRaceGroup; ++i) {
      // As a float of the 31 high bits: conversions of signed integers are single instructions.
      const auto rest = static_cast<float>(static_cast<int32_t>(~words[i] >> 1));
      any |= rest * 2.0f <= x[i] * scaled;
    }
    if (any != 0) return group;
  }
  return groups;
}
