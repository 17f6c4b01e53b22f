// Names of which the node agent's governor lets one pass in 2^shift leave a record, and which pass that is.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fleetscope::recorder {

constexpr uint32_t kThinned = 64;  // names of their own; all others share one figure
constexpr uint8_t kShiftLimit = 20;

struct Thinned {
  uint64_t hash;  // of the name
  uint8_t shift;
};

uint64_t hash_of_name(const char* text, size_t bytes);
// What holds from now on. False when it did before.
bool set_thinned(uint8_t rest, const Thinned* names, uint32_t count);
// The figure of a name. From any thread, and cheap enough for the first pass after a change.
uint8_t shift_of_name(const char* text, size_t bytes);
void forget_thinned_lock();  // in a forked child

// Whether pass number `pass` of a site is the one of its 2^shift that leaves a record. Where in its block that one lies
// is drawn anew for each block: of a loop whose passes take turns, every 2^k-th would show one side only.
inline bool keeps(uint64_t pass, uint8_t shift, const void* site) {
  uint64_t bits = (pass >> shift) + reinterpret_cast<uintptr_t>(site);
  bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9;  // splitmix64's finaliser, but for its last round
  bits = (bits ^ bits >> 27) * 0x94d049bb133111eb;
  return ((pass ^ bits >> 32) & ((uint64_t{1} << shift) - 1)) == 0;
}

// What recording takes of this process, measured on a stack and a ring of its own: picoseconds of a region that leaves
// a record, and of one that is left out. The interpreter's part of a `with` is not in it.
struct RegionCost {
  uint64_t record_ps;
  uint64_t pass_ps;
};
RegionCost measure_regions();

}  // namespace fleetscope::recorder
