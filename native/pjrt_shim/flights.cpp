#include "flights.h"

#include <pthread.h>
#include <sys/mman.h>

#include "state.h"

namespace fleetscope::pjrt {
namespace {

// Ticket: generation << 27 | entry << 3 | plugin. 37 bits of generation: an entry used 10^5 times a second repeats
// after 15 days, and only a callback that late could be taken for another.
constexpr uint32_t kEntryBits = 24, kChunk = 256, kChunks = (1u << kEntryBits) / kChunk;
constexpr uint64_t kGenerations = uint64_t{1} << 37;

std::atomic<Flight*> g_chunks[kChunks];
std::atomic<uint32_t> g_chunk_count{0};
std::atomic<uint32_t> g_returned{0};  // stack of entries, as index + 1
pthread_mutex_t g_chunk_lock = PTHREAD_MUTEX_INITIALIZER;

// Index + 1 of the first entry of this thread's own list.
thread_local uint32_t t_first __attribute__((tls_model("initial-exec"))) = 0;
pthread_key_t g_exit_key;
pthread_once_t g_exit_once = PTHREAD_ONCE_INIT;

Flight* entry(uint32_t index) { return g_chunks[index / kChunk].load(std::memory_order_acquire) + index % kChunk; }

void give_back(uint32_t first, Flight* last) {
  uint32_t head = g_returned.load(std::memory_order_relaxed);
  do last->next = head;
  while (!g_returned.compare_exchange_weak(head, first, std::memory_order_release, std::memory_order_relaxed));
}

void thread_exits(void*) {
  uint32_t first = t_first;
  t_first = 0;
  if (!first) return;
  Flight* last = entry(first - 1);
  while (last->next) last = entry(last->next - 1);
  give_back(first, last);
}

bool add_chunk() {
  Hold hold(&g_chunk_lock);
  uint32_t number = g_chunk_count.load(std::memory_order_relaxed);
  if (number == kChunks) return false;
  void* memory =
      mmap(nullptr, kChunk * sizeof(Flight), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return false;
  auto* flights = static_cast<Flight*>(memory);
  for (uint32_t i = 0; i < kChunk; ++i) {
    flights[i].turn.store(2, std::memory_order_relaxed);  // generation 1: no ticket is null
    flights[i].index = number * kChunk + i;
    flights[i].next = i + 1 < kChunk ? number * kChunk + i + 2 : 0;
  }
  g_chunks[number].store(flights, std::memory_order_release);
  g_chunk_count.store(number + 1, std::memory_order_relaxed);
  t_first = number * kChunk + 1;
  return true;
}

}  // namespace

Flight* take_flight() {
  if (__builtin_expect(t_first == 0, 0)) {
    pthread_once(&g_exit_once, [] { pthread_key_create(&g_exit_key, thread_exits); });
    t_first = g_returned.exchange(0, std::memory_order_acquire);
    if (t_first == 0 && !add_chunk()) return nullptr;
    pthread_setspecific(g_exit_key, &g_exit_key);  // any value: the destructor runs
  }
  Flight* flight = entry(t_first - 1);
  t_first = flight->next;
  // The next one was last written by the plugin's thread: fetched now, it is here when the next call needs it.
  if (t_first) __builtin_prefetch(entry(t_first - 1), 1);
  return flight;
}

void return_flight(Flight* flight) { give_back(flight->index + 1, flight); }

void* take_off(Flight* flight) {
  uint64_t turn = flight->turn.load(std::memory_order_relaxed);
  flight->turn.store(turn | 1, std::memory_order_release);
  return reinterpret_cast<void*>((turn >> 1) << 27 | uint64_t{flight->index} << 3 | flight->plugin);
}

Flight* land(void* ticket) {
  uint64_t bits = reinterpret_cast<uint64_t>(ticket);
  uint32_t index = uint32_t(bits >> 3) & ((1u << kEntryBits) - 1);
  if (index / kChunk >= g_chunk_count.load(std::memory_order_acquire)) return nullptr;
  Flight* flight = entry(index);
  uint64_t generation = bits >> 27;
  uint64_t up = generation << 1 | 1;
  uint64_t next = generation + 1 == kGenerations ? 1 : generation + 1;
  return flight->turn.compare_exchange_strong(up, next << 1, std::memory_order_acq_rel) ? flight : nullptr;
}

uint8_t plugin_of(void* ticket) { return uint8_t(reinterpret_cast<uint64_t>(ticket) & 7); }

uint64_t flights_now() {
  uint64_t up = 0;
  for (uint32_t i = 0; i < g_chunk_count.load(std::memory_order_acquire) * kChunk; ++i) {
    up += entry(i)->turn.load(std::memory_order_relaxed) & 1;
  }
  return up;
}

void flights_after_fork() { g_chunk_lock = PTHREAD_MUTEX_INITIALIZER; }

}  // namespace fleetscope::pjrt
