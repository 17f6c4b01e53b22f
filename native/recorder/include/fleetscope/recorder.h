/* fleetscope/recorder.h: spans from C and C++ into the recorder of the process. C11 or C++17, GCC or Clang, no library
 * to link.
 *
 *   void load(int shard) {
 *     FLEETSCOPE_SCOPE("load shard");          // until the end of the block
 *     FLEETSCOPE_COUNTER("shard", shard);
 *   }
 *
 * Where the process has no fleetscope, or no agent listens, a scope is one load and one branch. The recorder is a
 * Python module that may be imported later than this library is loaded: it is looked for again after 1, 2, 4, 8 ...
 * scopes, and at each call of fleetscope_connect(). Names are string literals: they must live as long as the process.
 */
#ifndef FLEETSCOPE_RECORDER_H
#define FLEETSCOPE_RECORDER_H

#include <dlfcn.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A place in the code. Zero but for its first fields; the rest is the recorder's. */
typedef struct fleetscope_site {
  const char* name;
  uint8_t level;  /* 1 user, 2 framework, 3 verbose */
  uint8_t sample; /* one in 2^sample leaves a record, with its weight; at most 20 */
  uint16_t reserved;
  uint32_t hits;
  uint64_t state;
} fleetscope_site;

#define FLEETSCOPE_SITE(name) {name, 1, 0, 0, 0, 0}

/* A region that has begun. `start` 0: it has not, and its end does nothing. */
typedef struct fleetscope_region {
  fleetscope_site* site;
  uint64_t start;
  uint64_t flow; /* links regions of threads and processes; 0: none */
} fleetscope_region;

/* What the recorder offers, in the order of versions: fields are added at the end, `size` says up to where. */
typedef struct fleetscope_recorder_table {
  uint32_t version;
  uint32_t size;
  const uint64_t* gate; /* its low 32 bits are 0 while nothing is recorded */
  void (*begin)(fleetscope_region* region);
  void (*end)(fleetscope_region* region);
  void (*instant)(fleetscope_site* site, uint64_t flow);
  void (*counter_int)(fleetscope_site* site, int64_t value);
  void (*counter_float)(fleetscope_site* site, double value);
  /* A recorder of an earlier release ends here: size tells. */
  void (*link)(uint32_t role, uint32_t context_type, uint64_t context_id);
  uint64_t (*new_flow)(void);
} fleetscope_recorder_table;

/* Roles of a link, and the context types of XLA's TraceMe for plugins that share ids with it; 0: anything. */
#define FLEETSCOPE_PRODUCES 1u
#define FLEETSCOPE_CONSUMES 2u
#define FLEETSCOPE_CONTEXT_GENERIC 0u

#define FLEETSCOPE_RECORDER_TABLE_VERSION 1u
#define FLEETSCOPE_RECORDER_TABLE_SYMBOL "fleetscope_recorder_table_v1"

#ifdef __cplusplus
} /* extern "C" */
#define FLEETSCOPE_SHARED_ inline
#else
#define FLEETSCOPE_SHARED_ static
#endif

#if defined(__GNUC__)
#define FLEETSCOPE_COLD_ __attribute__((noinline, cold, unused))
#define FLEETSCOPE_UNUSED_ __attribute__((unused))
#else
#error "fleetscope/recorder.h needs GCC or Clang"
#endif

/* One a library in C++, one a file in C. */
FLEETSCOPE_UNUSED_ FLEETSCOPE_SHARED_ const fleetscope_recorder_table* fleetscope_table_ = 0;
FLEETSCOPE_UNUSED_ FLEETSCOPE_SHARED_ uint32_t fleetscope_misses_ = 0;

/* Looks for the recorder: 1 when it is there. From any thread. */
FLEETSCOPE_SHARED_ FLEETSCOPE_COLD_ int fleetscope_connect(void) {
  typedef const fleetscope_recorder_table* (*get_table)(void);
  get_table get;
  void* symbol = dlsym((void*)0 /* RTLD_DEFAULT */, FLEETSCOPE_RECORDER_TABLE_SYMBOL);
  const fleetscope_recorder_table* table;
  if (!symbol) return 0;
  __builtin_memcpy(&get, &symbol, sizeof get);
  table = get();
  if (!table || table->version != FLEETSCOPE_RECORDER_TABLE_VERSION) return 0;
  if (table->size < __builtin_offsetof(fleetscope_recorder_table, link)) return 0;
  __atomic_store_n(&fleetscope_table_, table, __ATOMIC_RELEASE);
  return 1;
}

FLEETSCOPE_SHARED_ FLEETSCOPE_COLD_ const fleetscope_recorder_table* fleetscope_look_(void) {
  uint32_t misses = __atomic_add_fetch(&fleetscope_misses_, 1, __ATOMIC_RELAXED);
  if ((misses & (misses - 1)) == 0) fleetscope_connect();
  return __atomic_load_n(&fleetscope_table_, __ATOMIC_ACQUIRE);
}

/* The recorder while it records, else null. */
FLEETSCOPE_UNUSED_ FLEETSCOPE_SHARED_ const fleetscope_recorder_table* fleetscope_on(void) {
  const fleetscope_recorder_table* table = __atomic_load_n(&fleetscope_table_, __ATOMIC_ACQUIRE);
  if (__builtin_expect(!table, 0)) table = fleetscope_look_();
  if (!table || (uint32_t)__atomic_load_n(table->gate, __ATOMIC_RELAXED) == 0) return 0;
  return table;
}

/* Begin and end, for regions that are no block. The end belongs on the thread of the begin. */
FLEETSCOPE_UNUSED_ FLEETSCOPE_SHARED_ void fleetscope_begin(fleetscope_region* region, fleetscope_site* site) {
  const fleetscope_recorder_table* table = fleetscope_on();
  region->site = site;
  region->start = 0;
  region->flow = 0;
  if (__builtin_expect(table != 0, 0)) table->begin(region);
}

FLEETSCOPE_UNUSED_ FLEETSCOPE_SHARED_ void fleetscope_end(fleetscope_region* region) {
  if (__builtin_expect(region->start != 0, 0)) fleetscope_table_->end(region);
}

FLEETSCOPE_UNUSED_ FLEETSCOPE_SHARED_ void fleetscope_instant(fleetscope_site* site, uint64_t flow) {
  const fleetscope_recorder_table* table = fleetscope_on();
  if (__builtin_expect(table != 0, 0)) table->instant(site, flow);
}

FLEETSCOPE_UNUSED_ FLEETSCOPE_SHARED_ void fleetscope_counter_int(fleetscope_site* site, int64_t value) {
  const fleetscope_recorder_table* table = fleetscope_on();
  if (__builtin_expect(table != 0, 0)) table->counter_int(site, value);
}

FLEETSCOPE_UNUSED_ FLEETSCOPE_SHARED_ void fleetscope_counter_float(fleetscope_site* site, double value) {
  const fleetscope_recorder_table* table = fleetscope_on();
  if (__builtin_expect(table != 0, 0)) table->counter_float(site, value);
}

/* Links the region this thread is in to those that give or take the same (type, id), in whatever process: it made what
 * they go on with, or goes on with what one of them made. Outside of any region it is a moment of its own. */
FLEETSCOPE_UNUSED_ FLEETSCOPE_SHARED_ void fleetscope_link(uint32_t role, uint32_t context_type, uint64_t context_id) {
  const fleetscope_recorder_table* table = fleetscope_on();
  if (__builtin_expect(table != 0, 0) && table->size > __builtin_offsetof(fleetscope_recorder_table, link)) {
    table->link(role, context_type, context_id);
  }
}

/* An id for a link that no other process is likely to give, 1 to 2^63 - 1; 0 where there is no recorder. */
FLEETSCOPE_UNUSED_ FLEETSCOPE_SHARED_ uint64_t fleetscope_new_flow(void) {
  const fleetscope_recorder_table* table = __atomic_load_n(&fleetscope_table_, __ATOMIC_ACQUIRE);
  if (__builtin_expect(!table, 0)) table = fleetscope_look_();
  if (!table || table->size <= __builtin_offsetof(fleetscope_recorder_table, new_flow)) return 0;
  return table->new_flow();
}

#define FLEETSCOPE_PRODUCER(context_type, context_id) \
  fleetscope_link(FLEETSCOPE_PRODUCES, (context_type), (uint64_t)(context_id))
#define FLEETSCOPE_CONSUMER(context_type, context_id) \
  fleetscope_link(FLEETSCOPE_CONSUMES, (context_type), (uint64_t)(context_id))

#define FLEETSCOPE_JOIN2_(a, b) a##b
#define FLEETSCOPE_JOIN_(a, b) FLEETSCOPE_JOIN2_(a, b)
#define FLEETSCOPE_NAME_(what) FLEETSCOPE_JOIN_(fleetscope_##what##_, __LINE__)

#define FLEETSCOPE_INSTANT(name)                                     \
  do {                                                               \
    static fleetscope_site fleetscope_here_ = FLEETSCOPE_SITE(name); \
    fleetscope_instant(&fleetscope_here_, 0);                        \
  } while (0)

#ifdef __cplusplus
namespace fleetscope {

/* A region until the end of its block. */
class Scope {
 public:
  explicit Scope(fleetscope_site* site) { fleetscope_begin(&region_, site); }
  ~Scope() { fleetscope_end(&region_); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  void flow(uint64_t id) { region_.flow = id; }

 private:
  fleetscope_region region_;
};

inline void counter(fleetscope_site* site, double value) { fleetscope_counter_float(site, value); }
inline void counter(fleetscope_site* site, float value) { fleetscope_counter_float(site, double(value)); }
template <class Integer>
void counter(fleetscope_site* site, Integer value) {
  fleetscope_counter_int(site, int64_t(value));
}

} /* namespace fleetscope */

#define FLEETSCOPE_SCOPE_AS(variable, name)                              \
  static fleetscope_site FLEETSCOPE_NAME_(site) = FLEETSCOPE_SITE(name); \
  ::fleetscope::Scope variable(&FLEETSCOPE_NAME_(site))
#define FLEETSCOPE_FLOW(variable, id) (variable).flow(id)
#define FLEETSCOPE_COUNTER(name, value)                              \
  do {                                                               \
    static fleetscope_site fleetscope_here_ = FLEETSCOPE_SITE(name); \
    ::fleetscope::counter(&fleetscope_here_, value);                 \
  } while (0)

#else

#define FLEETSCOPE_SCOPE_AS(variable, name)                              \
  static fleetscope_site FLEETSCOPE_NAME_(site) = FLEETSCOPE_SITE(name); \
  __attribute__((cleanup(fleetscope_end))) fleetscope_region variable;   \
  fleetscope_begin(&variable, &FLEETSCOPE_NAME_(site))
#define FLEETSCOPE_FLOW(variable, id) ((variable).flow = (id))
#define FLEETSCOPE_COUNTER(name, value)                              \
  do {                                                               \
    static fleetscope_site fleetscope_here_ = FLEETSCOPE_SITE(name); \
    _Generic((value),                                                \
        float: fleetscope_counter_float,                             \
        double: fleetscope_counter_float,                            \
        default: fleetscope_counter_int)(&fleetscope_here_, value);  \
  } while (0)

#endif

#define FLEETSCOPE_SCOPE(name) FLEETSCOPE_SCOPE_AS(FLEETSCOPE_NAME_(scope), name)

#endif /* FLEETSCOPE_RECORDER_H */
