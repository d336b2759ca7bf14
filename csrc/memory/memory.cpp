#include "memory/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/error.h"

namespace tidemill {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

int64_t cache_bytes([[maybe_unused]] int level) {
  long bytes = 0;  // sysconf returns 0 or less for unknown caches
#if defined(_SC_LEVEL2_CACHE_SIZE) && defined(_SC_LEVEL3_CACHE_SIZE)
  bytes = sysconf(level == 2 ? _SC_LEVEL2_CACHE_SIZE : _SC_LEVEL3_CACHE_SIZE);
#endif
  return std::max<int64_t>(0, bytes);
}

Region::Region(size_t bytes, const std::string& what) : size_(bytes) {
  if (bytes == 0) return;
  const size_t usable = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  mapped_ = usable + kHugePage;
  mapping_ = usable < bytes
                 ? MAP_FAILED
                 : mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw Error(ErrorKind::Resource, "the system refuses " + std::to_string(bytes >> 20) +
                                         " MiB for " + what + ": free memory or ask for less");
  }
  const auto address = reinterpret_cast<uintptr_t>(mapping_);
  data_ = reinterpret_cast<uint8_t*>((address + kHugePage - 1) / kHugePage * kHugePage);
#ifdef MADV_HUGEPAGE
  madvise(data_, usable, MADV_HUGEPAGE);  // a hint: small pages work too
#endif
}

Region::~Region() { release(); }

Region::Region(Region&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

Region& Region::operator=(Region&& other) noexcept {
  if (this != &other) {
    release();
    mapping_ = std::exchange(other.mapping_, nullptr);
    mapped_ = std::exchange(other.mapped_, 0);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

void Region::give_back([[maybe_unused]] uint8_t* begin, [[maybe_unused]] uint8_t* end,
                       [[maybe_unused]] bool exact) {
#ifdef __linux__  // elsewhere the advice says something else
  const size_t page = exact ? static_cast<size_t>(sysconf(_SC_PAGESIZE)) : kHugePage;
  const auto first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const auto last = reinterpret_cast<uintptr_t>(end) / page * page;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
#endif
}

void Region::release() {
  if (mapping_ != nullptr) munmap(mapping_, mapped_);
  mapping_ = nullptr;
  data_ = nullptr;
}

}  // namespace tidemill
