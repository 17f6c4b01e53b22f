// What waits for a completion: one entry a device of an execution, one a transfer.
//
// The plugin holds no pointer of ours but a ticket, so that a callback that comes twice, or years late, finds an entry
// that is no longer its own and is counted: nothing is freed that a plugin could still name.
#pragma once

#include <atomic>
#include <cstdint>

#include "abi.h"

namespace fleetscope::pjrt {

struct Flight {
  std::atomic<uint64_t> turn;  // generation << 1 | 1 while in flight
  uint64_t start;              // tick of the enqueue
  uint64_t arg;                // of the record
  Event* own;                  // an event the caller did not ask for: ours to destroy
  uint32_t load;               // load id, for a profiler session; 0 none
  uint32_t name;
  uint32_t epoch;    // segment `name` belongs to, 0 none
  uint32_t session;  // profiler session it belongs to, 0 none
  uint32_t index;
  uint32_t next;
  uint16_t module;  // index of its Module; 0 none
  uint16_t number;  // which of the module's executions, short_number(); 0 on all but the first device
  uint8_t kind;
  uint8_t plugin;
  // With an event of ours: the call that registered the callback, and the callback. The last destroys the event, which
  // a plugin may still look at when the callback runs before the call has returned.
  std::atomic<uint8_t> parties;
};
static_assert(sizeof(Flight) == 64);

// An entry of this thread's; nullptr when 16 Mi are in flight or there is no memory. Costs a few ns: entries a thread
// has used come back to it, through one stack that it empties whole.
Flight* take_flight();
void return_flight(Flight* flight);

// What the plugin is given. take_off() is called once the entry's fields are set.
void* take_off(Flight* flight);
// The entry of a ticket, for exactly one caller; nullptr for every later one.
Flight* land(void* ticket);
uint8_t plugin_of(void* ticket);

uint64_t flights_now();  // in flight
void flights_after_fork();

}  // namespace fleetscope::pjrt
