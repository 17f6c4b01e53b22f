/* What native code of ours in the training process writes records through: one table, handed over as the capsule
 * `native_api` of the module _recorder. Any thread may call any of it, with or without the GIL. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FLEETSCOPE_RECORDER_CAPSULE "fleetscope.native._recorder.native_api"
#define FLEETSCOPE_RECORDER_API 1u

enum { FLEETSCOPE_ARGUMENT_INT = 40, FLEETSCOPE_ARGUMENT_NAME = 42 };

typedef struct fleetscope_argument {
  uint32_t key; /* a name */
  uint8_t kind;
  uint64_t value;
} fleetscope_argument;

typedef struct fleetscope_record {
  uint64_t start; /* ticks of now() */
  uint64_t dur;   /* ticks */
  uint64_t arg;
  uint32_t name;
  uint8_t kind;  /* RecordKind of layout.h */
  uint8_t flags; /* two bits */
  uint32_t argument_count;
  const fleetscope_argument* arguments;
} fleetscope_record;

typedef struct fleetscope_recorder_api {
  uint32_t version; /* FLEETSCOPE_RECORDER_API */
  uint32_t struct_size;
  /* 0: record nothing (no agent, or a forked child). Else the number of the open segment; names belong to it. */
  uint32_t (*epoch)(void);
  uint64_t (*now)(void);
  /* A new name's id; 0, "other", when the table is full (counted there). Callers keep ids; each call takes room. */
  uint32_t (*name)(uint32_t epoch, const char* text, uint64_t bytes);
  /* 0 when nobody could take the record (counted in the segment). No lock but where threads outnumber rings. */
  int (*write)(uint32_t epoch, const fleetscope_record* record);
  /* Path of the segment, NUL-terminated, into `path` of at least 512 bytes, empty for one that is no file; 0 when it is
   * closed. */
  int (*segment)(uint32_t epoch, char* path, uint64_t capacity);
  /* Nominal nanoseconds a tick = num / den. Call it before the first now(): it also chooses the counter (200 us). */
  void (*period)(uint64_t* num, uint64_t* den);
  /* Execution `number` of program `whose` begins: heard where whose is what follow() was given last. No lock. */
  void (*execution_begins)(uint32_t whose, int64_t number, uint64_t start);
  void (*execution_ends)(uint32_t whose, int64_t number, uint64_t end);
  void (*follow)(uint32_t whose); /* 0: none */
} fleetscope_recorder_api;

const fleetscope_recorder_api* fleetscope_recorder(void);

#ifdef __cplusplus
}
#endif
