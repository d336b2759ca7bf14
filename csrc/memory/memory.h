// Memory for weights, KV cache and step buffers: aligned, on huge pages where available.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>

namespace tidemill {

constexpr size_t kAlign = 64;

inline int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Row stride in floats of a matrix that is accessed by columns: an odd number of 64-byte lines. With a
// stride that is a multiple of 4 KiB, all lines of a column would map to the same cache set.
inline int64_t row_stride(int64_t floats) { return ((floats + 15) / 16 | 1) * 16; }

// Size in bytes of the processor's L2 or L3 cache; 0 if unknown.
int64_t cache_bytes(int level);

// An anonymous zero-filled mapping, aligned to a huge page and with MADV_HUGEPAGE. Pages are allocated
// on first touch.
class Region {
 public:
  Region() = default;
  // Throws Error (Resource) naming `what` if the system refuses.
  Region(size_t bytes, const std::string& what);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  // Returns the huge pages that lie within begin .. end to the system: they read as zeros when they are
  // touched again. Nobody may access them meanwhile. `exact`: small pages at the ends as well, which
  // splits huge ones.
  static void give_back(uint8_t* begin, uint8_t* end, bool exact = false);

 private:
  void release();
  void* mapping_ = nullptr;
  size_t mapped_ = 0;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

// A 64-byte aligned array that only grows, so that a step allocates only if it is the largest so far.
// Growing discards the content. Large arrays use huge pages: products access rows that are far apart,
// which would otherwise be a TLB miss each (docs/kernels.md).
template <class T>
class Buffer {
 public:
  // Throws Error (Resource) or bad_alloc if the system refuses.
  T* ensure(int64_t count) {
    if (count > capacity_) {
      const int64_t grown = count + count / 4;
      const size_t bytes = static_cast<size_t>(grown) * sizeof(T);
      capacity_ = 0;
      small_.reset();
      large_ = Region();
      if (bytes >= kLarge) {
        large_ = Region(bytes, "the buffers of a step");
      } else {
        small_.reset(static_cast<T*>(::operator new(bytes, std::align_val_t(kAlign))));
      }
      capacity_ = grown;
    }
    return data();
  }
  T* data() const {
    return large_.data() != nullptr ? reinterpret_cast<T*>(large_.data()) : small_.get();
  }
  int64_t capacity() const { return capacity_; }

 private:
  static constexpr size_t kLarge = size_t{512} << 10;  // a quarter of a huge page
  struct Free {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t(kAlign)); }
  };
  std::unique_ptr<T, Free> small_;
  Region large_;
  int64_t capacity_ = 0;
};

}  // namespace tidemill
