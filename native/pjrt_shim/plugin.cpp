#include "plugin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "keeper.h"
#include "session.h"
#include "state.h"

namespace fleetscope::pjrt {

Plugin g_plugins[kPlugins];

namespace {

uint32_t g_used = 0;

// Copies memory that may not be there: a table that claims more bytes than it has must not be a SIGSEGV of ours.
bool copy_safely(void* to, const void* from, size_t bytes) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  char* at = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  bool good = true;
  while (bytes && good) {
    size_t part = bytes < 4096 ? bytes : 4096;
    good = ::write(ends[1], source, part) == ssize_t(part) && ::read(ends[0], at, part) == ssize_t(part);
    at += part;
    source += part;
    bytes -= part;
  }
  close(ends[0]);
  close(ends[1]);
  return good;
}

// A function of some loaded library, not data or nothing.
bool is_function(Function function) {
  Dl_info info;
  return function && dladdr(reinterpret_cast<void*>(function), &info) != 0;
}

bool refuse(std::string* why, std::string reason) {
  *why = std::move(reason);
  return false;
}

bool sound(const Table* real, size_t* bytes, std::string* why) {
  Table head;
  if (!copy_safely(&head, real, kTableHead)) return refuse(why, "its table cannot be read");
  *bytes = head.struct_size;
  if (head.version.major != 0) return refuse(why, "PJRT API major " + std::to_string(head.version.major));
  if (*bytes > kLargestTable || *bytes % 8 || *bytes < kTableHead + kNeededSlots * sizeof(Function)) {
    return refuse(why, "a table of " + std::to_string(*bytes) + " bytes");
  }
  size_t slots = (*bytes - kTableHead) / sizeof(Function);
  size_t least = head.version.minor >= kMinorOf136 ? 136 : head.version.minor >= kMinorOf128 ? 128 : kNeededSlots;
  if (slots < least) {
    return refuse(why, "minor " + std::to_string(head.version.minor) + " with " + std::to_string(slots) + " slots");
  }
  return true;
}

bool has_profiler(const Table* real) {
  int length = 0;
  for (const Extension* at = real->extensions; at && length < 256; at = at->next, ++length) {
    if (at->type == kProfilerExtension) return true;
  }
  return false;
}

}  // namespace

const Table* wrap(const Table* real, const char* name, std::string* why) {
  Hold hold;
  for (uint32_t i = 0; i < g_used; ++i) {
    if (g_plugins[i].real == real || g_plugins[i].ours == real) return g_plugins[i].ours;
  }
  if (g_used == kPlugins) return *why = "more than 8 plugins", nullptr;
  size_t bytes;
  if (!sound(real, &bytes, why)) return nullptr;
  auto* ours = static_cast<Table*>(calloc(1, bytes));  // never freed: callers keep it for good
  if (!ours) return *why = "no memory", nullptr;
  if (!copy_safely(ours, real, bytes)) return free(ours), *why = "its table is shorter than it says", nullptr;
  for (Slot slot : {kErrorDestroy, kErrorMessage, kEventDestroy, kEventOnReady, kClientCreate, kClientDestroy,
                    kClientCompile, kLoadedExecute, kLoadedDestroy, kDeserializeAndLoad}) {
    if (!is_function(ours->slots[slot])) {
      free(ours);
      return *why = "slot " + std::to_string(slot) + " is no function", nullptr;
    }
  }
  Plugin* plugin = &g_plugins[g_used];
  plugin->real = real;
  plugin->ours = ours;
  plugin->slots = uint32_t((bytes - kTableHead) / sizeof(Function));
  plugin->number = uint8_t(g_used);
  strncpy(plugin->name, name, sizeof plugin->name - 1);
  hook(plugin);
  if (!has_profiler(real)) {
    plugin->profiler.base = {sizeof(ProfilerExtension), kProfilerExtension, real->extensions};
    plugin->profiler.table = profiler_table(plugin->number);
    ours->extensions = &plugin->profiler.base;
  }
  ++g_used;
  return ours;
}

const Table* wrap_file(const char* path, const char* name, std::string* why) {
  // NODELETE: callbacks run on the plugin's threads, so it can never be unloaded. NOW would refuse what jaxlib takes.
  void* library = dlopen(path, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) return *why = "it cannot be loaded", nullptr;
  auto get = reinterpret_cast<const Table* (*)()>(dlsym(library, "GetPjrtApi"));
  const Table* real = get ? get() : nullptr;
  if (!real) return *why = "it has no GetPjrtApi, or that gives nothing", nullptr;
  return wrap(real, name, why);
}

}  // namespace fleetscope::pjrt
