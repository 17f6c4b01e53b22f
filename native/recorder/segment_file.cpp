#include "segment_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

namespace fleetscope::recorder {

// Field 22 of /proc/self/stat. The command in field 2 may hold anything, so count from its closing parenthesis.
uint64_t process_start_ticks() {
  char text[2048];
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t bytes = read(fd, text, sizeof text - 1);
  close(fd);
  if (bytes <= 0) return 0;
  text[bytes] = 0;
  const char* at = strrchr(text, ')');
  for (int field = 2; at && field < 22; ++field) at = strchr(at + 1, ' ');
  return at ? strtoull(at + 1, nullptr, 10) : 0;
}

// Pids mean something in their namespace only; "pid:[4026531836]".
uint64_t pid_namespace() {
  char text[64];
  ssize_t bytes = readlink("/proc/self/ns/pid", text, sizeof text - 1);
  if (bytes <= 0) return 0;
  text[bytes] = 0;
  const char* at = strchr(text, '[');
  return at ? strtoull(at + 1, nullptr, 10) : 0;
}

void read_boot_id(char* text, size_t capacity) {
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t bytes = read(fd, text, capacity - 1);
  close(fd);
  if (bytes > 0) text[bytes] = 0;
  text[strcspn(text, "\n")] = 0;
}

// What the PJRT shim left beside a segment that nobody will read.
void remove_programs(const char* path) {
  char name[1024];
  snprintf(name, sizeof name, "%s.hlo", path);
  DIR* folder = opendir(name);
  if (!folder) return;
  while (dirent* entry = readdir(folder)) unlinkat(dirfd(folder), entry->d_name, 0);
  closedir(folder);
  rmdir(name);
}

// A named file stays when the process is killed before it met an agent, or while that restarts. A name that is taken is
// this process' own (an earlier segment) or that of a process of another pid namespace with the same pid and start.
int create_named(const char* directory, uint64_t ticks, uint32_t first, char* path, size_t capacity) {
  constexpr uint32_t kNumbers = 64;
  for (uint32_t number = first; number < first + kNumbers; ++number) {
    char suffix[16] = "";
    if (number > 1) snprintf(suffix, sizeof suffix, ".%u", number);
    int length = snprintf(path, capacity, "%s/fleetscope-%d-%llu%s.ring", directory, int(getpid()),
                          static_cast<unsigned long long>(ticks), suffix);
    if (length < 0 || size_t(length) >= capacity) return errno = ENAMETOOLONG, -1;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 || errno != EEXIST) return fd;
  }
  return -1;
}

int create_nameless(uint64_t ticks, uint32_t number, char* path, size_t capacity) {
  constexpr unsigned kNoExec = 0x0008;  // MFD_NOEXEC_SEAL, which a strict kernel wants and one before 6.3 does not know
  snprintf(path, capacity, "memfd:fleetscope-%d-%llu.%u", int(getpid()), static_cast<unsigned long long>(ticks),
           number);
  const char* name = path + strlen("memfd:");  // which /proc puts before it
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExec);
  return fd < 0 && errno == EINVAL ? memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

}  // namespace fleetscope::recorder
