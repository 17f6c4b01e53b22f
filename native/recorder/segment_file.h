// What a segment is kept in, what lies beside it, and what its header says of the process.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace fleetscope::recorder {

// Of this process; 0 where /proc does not tell.
uint64_t process_start_ticks();
uint64_t pid_namespace();
void read_boot_id(char* text, size_t capacity);

// A descriptor, -1 with errno; what it is called goes into `path`. `first`: the number to begin with.
int create_named(const char* directory, uint64_t ticks, uint32_t first, char* path, size_t capacity);
int create_nameless(uint64_t ticks, uint32_t number, char* path, size_t capacity);

void remove_programs(const char* path);

}  // namespace fleetscope::recorder
