// Python objects over the writer. Everything here runs under the GIL and never leaves a Python exception of its own
// behind.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "calls.h"
#include "writer.h"

namespace fleetscope::recorder {

// A named region: `with` and decorator. Without arguments there is one object a name, shared by all its uses.
struct Annotation {
  PyObject_VAR_HEAD PyObject* name;
  PyObject* kwargs;    // what args are made of again in a new segment, or nullptr
  uint64_t number;     // step of a kStep
  uint64_t armed;      // the gate for which name_id, the arguments' keys and shift hold
  Annotation* shared;  // that of its name, which counts its passes; nullptr: itself
  uint64_t hits;
  uint32_t name_id;
  uint8_t shift;  // one in 2^shift leaves a record
  uint8_t kind;
  uint8_t arg_count;
  bool is_step;
  bool entered;
  bool lasts;        // held for good, for all uses of its name
  Argument args[1];  // room for ob_size of them: links, then arguments
};

extern PyTypeObject AnnotationType;
extern PyTypeObject DecoratedType;
// (annotation, function) -> wrapper of a coroutine or generator function; set from Python.
extern PyObject* g_async_wrapper;

// The shared annotation of a name (new reference), or nullptr without an exception set.
Annotation* annotation_of(PyObject* name);
// One of its own, for arguments (`reusable`: it may outlive the segment that is open now).
Annotation* annotation_with(PyObject* name, PyObject* kwargs, bool reusable);
Annotation* annotation_of_step(PyObject* name, int64_t step, PyObject* kwargs);

// Begin and end on behalf of `owner`; no-ops while the gate is closed. `held`: the region takes over a reference.
void annotation_enter(Annotation* annotation, const void* owner, const void* frame, bool held);
void annotation_exit(const void* owner, const void* frame);

// What the governor has made of a name.
uint8_t thinned(PyObject* name);

// Id of a str in the open segment; 0 when it has no room or `text` is no str.
uint32_t name_id_of(PyObject* text);
// A new segment has no names yet.
void forget_names();
uint8_t kind_of_name(const char* text, Py_ssize_t bytes);

bool add_annotation_types(PyObject* module);

// Appends what `open` was, ended at `now`, unless it is one that leaves no record.
void end_record(Thread* thread, const Open& open, uint64_t now, uint64_t arg, const Argument* args, uint32_t count);

// The counter at the end of the newest region; 0 where nobody asks for it: that one leaves no record.
inline uint64_t counter_of_end(const Thread* thread) {
  bool unseen = thread->depth && thread->stack[thread->depth - 1].unsampled && thread != g_lead;
  return __builtin_expect(unseen, 0) ? 0 : counter();
}

// The Python frame that runs: an address that a generator or task keeps for its life.
inline const void* current_frame() {
#if PY_VERSION_HEX >= 0x030d0000
  return PyThreadState_GetUnchecked()->current_frame;
#else
  return _PyThreadState_UncheckedGet()->cframe->current_frame;
#endif
}

// The thread, registered and named on its first event; nullptr when there is no ring (counted).
Thread* thread_for_event(uint32_t epoch);

// Patch of jax's TraceAnnotation (jax_patch.cpp).
PyObject* patch_jax(PyObject* module, PyObject* type);
PyObject* unpatch_jax(PyObject* module, PyObject* unused);

extern PyTypeObject ReaderType;  // reader_object.cpp

}  // namespace fleetscope::recorder
