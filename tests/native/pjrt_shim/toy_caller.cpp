// A caller of the toy plugin, as jaxlib is one: through a table, ours or the real one.
#include <string.h>

#include <thread>

#include "toy.h"

using namespace toy;

TOY_API void* toy_client(const Table* table) {
  ClientCreateArgs args = {};
  args.struct_size = sizeof args;
  return table->slots[kClientCreate](&args) ? nullptr : args.client;
}
TOY_API void* toy_device(Client* client, int64_t number) {
  return reinterpret_cast<ToyClient*>(client)->devices[size_t(number)];
}
TOY_API void toy_client_destroy(const Table* table, Client* client) {
  ClientArgs args = {};
  args.struct_size = sizeof args;
  args.client = client;
  table->slots[kClientDestroy](&args);
}
static int64_t dismiss(const Table* table, Error* error) {
  if (!error) return 0;
  ErrorArgs args = {};
  args.struct_size = sizeof args;
  args.error = error;
  table->slots[kErrorDestroy](&args);
  return 1;
}
TOY_API void* toy_compile(const Table* table, Client* client, const char* name, int64_t cached) {
  Error* error;
  void* executable;
  if (cached) {
    DeserializeArgs args = {};
    args.struct_size = sizeof args;
    args.client = client;
    args.bytes = name, args.size = strlen(name);
    error = table->slots[kDeserializeAndLoad](&args);
    executable = args.executable;
  } else {
    Program program = {};
    program.struct_size = sizeof program;
    program.code = const_cast<char*>(name), program.code_size = strlen(name);
    program.format = "mlir", program.format_size = 4;
    CompileArgs args = {};
    args.struct_size = sizeof args;
    args.client = client;
    args.program = &program;
    error = table->slots[kClientCompile](&args);
    executable = args.executable;
  }
  return dismiss(table, error) ? nullptr : executable;
}
TOY_API void toy_unload(const Table* table, void* executable) {
  LoadedArgs args = {};
  args.struct_size = sizeof args;
  args.executable = static_cast<LoadedExecutable*>(executable);
  table->slots[kLoadedDestroy](&args);
}
TOY_API uint64_t toy_id(void* executable) { return static_cast<ToyLoaded*>(executable)->id; }

TOY_API int64_t toy_execute(const Table* table, void* executable, int64_t count, int64_t devices, int64_t want,
                            void* one, int64_t size, uint64_t* cost) {
  int64_t failed = 0;
  std::vector<Event*> events(size_t(devices) + 1);
  for (int64_t i = 0; i < count; ++i) {
    ExecuteArgs args = {};
    args.struct_size = size_t(size);
    args.executable = static_cast<LoadedExecutable*>(executable);
    args.device_count = size_t(devices);
    args.completions = want ? events.data() : nullptr;
    args.device = static_cast<Device*>(one);
    t_inside = 0;
    uint64_t begin = ticks();
    Error* error = table->slots[kLoadedExecute](&args);
    uint64_t all = ticks() - begin;
    if (cost) cost[i] = g_options.whole.load(std::memory_order_relaxed) ? all : all - t_inside;
    if (!want && args.completions) g_complaints.fetch_add(1);  // the caller's arguments are the caller's
    failed += dismiss(table, error);
    for (int64_t k = 0; want && !error && k < devices; ++k) {
      EventArgs destroy = {};
      destroy.struct_size = sizeof destroy;
      destroy.event = events[size_t(k)];
      table->slots[kEventDestroy](&destroy);
    }
  }
  return failed;
}

TOY_API int64_t toy_execute_threads(const Table* table, void** executables, int64_t threads, int64_t count,
                                    int64_t devices, int64_t want) {
  std::vector<std::thread> all;
  std::atomic<int64_t> failed{0};
  for (int64_t i = 0; i < threads; ++i) {
    all.emplace_back([=, &failed] {
      failed += toy_execute(table, executables[i], count, devices, want, nullptr, sizeof(ExecuteArgs), nullptr);
    });
  }
  for (std::thread& thread : all) thread.join();
  return failed;
}

TOY_API int64_t toy_transfer(const Table* table, Client* client, int64_t bytes) {
  int64_t failed = 0;
  auto drop = [&](Event* event) {
    EventArgs args = {};
    args.struct_size = sizeof args;
    args.event = event;
    if (event) table->slots[kEventDestroy](&args);
  };
  auto* device = reinterpret_cast<ToyClient*>(client)->pointers[1];
  int64_t dims[1] = {bytes / 4};
  BufferFromHostArgs in = {};
  in.struct_size = sizeof in;
  in.client = client;
  in.type = 11;  // F32
  in.dims = dims, in.dim_count = 1;
  in.device = device;
  int64_t bad = dismiss(table, table->slots[kBufferFromHost](&in));
  failed += bad;
  if (!bad) drop(in.done);
  ToyBuffer spare{reinterpret_cast<ToyDevice*>(device)};
  auto* buffer = bad ? reinterpret_cast<Buffer*>(&spare) : in.buffer;
  TransferDataArgs data = {};
  data.struct_size = sizeof data;
  data.manager = reinterpret_cast<TransferManager*>(device);
  data.size = bytes;
  if (!dismiss(table, table->slots[kManagerTransferData](&data))) drop(data.event);
  ToHostArgs out = {};
  out.struct_size = sizeof out;
  out.buffer = buffer;
  table->slots[kBufferToHost](&out);  // asks for the size alone
  out.to = &failed, out.size = size_t(bytes);
  bad = dismiss(table, table->slots[kBufferToHost](&out));
  failed += bad;
  if (!bad) drop(out.event);
  CopyRawArgs copy = {};
  copy.struct_size = sizeof copy;
  copy.buffer = buffer;
  copy.size = bytes;
  if (!dismiss(table, table->slots[kBufferCopyRawToHost](&copy))) drop(copy.event);
  CopyRawFutureArgs future = {};
  future.struct_size = sizeof future;
  future.buffer = buffer;
  future.size = bytes;
  if (!dismiss(table, table->slots[kBufferCopyRawToHostFuture](&future))) drop(future.event);
  if (buffer == in.buffer && in.buffer) {
    BufferArgs args = {};
    args.struct_size = sizeof args;
    args.buffer = in.buffer;
    table->slots[58](&args);
  }
  return failed;
}
