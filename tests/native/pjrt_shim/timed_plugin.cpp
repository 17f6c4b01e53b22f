// A PJRT plugin whose profiler tells the truth, and which writes that truth down: windows are calibrated against it.
//
// It forwards to the plugin that $TIMED_PLUGIN_REAL names, but runs every program to its end inside Execute and makes
// it last $TIMED_PLUGIN_US microseconds, give or take a quarter, so that begin and end of each execution are known. Its
// profiler extension tells them as an accelerator's would: "XLA Modules", and "XLA Ops" with two instructions of the
// program's own, the first for half of the execution, the second for a quarter; spans that a session does not hold
// wholly are lost. Every execution goes to $TIMED_PLUGIN_LOG: module, begin and end in Unix ns, the two ops.
#include "abi.h"
#include "protobuf.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

using namespace fleetscope::pjrt;

namespace timed {

constexpr uint32_t kEventAwait = 8;

struct Known {
  std::string module, ops[2];
  uint64_t id = 0;
};
struct Ran {
  int64_t begin, end;
  Known program;
  uint64_t run;
};

const Table* g_real;
pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;
std::map<const LoadedExecutable*, Known> g_programs;
std::vector<Ran> g_ran;  // of the open session
int64_t g_open_since = 0, g_closed_at = 0;
uint64_t g_runs = 0;
FILE* g_log;

struct Hold {
  Hold() { pthread_mutex_lock(&g_lock); }
  ~Hold() { pthread_mutex_unlock(&g_lock); }
};

int64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

template <class Args>
Error* real(uint32_t slot, Args* args) {
  return g_real->slots[slot](args);
}
template <class Args>
Args make() {
  Args args{};
  args.struct_size = sizeof(Args);
  return args;
}
void drop(Error* error) {
  if (!error) return;
  ErrorArgs args = make<ErrorArgs>();
  args.error = error;
  real(kErrorDestroy, &args);
}

// ---- reading HLO: the wire format of protobuf, and four fields
struct Reader {
  const uint8_t *at, *end;
  uint64_t number = 0;
  std::string bytes;

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; at < end && shift < 64; shift += 7) {
      uint8_t byte = *at++;
      value |= uint64_t(byte & 0x7f) << shift;
      if (!(byte & 0x80)) break;
    }
    return value;
  }
  // The next field's number, its value in `number` or `bytes`; 0 at the end.
  int next() {
    if (at >= end) return 0;
    uint64_t tag = varint();
    size_t size = 0;
    switch (tag & 7) {
      case 0: number = varint(); return int(tag >> 3);
      case 1: size = 8; break;
      case 2: size = varint(); break;
      case 5: size = 4; break;
      default: return 0;
    }
    if (size > size_t(end - at)) return 0;
    bytes.assign(reinterpret_cast<const char*>(at), size);
    at += size;
    return int(tag >> 3);
  }
};
Reader read(const std::string& bytes) {
  auto* at = reinterpret_cast<const uint8_t*>(bytes.data());
  return {at, at + bytes.size(), 0, {}};
}

// HloModuleProto: name = 1, computations = 3, id = 5, entry_computation_id = 6; HloComputationProto: instructions = 2,
// id = 5; HloInstructionProto: name = 1, opcode = 2.
Known module_of(const std::string& hlo) {
  Known known;
  std::vector<std::string> computations;
  uint64_t entry = 0;
  Reader module = read(hlo);
  while (int field = module.next()) {
    if (field == 1) known.module = module.bytes;
    if (field == 3) computations.push_back(module.bytes);
    if (field == 5) known.id = module.number;
    if (field == 6) entry = module.number;
  }
  for (const std::string& one : computations) {
    std::vector<std::string> names;
    uint64_t id = 0;
    Reader computation = read(one);
    while (int field = computation.next()) {
      if (field == 5) id = computation.number;
      if (field != 2) continue;
      std::string name, opcode;
      Reader instruction = read(computation.bytes);
      while (int inner = instruction.next()) {
        if (inner == 1) name = instruction.bytes;
        if (inner == 2) opcode = instruction.bytes;
      }
      if (opcode != "parameter" && opcode != "constant" && opcode != "tuple") names.push_back(name);
    }
    if (id != entry) continue;
    for (size_t i = 0; i < 2 && i < names.size(); ++i) known.ops[i] = names[i];
  }
  return known;
}

void learn(LoadedExecutable* loaded) {
  auto get = make<GetExecutableArgs>();
  get.executable = loaded;
  if (Error* error = real(kLoadedGetExecutable, &get)) return drop(error);
  auto program = make<Program>();
  auto args = make<OptimizedProgramArgs>();
  args.executable = get.result;
  args.program = &program;
  Error* error = real(kExecutableOptimizedProgram, &args);
  if (!error) {
    std::string code(program.code_size, 0);
    program.code = &code[0];
    error = real(kExecutableOptimizedProgram, &args);
    if (!error) {
      bool within = std::string(program.format, program.format_size).find("config") != std::string::npos;
      if (within) {
        Reader outer = read(code);
        std::string inner;
        while (int field = outer.next()) {
          if (field == 1) inner = outer.bytes;
        }
        code = inner;
      }
      Hold hold;
      g_programs[loaded] = module_of(code);
    }
  }
  drop(error);
  auto destroy = make<ExecutableArgs>();
  destroy.executable = get.result;
  drop(real(kExecutableDestroy, &destroy));
}

// ---- the table
Error* compile(void* raw) {
  auto* args = static_cast<CompileArgs*>(raw);
  Error* error = real(kClientCompile, args);
  if (!error) learn(args->executable);
  return error;
}

Error* deserialize(void* raw) {
  auto* args = static_cast<DeserializeArgs*>(raw);
  Error* error = real(kDeserializeAndLoad, args);
  if (!error) learn(args->executable);
  return error;
}

Error* execute(void* raw) {
  auto* args = static_cast<ExecuteArgs*>(raw);
  static const int64_t us = getenv("TIMED_PLUGIN_US") ? atoll(getenv("TIMED_PLUGIN_US")) : 4000;
  std::vector<Event*> own(args->device_count);
  bool mine = !args->completions;
  if (mine) args->completions = own.data();
  int64_t begin = now_ns();
  Error* error = real(kLoadedExecute, args);
  if (!error) {
    for (size_t i = 0; i < args->device_count; ++i) {
      auto wait = make<EventArgs>();
      wait.event = args->completions[i];
      drop(real(kEventAwait, &wait));
      if (mine) drop(real(kEventDestroy, &wait));
    }
  }
  if (mine) args->completions = nullptr;
  if (error) return error;
  uint64_t run;
  {
    Hold hold;
    run = ++g_runs;
  }
  // Lengths that no clock of the machine sets: 3/4 to 5/4, by a permutation of 0..16.
  int64_t until = begin + us * 1000 * int64_t(24 + run * 7 % 17) / 32;
  while (now_ns() < until - 100000) usleep(50);
  while (now_ns() < until) sched_yield();
  int64_t end = now_ns();
  Hold hold;
  auto known = g_programs.find(args->executable);
  if (known == g_programs.end()) return nullptr;
  const Known& program = known->second;
  if (g_log) {
    fprintf(g_log, "%s\t%lld\t%lld\t%s\t%s\n", program.module.c_str(), static_cast<long long>(begin),
            static_cast<long long>(end), program.ops[0].c_str(), program.ops[1].c_str());
  }
  if (g_open_since && !g_closed_at) g_ran.push_back({begin, end, program, run});
  return nullptr;
}

// ---- the profiler: field numbers of xplane.proto
void put_stat(std::string* event, uint64_t metadata, uint64_t number, const std::string* text = nullptr) {
  std::string stat;
  put(&stat, 1, metadata);
  if (text) {
    put(&stat, 5, *text);
  } else {
    put(&stat, 3, number);
  }
  put(event, 4, stat);
}

enum { kRunId = 1, kProgramId, kHloOp, kHloModule };
const char* const kStats[] = {"", "run_id", "program_id", "hlo_op", "hlo_module"};

struct Space {
  int64_t since;
  std::map<std::string, uint64_t> names;
  std::string modules, ops;

  void event(std::string* line, const std::string& name, int64_t begin, int64_t end, const Ran& ran,
             const std::string* op) {
    uint64_t id = names.emplace(name, names.size() + 1).first->second;
    std::string event;
    put(&event, 1, id);
    put(&event, 2, uint64_t(begin - since) * 1000);
    put(&event, 3, uint64_t(end - begin) * 1000);
    put_stat(&event, kRunId, ran.run);
    put_stat(&event, kProgramId, ran.program.id);
    if (op) put_stat(&event, kHloOp, 0, op);
    if (op) put_stat(&event, kHloModule, 0, &ran.program.module);
    put(line, 4, event);
  }
};

std::string line_of(uint64_t id, const char* name, int64_t since, const std::string& events) {
  std::string line;
  put(&line, 1, id);
  put(&line, 2, name);
  put(&line, 3, uint64_t(since));
  return line + events;
}

std::string tell(int64_t since, int64_t until, const std::vector<Ran>& all) {
  Space space{since, {}, {}, {}};
  for (const Ran& ran : all) {
    if (ran.begin < since || ran.end > until) continue;
    int64_t length = ran.end - ran.begin, second = ran.begin + length / 2 + length / 20;
    std::string module = ran.program.module + "(" + std::to_string(ran.program.id) + ")";
    space.event(&space.modules, module, ran.begin, ran.end, ran, nullptr);
    const std::string* ops = ran.program.ops;
    if (!ops[0].empty()) space.event(&space.ops, ops[0], ran.begin, ran.begin + length / 2, ran, &ops[0]);
    if (!ops[1].empty()) space.event(&space.ops, ops[1], second, second + length / 4, ran, &ops[1]);
  }
  std::string plane, out;
  put(&plane, 1, 1);
  put(&plane, 2, "/device:CPU:0");
  put(&plane, 3, line_of(1, "XLA Modules", since, space.modules));
  put(&plane, 3, line_of(2, "XLA Ops", since, space.ops));
  auto entry = [&](int field, uint64_t id, const std::string& name) {
    std::string message, pair;
    put(&message, 1, id);
    put(&message, 2, name);
    put(&pair, 1, id);
    put(&pair, 2, message);
    put(&plane, field, pair);
  };
  for (auto& [name, id] : space.names) entry(4, id, name);
  for (uint64_t stat = kRunId; stat <= kHloModule; ++stat) entry(5, stat, kStats[stat]);
  put(&out, 1, plane);
  return out;
}

struct Session {
  std::string bytes;
};
void error_destroy(void*) {}
void error_message(ProfilerMessageArgs* args) { args->message = "", args->message_size = 0; }
ProfilerError* error_code(ProfilerCodeArgs* args) { return args->code = 0, nullptr; }
ProfilerError* create(ProfilerCreateArgs* args) {
  args->profiler = reinterpret_cast<Profiler*>(new Session);
  return nullptr;
}
ProfilerError* destroy(ProfilerArgs* args) {
  delete reinterpret_cast<Session*>(args->profiler);
  return nullptr;
}
ProfilerError* start(ProfilerArgs*) {
  Hold hold;
  g_ran.clear();
  g_closed_at = 0;
  g_open_since = now_ns();
  return nullptr;
}
ProfilerError* stop(ProfilerArgs*) {
  Hold hold;
  g_closed_at = now_ns();
  return nullptr;
}
ProfilerError* collect(ProfilerCollectArgs* args) {
  auto* session = reinterpret_cast<Session*>(args->profiler);
  if (session->bytes.empty()) {
    Hold hold;
    session->bytes = tell(g_open_since, g_closed_at, g_ran);
    g_ran.clear();
    g_open_since = 0;
  }
  args->size = session->bytes.size();
  if (args->buffer) {
    memcpy(args->buffer, session->bytes.data(), args->size);
  } else {
    args->buffer = reinterpret_cast<uint8_t*>(&session->bytes[0]);
  }
  return nullptr;
}
ProfilerTable g_profiler_table = {sizeof(ProfilerTable), nullptr, error_destroy, error_message, error_code,
                                  create,                destroy, start,         stop,          collect};
ProfilerExtension g_profiler = {{sizeof(ProfilerExtension), kProfilerExtension, nullptr}, &g_profiler_table, 0};

}  // namespace timed

extern "C" __attribute__((visibility("default"))) const void* GetPjrtApi() {
  using namespace timed;
  static Table* mine = nullptr;
  if (mine) return mine;
  const char* path = getenv("TIMED_PLUGIN_REAL");
  void* library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr;
  auto* get = library ? reinterpret_cast<const Table* (*)()>(dlsym(library, "GetPjrtApi")) : nullptr;
  g_real = get ? get() : nullptr;
  if (!g_real) return nullptr;
  if (const char* log = getenv("TIMED_PLUGIN_LOG")) g_log = fopen(log, "w");
  mine = static_cast<Table*>(malloc(g_real->struct_size));
  memcpy(static_cast<void*>(mine), g_real, g_real->struct_size);
  mine->slots[kClientCompile] = compile;
  mine->slots[kDeserializeAndLoad] = deserialize;
  mine->slots[kLoadedExecute] = execute;
  g_profiler.base.next = g_real->extensions;
  mine->extensions = &g_profiler.base;
  return mine;
}
