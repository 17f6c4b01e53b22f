/* The same in C: a region that begins in one call and ends in another, and one of a block. */
#include "fleetscope/recorder.h"

static fleetscope_site waiting = FLEETSCOPE_SITE("data_wait (queue)");
static fleetscope_region wait;

void wait_begins(void) { fleetscope_begin(&wait, &waiting); }

void wait_ends(uint64_t shard) {
  FLEETSCOPE_FLOW(wait, shard + 1);
  fleetscope_end(&wait);
}

int64_t consume(int64_t value) {
  FLEETSCOPE_SCOPE("consume");
  FLEETSCOPE_COUNTER("consumer/value", value);
  FLEETSCOPE_COUNTER("consumer/half", (double)value / 2);
  return value + 1;
}
