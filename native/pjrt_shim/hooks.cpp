// What stands in our table in front of the real functions. Each calls the real one with the caller's own arguments and
// returns what it returns; what goes wrong on our side is counted, never told.
#include "clients.h"
#include "flights.h"
#include "keeper.h"
#include "plugin.h"
#include "programs.h"
#include "session.h"
#include "state.h"

namespace fleetscope::pjrt {
namespace {

constexpr size_t kOwnEvents = 64;  // devices of one call without a look at the heap

std::atomic<uint64_t> g_launches{0};
std::atomic<uint64_t> g_last[4096];  // completion on a device, by ordinal

// The execution begins as agents/node/executions.py infers it. Of two completions of a device at once one may be taken
// for the earlier: which program is the busiest does not hang on it.
void add_busy(Module* module, uint64_t start, uint64_t end, uint16_t ordinal) {
  uint64_t last = g_last[ordinal].load(std::memory_order_relaxed);
  if (end > last) g_last[ordinal].store(end, std::memory_order_relaxed);
  uint64_t begin = last > start ? last : start;
  if (end > begin) module->busy.fetch_add(end - begin, std::memory_order_relaxed);
}

void execution_over(const Flight* flight, uint64_t now) {
  Module* module = g_modules[flight->module].load(std::memory_order_acquire);
  add_busy(module, flight->start, now, uint16_t(flight->arg & 4095));
  if (flight->number && module == g_followed.load(std::memory_order_relaxed)) {
    uint64_t number = long_number(flight->number, module->launches.load(std::memory_order_relaxed));
    g_recorder->execution_ends(module->index, int64_t(number), now);
  }
}

// One of the entry's parties is done with it.
void leave(const Plugin& plugin, Flight* flight) {
  Event* own = flight->own;
  if (own && flight->parties.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  return_flight(flight);
  if (own) plugin.destroy(own);
}

// On a thread of the plugin's, or inside OnReady where everything is over already.
void completed(Error* error, void* ticket) {
  uint64_t now = g_recorder->now();
  const Plugin& plugin = g_plugins[plugin_of(ticket)];
  Flight* flight = land(ticket);
  bool failed = !plugin.dismiss(error);
  if (!flight) {
    g_counts.twice.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  uint64_t dur = now > flight->start ? now - flight->start : 0;
  if (failed) g_counts.errors.fetch_add(1, std::memory_order_relaxed);
  if (flight->module && !failed) execution_over(flight, now);
  // Recording may have ended, or another segment begun, in which the name means nothing.
  if (flight->epoch && flight->epoch == recording()) {
    write(flight->epoch, flight->kind, flight->start, dur, flight->name, flight->arg, failed ? kFailed : 0);
  }
  if (__builtin_expect(flight->session != 0, 0)) {
    session_adds(
        flight->plugin, flight->session,
        {flight->load, flight->arg >> 12, flight->start, flight->start + dur, uint16_t(flight->arg & 4095), failed});
  }
  leave(plugin, flight);
}

struct Watched {
  uint8_t kind;
  uint64_t start, arg;
  uint32_t name, epoch, session;
  uint32_t load = 0;
  uint16_t module = 0, number = 0;
};

// Has the record written when the event is ready. `own`: the event is ours to destroy.
void watch(const Plugin& plugin, Event* event, bool own, const Watched& what) {
  Flight* flight = event ? take_flight() : nullptr;
  if (__builtin_expect(!flight, 0)) {
    g_counts.untracked.fetch_add(1, std::memory_order_relaxed);
    if (event && own) plugin.destroy(event);
    return;
  }
  flight->start = what.start;
  flight->arg = what.arg;
  flight->load = what.load;
  flight->module = what.module;
  flight->number = what.number;
  flight->own = own ? event : nullptr;
  flight->name = what.name;
  flight->epoch = what.epoch;
  flight->session = what.session;
  flight->kind = what.kind;
  flight->plugin = plugin.number;
  flight->parties.store(2, std::memory_order_relaxed);
  OnReadyArgs args;
  args.struct_size = sizeof args;
  args.extensions = nullptr;
  args.event = event;
  args.callback = completed;
  if (__builtin_expect(what.session != 0, 0)) session_expects(plugin.number);
  args.user = take_off(flight);
  void* ticket = args.user;
  bool asked = plugin.dismiss(plugin.call(kEventOnReady, &args));
  if (__builtin_expect(!asked, 0)) {
    // It will never be called: or it has been already, by a plugin that does both.
    g_counts.untracked.fetch_add(1, std::memory_order_relaxed);
    if (land(ticket)) leave(plugin, flight);
  }
  if (own) leave(plugin, flight);
}

Error* execute(const Plugin& plugin, ExecuteArgs* args) {
  uint32_t epoch = recording(), session = session_of(plugin.number);
  if (g_inherited.load(std::memory_order_relaxed) || !FLEETSCOPE_HAS(args, completions)) {
    return plugin.call(kLoadedExecute, args);
  }
  uint64_t start = g_recorder->now();
  Loaded* loaded = find(args->executable);
  Module* module = loaded ? loaded->module : nullptr;
  uint64_t number = 0;
  if (module) {
    number = module->launches.fetch_add(1, std::memory_order_relaxed) + 1;
    if (module == g_followed.load(std::memory_order_relaxed)) {
      g_recorder->execution_begins(module->index, int64_t(number), start);
    }
  }
  if ((epoch | session) == 0) return plugin.call(kLoadedExecute, args);

  size_t count = args->device_count;
  Event* few[kOwnEvents];
  Event** own = nullptr;
  if (!args->completions) {
    own = count <= kOwnEvents ? few : new (std::nothrow) Event*[count];
    for (size_t i = 0; own && i < count; ++i) own[i] = nullptr;
    args->completions = own;  // and nullptr again below: the caller sees its arguments as it left them
  }
  Event** events = args->completions;
  Error* error = plugin.call(kLoadedExecute, args);
  uint64_t end = g_recorder->now();
  if (own) args->completions = nullptr;

  uint64_t launch = g_launches.fetch_add(1, std::memory_order_relaxed) + 1;
  uint32_t name = epoch && loaded ? loaded->name.in(epoch, loaded->label.data(), loaded->label.size()) : 0;
  if (epoch) {
    if (__builtin_expect(loaded && loaded->devices == count, 1)) {
      write(epoch, kLaunch, start, end - start, name, launch, error ? kFailed : 0);
    } else {
      static Name devices;
      fleetscope_argument argument = {devices.in(epoch, "devices", 7), FLEETSCOPE_ARGUMENT_INT, count};
      write(epoch, kLaunch, start, end - start, name, launch, error ? kFailed : 0, &argument, 1);
    }
  }
  if (__builtin_expect(error != nullptr, 0)) {
    g_counts.errors.fetch_add(1, std::memory_order_relaxed);
  } else if (events) {
    const Device* one = FLEETSCOPE_HAS(args, device) ? args->device : nullptr;
    for (size_t i = 0; i < count; ++i) {
      uint16_t ordinal = one                                     ? ordinal_of(one)
                         : loaded && i < loaded->ordinals.size() ? loaded->ordinals[i]
                                                                 : kUnknownDevice;
      watch(plugin, events[i], own != nullptr,
            {kDone, start, launch << 12 | ordinal, name, epoch, session, loaded ? uint32_t(loaded->load) : 0,
             module ? module->index : uint16_t{0}, i == 0 && module ? short_number(number) : uint16_t{0}});
    }
  }
  if (own && own != few) delete[] own;
  return error;
}

Error* client_create(const Plugin& plugin, ClientCreateArgs* args) {
  Error* error = plugin.call(kClientCreate, args);
  if (!error && !g_inherited.load() && FLEETSCOPE_HAS(args, client) && args->client) {
    start_keeper();
    client_created(&plugin, args->client);
  }
  return error;
}

Error* client_destroy(const Plugin& plugin, ClientArgs* args) {
  if (args->client && !g_inherited.load()) client_goes(&plugin, args->client);
  return plugin.call(kClientDestroy, args);
}

// A program came, or did not. `executable` is where the plugin leaves it.
void note_load(const Plugin& plugin, Error* error, Client* client, LoadedExecutable* executable, uint64_t begin,
               bool cached) {
  if (!error) {
    if (executable) program_loaded(&plugin, client, executable, begin, cached);
    return;
  }
  g_counts.errors.fetch_add(1, std::memory_order_relaxed);
  if (uint32_t epoch = recording()) {
    static Name none;
    write(epoch, kLoad, begin, g_recorder->now() - begin, none.in(epoch, "", 0), cached ? 1 : 0, kFailed);
  }
}

template <Slot slot, class Args>
Error* load(const Plugin& plugin, Args* args) {
  uint64_t begin = g_recorder->now();
  Error* error = plugin.call(slot, args);
  if (g_inherited.load() || !FLEETSCOPE_HAS(args, executable)) return error;
  note_load(plugin, error, args->client, error ? nullptr : args->executable, begin, slot == kDeserializeAndLoad);
  return error;
}

template <Slot slot>
Error* unload(const Plugin& plugin, LoadedArgs* args) {
  if (args->executable && !g_inherited.load()) program_unloads(args->executable);
  return plugin.call(slot, args);
}

uint16_t ordinal_of_buffer(const Plugin& plugin, Buffer* buffer) {
  BufferDeviceArgs args = {};
  args.struct_size = sizeof args;
  args.buffer = buffer;
  return plugin.ask(kBufferDevice, &args) ? ordinal_of(args.device) : kUnknownDevice;
}

Watched transfer(uint32_t epoch, uint8_t kind, uint64_t start, uint64_t bytes, uint16_t ordinal) {
  static Name none;
  return {kind, start, bytes << 12 | ordinal, none.in(epoch, "", 0), epoch, 0};
}

void note_failed(const Watched& what) {
  g_counts.errors.fetch_add(1, std::memory_order_relaxed);
  write(what.epoch, what.kind, what.start, g_recorder->now() - what.start, what.name, what.arg, kFailed);
}

// The buffer's own event: the one in the arguments says only that the host's memory is free again.
Error* buffer_from_host(const Plugin& plugin, BufferFromHostArgs* args) {
  uint32_t epoch = recording();
  if (!epoch || !FLEETSCOPE_HAS(args, buffer)) return plugin.call(kBufferFromHost, args);
  uint64_t bits = uint32_t(args->type) < sizeof kElementBits ? kElementBits[args->type] : 0;
  for (size_t i = 0; i < args->dim_count; ++i) bits *= uint64_t(args->dims[i]);
  const Device* device = args->device;
  uint64_t start = g_recorder->now();
  Error* error = plugin.call(kBufferFromHost, args);
  uint16_t ordinal = device ? ordinal_of(device) : error ? kUnknownDevice : ordinal_of_buffer(plugin, args->buffer);
  Watched what = transfer(epoch, kH2D, start, (bits + 7) / 8, ordinal);
  if (error) return note_failed(what), error;
  ReadyEventArgs ready = {};
  ready.struct_size = sizeof ready;
  ready.buffer = args->buffer;
  bool asked = plugin.ask(kBufferReadyEvent, &ready);
  watch(plugin, asked ? ready.event : nullptr, true, what);
  return error;
}

Error* transfer_data(const Plugin& plugin, TransferDataArgs* args) {
  uint32_t epoch = recording();
  if (!epoch || !FLEETSCOPE_HAS(args, event)) return plugin.call(kManagerTransferData, args);
  uint64_t start = g_recorder->now();
  Error* error = plugin.call(kManagerTransferData, args);
  ManagerDeviceArgs device = {};
  device.struct_size = sizeof device;
  device.manager = args->manager;
  uint16_t ordinal = plugin.ask(kManagerDevice, &device) ? ordinal_of(device.device) : kUnknownDevice;
  Watched what = transfer(epoch, kH2D, start, uint64_t(args->size), ordinal);
  if (error) return note_failed(what), error;
  watch(plugin, args->event, false, what);
  return error;
}

template <Slot slot, class Args>
Error* copy_to_host(const Plugin& plugin, Args* args, uint64_t bytes, bool counts) {
  uint32_t epoch = recording();
  if (!epoch || !counts || !FLEETSCOPE_HAS(args, event)) return plugin.call(slot, args);
  uint16_t ordinal = ordinal_of_buffer(plugin, args->buffer);
  uint64_t start = g_recorder->now();
  Error* error = plugin.call(slot, args);
  Watched what = transfer(epoch, kD2H, start, bytes, ordinal);
  if (error) return note_failed(what), error;
  watch(plugin, args->event, false, what);
  return error;
}

// Without a destination the call only asks for the size.
Error* to_host(const Plugin& plugin, ToHostArgs* args) {
  bool known = FLEETSCOPE_HAS(args, size);
  return copy_to_host<kBufferToHost>(plugin, args, known ? args->size : 0, known && args->to != nullptr);
}
Error* copy_raw(const Plugin& plugin, CopyRawArgs* args) {
  bool known = FLEETSCOPE_HAS(args, size);
  return copy_to_host<kBufferCopyRawToHost>(plugin, args, known ? uint64_t(args->size) : 0, known);
}
Error* copy_raw_future(const Plugin& plugin, CopyRawFutureArgs* args) {
  bool known = FLEETSCOPE_HAS(args, size);
  return copy_to_host<kBufferCopyRawToHostFuture>(plugin, args, known ? uint64_t(args->size) : 0, known);
}

// A function of the table has no room for a plugin's number: there is one of each for each of the eight.
template <uint8_t N, class Args, Error* (*function)(const Plugin&, Args*)>
Error* trampoline(void* args) {
  return function(g_plugins[N], static_cast<Args*>(args));
}

template <uint8_t N, class Args, Error* (*function)(const Plugin&, Args*)>
void set(Plugin* plugin, Slot slot) {
  if (plugin->has(slot)) plugin->ours->slots[slot] = trampoline<N, Args, function>;
}

template <uint8_t N>
void hook_as(Plugin* plugin) {
  set<N, ClientCreateArgs, client_create>(plugin, kClientCreate);
  set<N, ClientArgs, client_destroy>(plugin, kClientDestroy);
  set<N, CompileArgs, load<kClientCompile, CompileArgs>>(plugin, kClientCompile);
  set<N, DeserializeArgs, load<kDeserializeAndLoad, DeserializeArgs>>(plugin, kDeserializeAndLoad);
  set<N, LoadedArgs, unload<kLoadedDestroy>>(plugin, kLoadedDestroy);
  set<N, LoadedArgs, unload<kLoadedDelete>>(plugin, kLoadedDelete);
  set<N, ExecuteArgs, execute>(plugin, kLoadedExecute);
  set<N, BufferFromHostArgs, buffer_from_host>(plugin, kBufferFromHost);
  set<N, TransferDataArgs, transfer_data>(plugin, kManagerTransferData);
  set<N, ToHostArgs, to_host>(plugin, kBufferToHost);
  set<N, CopyRawArgs, copy_raw>(plugin, kBufferCopyRawToHost);
  set<N, CopyRawFutureArgs, copy_raw_future>(plugin, kBufferCopyRawToHostFuture);
}

}  // namespace

void hook(Plugin* plugin) {
  using Hooks = void (*)(Plugin*);
  static constexpr Hooks all[kPlugins] = {hook_as<0>, hook_as<1>, hook_as<2>, hook_as<3>,
                                          hook_as<4>, hook_as<5>, hook_as<6>, hook_as<7>};
  all[plugin->number](plugin);
}

}  // namespace fleetscope::pjrt
