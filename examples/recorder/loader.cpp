// A data loader in C++ that records: a region a shard, with its size as a counter and a flow id that its consumer gives
// its own region. Built as a library; the process that loads it may have fleetscope or not.
#include <cstdint>
#include <numeric>
#include <vector>

#include "fleetscope/recorder.h"

namespace {

std::vector<int64_t> decode(int64_t shard, int64_t rows) {
  FLEETSCOPE_SCOPE("decode");
  std::vector<int64_t> values(static_cast<size_t>(rows));
  std::iota(values.begin(), values.end(), shard);
  return values;
}

}  // namespace

extern "C" int64_t load_shard(int64_t shard, int64_t rows) {
  FLEETSCOPE_SCOPE_AS(scope, "load shard");
  FLEETSCOPE_FLOW(scope, static_cast<uint64_t>(shard) + 1);
  FLEETSCOPE_COUNTER("loader/rows", rows);
  FLEETSCOPE_COUNTER("loader/fill", double(rows) / 1024);
  if (rows == 0) FLEETSCOPE_INSTANT("empty shard");
  std::vector<int64_t> values = decode(shard, rows);
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}
