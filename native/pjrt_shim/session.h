// A profiler extension for plugins that have none: while a session is on, every execution becomes an event of a device
// plane, so that `jax.profiler.trace` and XProf show such a platform.
#pragma once

#include <atomic>
#include <string>

#include "plugin.h"

namespace fleetscope::pjrt {

ProfilerTable* profiler_table(uint8_t plugin);

// The session that is on for a plugin, 0 none.
extern std::atomic<uint32_t> g_session_of[kPlugins];
inline uint32_t session_of(uint8_t plugin) { return g_session_of[plugin].load(std::memory_order_relaxed); }

struct Execution {
  uint64_t load;
  uint64_t launch;
  uint64_t enqueued, done;  // ticks
  uint16_t ordinal;
  bool failed;
};
// An execution is on its way whose completion session_adds() will tell.
void session_expects(uint8_t plugin);
void session_adds(uint8_t plugin, uint32_t session, const Execution& execution);
void session_learns(uint64_t load, const std::string& label);
void session_after_fork();

}  // namespace fleetscope::pjrt
