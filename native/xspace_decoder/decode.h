// XSpace protobuf bytes -> Arrow columns. Field numbers: tsl/profiler/protobuf/xplane.proto.
#pragma once

#include <cstdint>
#include <memory>

#include "columns.h"

namespace fleetscope::xspace {

struct Decoded {
  std::shared_ptr<Table> planes, lines, events, event_metadata, stat_metadata, stats, messages;
  uint64_t replaced_utf8 = 0;  // invalid sequences that became U+FFFD
  uint64_t memory_bytes = 0;   // charged to the budget at the end
  Fault fault = Fault::none;
  uint64_t fault_offset = 0;
};

// Never throws and never reads outside `message`. With `fault` set the tables are null.
// `memory_limit` bounds all allocations in bytes; 0 means 64 x the message + 16 MiB.
Decoded decode(Bytes message, uint64_t memory_limit = 0) noexcept;

}  // namespace fleetscope::xspace
