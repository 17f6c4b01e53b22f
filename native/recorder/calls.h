// Calls of jitted functions by the training thread, and what it does between them: waiting for input, or something
// else.
//
// jax's fast path is C++ and shows nothing, so each jitted function's own vectorcall pointer leads here first. Between
// the end of one outermost call and the begin of the next lies a *gap*. What a gap was spent on is not known from the
// calls; a sampler (agents/profiler/inputs.py) looks at the thread's stack now and then and says "input" or not. Per
// function called next, the share of samples that said input times the gap's exact length is its wait for input.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "writer.h"

namespace fleetscope::recorder {

// The training thread: the one that makes the outermost calls. Compared with t_thread on the path of every region.
extern Thread* g_lead;

void lead_begins(uint64_t now);
void lead_ends(uint8_t kind, uint64_t start, uint64_t now);

// A region of this thread begins or ends: an inferred wait must not cross it.
inline void region_begins(const Thread* thread, uint64_t now) {
  if (__builtin_expect(thread == g_lead, 0)) lead_begins(now);
}
inline void region_ends(const Thread* thread, uint8_t kind, uint64_t start, uint64_t now) {
  if (__builtin_expect(thread == g_lead, 0)) lead_ends(kind, start, now);
}

PyObject* watch_calls(PyObject* module, PyObject* function);
PyObject* on_watched_call(PyObject* module, PyObject* function);
PyObject* want_stack(PyObject* module, PyObject* unused);
PyObject* gap(PyObject* module, PyObject* unused);
PyObject* gap_sample(PyObject* module, PyObject* args);
PyObject* leads(PyObject* module, PyObject* unused);

}  // namespace fleetscope::recorder
