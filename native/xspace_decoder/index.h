// Which metadata or stat name of a plane an id means.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "memory.h"

namespace fleetscope::xspace {

// int64 id -> position. Ids are usually small and dense; those of /host:metadata are 64-bit fingerprints.
class Index {
 public:
  explicit Index(Memory& memory) : memory_(memory) {}

  void clear() {
    dense_.clear();
    sparse_.clear();
  }

  int32_t find(int64_t id) const {
    if (static_cast<uint64_t>(id) < dense_.size()) return dense_[static_cast<size_t>(id)];
    auto found = sparse_.find(id);
    return found == sparse_.end() ? -1 : found->second;
  }
  void put(int64_t id, int32_t position) {
    // Dense only as far as the entries seen so far justify it, so an id alone cannot cost memory.
    if (id >= 0 && id < 64 + 4 * static_cast<int64_t>(position)) {
      auto at = static_cast<size_t>(id);
      if (at >= dense_.size()) {
        size_t size = std::max(at + 1, dense_.size() * 2);
        memory_.charge((size - dense_.size()) * sizeof(int32_t));
        size_t old = dense_.size();
        dense_.resize(size, -1);
        for (auto it = sparse_.begin(); it != sparse_.end();) {
          bool moves = it->first >= static_cast<int64_t>(old) && it->first < static_cast<int64_t>(size);
          if (moves) dense_[static_cast<size_t>(it->first)] = it->second;
          it = moves ? sparse_.erase(it) : std::next(it);
        }
      }
      dense_[at] = position;
      return;
    }
    if (static_cast<uint64_t>(id) < dense_.size()) {
      dense_[static_cast<size_t>(id)] = position;
      return;
    }
    if (sparse_.try_emplace(id, position).second) memory_.charge(48);
    sparse_[id] = position;
  }

 private:
  Memory& memory_;
  std::vector<int32_t> dense_;
  std::unordered_map<int64_t, int32_t> sparse_;
};

}  // namespace fleetscope::xspace
