// The table of native.h over the writer.
#include "native.h"

#include "writer.h"

namespace fleetscope::recorder {
namespace {

static_assert(sizeof(fleetscope_argument) == sizeof(Argument) && int{FLEETSCOPE_ARGUMENT_INT} == int{kArgInt} &&
              int{FLEETSCOPE_ARGUMENT_NAME} == int{kArgName});

uint32_t epoch() { return gate(); }

uint64_t now() { return counter(); }

uint32_t name(uint32_t epoch, const char* text, uint64_t bytes) {
  return epoch && epoch == gate() ? add_name(text, uint32_t(bytes < kNameBytes + 1 ? bytes : kNameBytes + 1)) : 0;
}

int write(uint32_t epoch, const fleetscope_record* record) {
  Argument args[kArgs];
  uint32_t count = record->argument_count < kArgs ? record->argument_count : kArgs;
  for (uint32_t i = 0; i < count; ++i) {
    args[i] = {record->arguments[i].key, record->arguments[i].kind, record->arguments[i].value};
  }
  return append_native(epoch, record->start, record->name, record->dur, record->arg, record->kind, args, count,
                       record->flags);
}

int segment(uint32_t epoch, char* path, uint64_t capacity) { return segment_path(epoch, path, capacity); }

void period(uint64_t* num, uint64_t* den) {
  Clock clock = host_clock();
  prepare(clock.kind);
  *num = clock.period_num;
  *den = clock.period_den;
}

constexpr fleetscope_recorder_api kApi = {FLEETSCOPE_RECORDER_API,
                                          sizeof(fleetscope_recorder_api),
                                          epoch,
                                          now,
                                          name,
                                          write,
                                          segment,
                                          period,
                                          execution_begins,
                                          execution_ends,
                                          follow_program};

}  // namespace
}  // namespace fleetscope::recorder

extern "C" const fleetscope_recorder_api* fleetscope_recorder(void) { return &fleetscope::recorder::kApi; }
