// The few messages of XSpace that a device plane of program executions needs, written as bytes.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "session.h"

namespace fleetscope::pjrt {

struct DevicePlane {
  std::string platform;
  uint16_t ordinal;
  int64_t begin_ns;  // REALTIME at tick `begin`
  uint64_t begin;
  uint64_t period_num, period_den;
  std::vector<Execution> executions;
};

// Appends the plane as field 1 of an XSpace. One line, "XLA Modules": an event a finished execution, from
// max(enqueue, the completion before it) to its completion, because events of a line must not overlap.
void append_plane(std::string* space, DevicePlane* plane, const std::unordered_map<uint64_t, std::string>& labels,
                  uint64_t left_out);

}  // namespace fleetscope::pjrt
