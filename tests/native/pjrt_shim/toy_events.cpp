// How completions come: at once, from a worker, when somebody says so, never, twice. And the log of them, in the
// recorder's counter, against which the shim's records are judged.
#include <pthread.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <thread>

#include "toy.h"

namespace toy {

std::atomic<int64_t> g_events_live{0};

Entry* g_log = nullptr;
std::atomic<uint64_t> g_logged{0};
uint64_t g_log_size = 0;

// ---- events
ToyEvent* make_event(int64_t mode) {
  g_events_live.fetch_add(1, std::memory_order_relaxed);
  auto* event = new ToyEvent;
  event->mode = mode;
  return event;
}
void release(ToyEvent* event) {
  if (event->references.fetch_sub(1) == 1) {
    g_events_live.fetch_sub(1, std::memory_order_relaxed);
    delete event;
  }
}
static void call(ToyEvent* event, void (*callback)(Error*, void*), void* user) {
  callback(event->failed ? fail(13, "the device failed") : nullptr, user);
}
static void complete(ToyEvent* event) {
  decltype(event->callbacks) callbacks;
  {
    std::lock_guard<std::mutex> hold(event->lock);
    // Before anybody can see that it is over.
    if (event->entry) event->entry->before.store(ticks());
    event->ready = true;
    event->failed = event->mode == kDeviceFails;
    callbacks.swap(event->callbacks);
  }
  Entry* entry = event->entry;
  for (auto& [callback, user] : callbacks) call(event, callback, user);
  if (event->mode == kTwice) {
    for (auto& [callback, user] : callbacks) call(event, callback, user);
  }
  if (entry && !callbacks.empty()) entry->after.store(ticks());
  release(event);
}

// ---- the device: one worker
namespace {

struct Worker {
  std::mutex lock;
  std::condition_variable wake;
  std::deque<ToyEvent*> queue;
  std::deque<ToyEvent*> held;
  bool started = false;
  std::atomic<int64_t> waiting{0};
}* g_worker = new Worker;

void work() {
  pthread_setname_np(pthread_self(), "toy-device");
  std::unique_lock<std::mutex> hold(g_worker->lock);
  for (;;) {
    while (g_worker->queue.empty()) g_worker->wake.wait(hold);
    std::deque<ToyEvent*> taken;
    taken.swap(g_worker->queue);
    hold.unlock();
    for (ToyEvent* event : taken) {
      if (event->entry) event->entry->began.store(ticks());
      int64_t stall = g_options.stall_us.load(std::memory_order_relaxed);
      if (stall) usleep(useconds_t(stall));
      complete(event);
      g_worker->waiting.fetch_sub(1);
    }
    hold.lock();
  }
}
void submit(ToyEvent* event) {
  std::lock_guard<std::mutex> hold(g_worker->lock);
  if (!g_worker->started) g_worker->started = true, std::thread(work).detach();
  bool first = g_worker->queue.empty();
  g_worker->queue.push_back(event);
  g_worker->waiting.fetch_add(1);
  if (first) g_worker->wake.notify_one();
}

}  // namespace

void run(ToyEvent* event) {
  event->references.fetch_add(1);
  switch (event->mode) {
    case kInline:
    case kOnReadyFails:
    case kOnReadyLies:
      complete(event);
      break;
    case kNever:
      break;
    case kHeld: {
      std::lock_guard<std::mutex> hold(g_worker->lock);
      g_worker->held.push_back(event);
      break;
    }
    default:
      submit(event);
  }
}

Error* event_destroy(void* raw) {
  auto* args = expect<EventArgs>(raw);
  if (args->event) release(reinterpret_cast<ToyEvent*>(args->event));
  return nullptr;
}
Error* event_on_ready(void* raw) {
  Inside inside;
  auto* args = expect<OnReadyArgs>(raw);
  auto* event = reinterpret_cast<ToyEvent*>(args->event);
  if (event->mode == kOnReadyFails) return fail(13, "no callbacks today");
  if (event->mode == kOnReadyLies) return args->callback(nullptr, args->user), fail(13, "no callbacks today");
  {
    std::lock_guard<std::mutex> hold(event->lock);
    if (!event->ready) {
      event->callbacks.emplace_back(args->callback, args->user);
      return nullptr;
    }
  }
  // Ready before anybody listened: the listener is told here, and that is when it knows.
  call(event, args->callback, args->user);
  if (event->mode == kTwice) call(event, args->callback, args->user);
  if (event->entry) event->entry->after.store(ticks());
  return nullptr;
}

}  // namespace toy

using namespace toy;

TOY_API void toy_log(uint64_t entries) {
  delete[] g_log;
  g_log = new Entry[entries];
  g_log_size = entries;
  g_logged.store(0);
}
TOY_API uint64_t toy_read_log(uint64_t at, uint64_t count, uint64_t* into) {
  for (uint64_t i = 0; i < count; ++i, into += 7) {
    const Entry& entry = g_log[at + i];
    into[0] = entry.executable, into[1] = entry.number, into[2] = entry.device, into[3] = entry.enqueued;
    into[4] = entry.before.load(), into[5] = entry.after.load();
    into[6] = entry.began.load();
  }
  return g_logged.load();
}
TOY_API int64_t toy_release(int64_t most) {
  std::deque<ToyEvent*> all;
  {
    std::lock_guard<std::mutex> hold(g_worker->lock);
    while (most-- > 0 && !g_worker->held.empty()) {
      if (g_options.reverse) {
        all.push_back(g_worker->held.back());
        g_worker->held.pop_back();
      } else {
        all.push_back(g_worker->held.front());
        g_worker->held.pop_front();
      }
    }
  }
  for (ToyEvent* event : all) complete(event);
  return int64_t(all.size());
}
TOY_API int64_t toy_waiting() { return g_worker->waiting.load(); }
