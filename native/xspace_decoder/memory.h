// Where the columns of one message live: a few large mappings, given back as a whole when the last table is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "wire.h"

namespace fleetscope::xspace {

class Memory {
 public:
  // `limit` bounds everything charged; `expected` sizes the mappings.
  Memory(uint64_t limit, size_t expected) : limit_(limit), expected_(expected) {}
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  // Counts `size` bytes before they are taken, so that a hostile message cannot grow columns without bound.
  void charge(uint64_t size) {
    used_ += size;
    if (used_ > limit_) throw Malformed{Fault::over_budget, at};
  }

  // `size` bytes of zeros, aligned for any column, never moved and not freed before the whole. Charged.
  uint8_t* allocate(size_t size);

  uint64_t used() const { return used_; }
  uint64_t at = 0;  // offset of what is being decoded, for the error

 private:
  struct Mapping {
    void* start;
    size_t size;
    bool huge;
  };

  void add_from_heap(size_t size);
  void add_huge(size_t size);

  uint64_t limit_;
  size_t expected_;
  uint64_t used_ = 0;
  std::vector<Mapping> mappings_;
  uint8_t* next_ = nullptr;
  uint8_t* end_ = nullptr;
};

}  // namespace fleetscope::xspace
