// The module fleetscope.native._recorder: what a training process calls, and the reader for the node agent.
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include <algorithm>

#include "annotation.h"
#include "calls.h"
#include "fleetscope/recorder.h"
#include "link_values.h"
#include "native.h"
#include "site.h"
#include "thin.h"

extern "C" const fleetscope_recorder_table* fleetscope_recorder_table_v1(void);  // public.cpp

namespace fleetscope::recorder {
namespace {

PyObject* g_step_name = nullptr;
PyObject* g_first_use = nullptr;

// The first annotation, step or counter starts the profiler; all later ones pay one test of a pointer.
inline void first_use() {
  if (__builtin_expect(g_first_use == nullptr, 1)) return;
  PyObject* function = g_first_use;
  g_first_use = nullptr;
  PyObject* done = PyObject_CallNoArgs(function);
  if (!done) PyErr_Clear();
  Py_XDECREF(done);
  Py_DECREF(function);
}

template <class Function>
PyCFunction method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// annotate(name, /, **args). A name that is no str is named by its str(): user code never sees an error of ours.
PyObject* annotate(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  first_use();
  PyObject* name = count > 0 ? args[0] : nullptr;
  if (name && !names && PyUnicode_CheckExact(name) && PyUnicode_CHECK_INTERNED(name)) return site_of_literal(name);
  PyObject* text = nullptr;
  if (!name || !PyUnicode_Check(name)) {
    text = name ? PyObject_Str(name) : PyUnicode_FromString("unnamed");
    if (!text) PyErr_Clear(), text = PyUnicode_FromString("unnamed");
    if (!text) return nullptr;
    name = text;
  }
  Annotation* annotation;
  if (!names || !PyTuple_GET_SIZE(names)) {
    annotation = annotation_of(name);
  } else {
    PyObject* kwargs = PyDict_New();
    for (Py_ssize_t i = 0; kwargs && i < PyTuple_GET_SIZE(names); ++i) {
      if (PyDict_SetItem(kwargs, PyTuple_GET_ITEM(names, i), args[count + i]) < 0) PyErr_Clear();
    }
    PyErr_Clear();
    annotation = annotation_with(name, kwargs, true);
    Py_XDECREF(kwargs);
  }
  Py_XDECREF(text);
  return annotation ? reinterpret_cast<PyObject*>(annotation) : PyErr_NoMemory();
}

bool integer_of(PyObject* object, int64_t* value) {
  if (!PyLong_Check(object) && !(PyIndex_Check(object) && strncmp(Py_TYPE(object)->tp_name, "numpy.", 6) == 0))
    return false;
  PyObject* index = PyNumber_Index(object);
  int overflow = 0;
  *value = index ? PyLong_AsLongLongAndOverflow(index, &overflow) : 0;
  Py_XDECREF(index);
  PyErr_Clear();
  return index && !overflow;
}

// step(number, /, **args)
PyObject* step(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  first_use();
  int64_t number = 0;
  Annotation* annotation;
  if (count < 1 || !integer_of(args[0], &number)) {
    annotation = annotation_of(g_step_name);  // no number: a plain region
  } else {
    PyObject* kwargs = names && PyTuple_GET_SIZE(names) ? PyDict_New() : nullptr;
    for (Py_ssize_t i = 0; kwargs && i < PyTuple_GET_SIZE(names); ++i) {
      if (PyDict_SetItem(kwargs, PyTuple_GET_ITEM(names, i), args[count + i]) < 0) PyErr_Clear();
    }
    PyErr_Clear();
    annotation = annotation_of_step(g_step_name, number, kwargs);
    if (annotation) annotation->is_step = true;
    Py_XDECREF(kwargs);
  }
  return annotation ? reinterpret_cast<PyObject*>(annotation) : PyErr_NoMemory();
}

// count(name, value, /)
PyObject* count_value(PyObject*, PyObject* const* args, Py_ssize_t count) {
  first_use();
  uint32_t epoch = gate();
  if (epoch && count == 2) {
    uint64_t bits = 0;
    uint8_t kind = kCounterInt;
    int64_t whole = 0;
    bool known = true;
    if (PyFloat_Check(args[1])) {  // numpy.float64 is one
      double value = PyFloat_AS_DOUBLE(args[1]);
      memcpy(&bits, &value, sizeof bits);
      kind = kCounterFloat;
    } else if (integer_of(args[1], &whole)) {
      bits = uint64_t(whole);
    } else if (strncmp(Py_TYPE(args[1])->tp_name, "numpy.float", 11) == 0) {
      double value = PyFloat_AsDouble(args[1]);
      PyErr_Clear();
      memcpy(&bits, &value, sizeof bits);
      kind = kCounterFloat;
    } else {
      known = false;  // a device array: reading it would wait for the device
    }
    Thread* thread = known ? thread_for_event(epoch) : nullptr;
    if (thread) append(thread, counter(), name_id_of(args[0]), 0, bits, kind, nullptr, 0);
  }
  Py_RETURN_NONE;
}

// span(name, kind, duration_s, /): an event that ends now and whose length somebody else measured.
PyObject* span(PyObject*, PyObject* args) {
  PyObject* name;
  unsigned char kind;
  double duration_s;
  if (!PyArg_ParseTuple(args, "Ubd", &name, &kind, &duration_s)) return nullptr;
  uint32_t epoch = gate();
  Thread* thread = epoch && duration_s >= 0 && duration_s < 1e9 ? thread_for_event(epoch) : nullptr;
  if (thread) {
    const Header* head = segment_header();
    uint64_t ticks = uint64_t(duration_s * 1e9 * double(head->period_den) / double(head->period_num));
    uint64_t now = counter();
    region_ends(thread, kind, now - ticks, now);
    append(thread, now - ticks, name_id_of(name), ticks, running_step(), kind, nullptr, 0);
  }
  Py_RETURN_NONE;
}

// set_thinning(rest, {name: shift}): one in 2^shift passes of these names leaves a record from now on, of all others
// one in 2^rest. Steps and regions of a kind of their own are not thinned.
PyObject* set_thinning(PyObject*, PyObject* args) {
  unsigned char rest;
  PyObject *names, *name, *shift;
  if (!PyArg_ParseTuple(args, "bO!", &rest, &PyDict_Type, &names)) return nullptr;
  Thinned thinned[kThinned];
  uint32_t count = 0;
  Py_ssize_t at = 0, bytes = 0;
  while (count < kThinned && PyDict_Next(names, &at, &name, &shift)) {
    const char* utf8 = PyUnicode_AsUTF8AndSize(name, &bytes);
    long value = utf8 ? PyLong_AsLong(shift) : -1;
    if (!utf8 || PyErr_Occurred()) return nullptr;
    if (value >= 0 && value <= kShiftLimit) thinned[count++] = {hash_of_name(utf8, size_t(bytes)), uint8_t(value)};
  }
  if (set_thinned(rest <= kShiftLimit ? rest : kShiftLimit, thinned, count)) turn_gate();
  Py_RETURN_NONE;
}

// region_cost() -> (ps of a region that leaves a record, ps of one that is left out)
PyObject* region_cost(PyObject*, PyObject*) {
  RegionCost cost;
  Py_BEGIN_ALLOW_THREADS;
  cost = measure_regions();
  Py_END_ALLOW_THREADS;
  return Py_BuildValue("KK", (unsigned long long)cost.record_ps, (unsigned long long)cost.pass_ps);
}

PyObject* opened(const OpenResult& result, bool is_new) {
  if (result.error) {
    errno = result.error;
    return PyErr_SetFromErrnoWithFilename(PyExc_OSError, result.path);
  }
  if (is_new) forget_names();
  return PyUnicode_DecodeFSDefault(result.path);
}

// open(directory): None makes one without a name.
PyObject* open_ring(PyObject*, PyObject* directory) {
  const char* path = directory == Py_None ? nullptr : PyUnicode_AsUTF8(directory);
  if (!path && directory != Py_None) return nullptr;
  bool open = segment_is_open();
  return opened(open_segment(path), !open);
}

// renew(directory, unlink the old one)
PyObject* renew_ring(PyObject*, PyObject* args) {
  const char* path;
  int unlink;
  if (!PyArg_ParseTuple(args, "zp", &path, &unlink)) return nullptr;
  return opened(renew_segment(path, unlink != 0), true);
}

PyObject* descriptor(PyObject*, PyObject*) { return PyLong_FromLong(segment_descriptor()); }

PyObject* close_ring(PyObject*, PyObject* unlink) {
  close_segment(PyObject_IsTrue(unlink) == 1);
  Py_RETURN_NONE;
}

PyObject* record(PyObject*, PyObject* on) {
  set_recording(PyObject_IsTrue(on) == 1);
  Py_RETURN_NONE;
}

PyObject* recording(PyObject*, PyObject*) { return PyBool_FromLong(gate() != 0); }

PyObject* now(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(counter()); }

const char* name_of(ClockKind kind) { return kind == ClockKind::kTsc ? "tsc" : "monotonic_raw"; }

// clocks(name): of the counter of that name; without one, of the counter that stamps here.
PyObject* clocks(PyObject*, PyObject* args) {
  const char* name = nullptr;
  if (!PyArg_ParseTuple(args, "|z", &name)) return nullptr;
  ClockKind kind = segment_is_open() ? g_clock.load() : host_clock().kind;
  if (name) kind = strcmp(name, name_of(ClockKind::kTsc)) == 0 ? ClockKind::kTsc : ClockKind::kMonotonicRaw;
  Anchor anchor = read_anchor(kind, 5);
  return Py_BuildValue("LLLL", (long long)anchor.raw_before_ns, (long long)anchor.counter,
                       (long long)anchor.realtime_ns, (long long)anchor.raw_after_ns);
}

// bracket(clock_id, tries): (MONOTONIC_RAW, clock, MONOTONIC_RAW), ns, the tightest of 1 to 64 tries. The device behind
// a clock may take its time, and then others run.
PyObject* bracket(PyObject*, PyObject* args) {
  int id, tries;
  if (!PyArg_ParseTuple(args, "ii", &id, &tries)) return nullptr;
  Bracket best{};
  tries = std::clamp(tries, 1, 64);
  bool known;
  if (id >= 0) {
    known = read_bracket(id, tries, &best);
  } else {
    Py_BEGIN_ALLOW_THREADS;
    known = read_bracket(id, tries, &best);
    Py_END_ALLOW_THREADS;
  }
  if (!known) return PyErr_SetFromErrno(PyExc_OSError);
  return Py_BuildValue("LLL", (long long)best.raw_before_ns, (long long)best.value_ns, (long long)best.raw_after_ns);
}

// clock_change(look, name, before): "" while the counter of that name, read by clocks() as `before`, goes on as it did
// and is the host's, else why it does not. `look`: also at what the kernel keeps time by now (0.3 ms), which
// host_counter() is from then on. A segment that is open keeps its counter.
PyObject* clock_change(PyObject*, PyObject* args) {
  int look;
  const char* name;
  long long raw_before, count, realtime, raw_after;
  if (!PyArg_ParseTuple(args, "ps(LLLL)", &look, &name, &raw_before, &count, &realtime, &raw_after)) return nullptr;
  Clock clock = host_clock();
  Anchor before = {raw_before, count, realtime, raw_after};
  const char* fault = nullptr;
  if (strcmp(name, name_of(clock.kind)) == 0) fault = clock_fault(clock, before, read_anchor(clock.kind, 5));
  if (look || fault) {
    Py_BEGIN_ALLOW_THREADS;
    clock = look_again();
    Py_END_ALLOW_THREADS;
  }
  if (strcmp(name, name_of(clock.kind)) != 0) fault = "another source";
  return PyUnicode_FromString(fault ? fault : "");
}

// clock_source(path): where the kernel says what it keeps time by; for tests.
PyObject* clock_source(PyObject*, PyObject* path) {
  static char kept[512];
  const char* text = PyUnicode_AsUTF8(path);
  if (!text || strlen(text) >= sizeof kept) return PyErr_Occurred() ? nullptr : PyErr_NoMemory();
  strcpy(kept, text);
  g_clock_source = kept;
  Py_RETURN_NONE;
}

PyObject* host_counter(PyObject*, PyObject*) {
  Clock clock = host_clock();
  return Py_BuildValue("sKK", name_of(clock.kind), (unsigned long long)clock.period_num,
                       (unsigned long long)clock.period_den);
}

PyObject* state_of(Pace pace) {
  StepState state = step_state(pace);
  double ns = 1;
  if (segment_is_open()) ns = double(segment_header()->period_num) / double(segment_header()->period_den);
  return Py_BuildValue("LKKLLK", (long long)state.step, (unsigned long long)state.start,
                       (unsigned long long)state.count, (long long)(double(state.period) * ns),
                       (long long)(double(state.longest) * ns), (unsigned long long)state.since_compile);
}

// steps() -> (step, begin, count, period_ns, longest_ns, steps since the last compile)
PyObject* steps(PyObject*, PyObject*) { return state_of(Pace::kSteps); }

// executions(): the same of the program that is followed.
PyObject* executions(PyObject*, PyObject*) { return state_of(Pace::kExecutions); }

// mark(ticks): the first execution of it that ends then or later is kept for marked() -> (number, end) or None.
PyObject* mark(PyObject*, PyObject* ticks) {
  uint64_t at = PyLong_AsUnsignedLongLong(ticks);
  if (PyErr_Occurred()) return nullptr;
  mark_execution(at);
  Py_RETURN_NONE;
}

PyObject* marked(PyObject*, PyObject*) {
  int64_t number;
  uint64_t end;
  if (!marked_execution(&number, &end)) Py_RETURN_NONE;
  return Py_BuildValue("LK", (long long)number, (unsigned long long)end);
}

PyObject* compiled(PyObject*, PyObject*) {
  note_compile();
  Py_RETURN_NONE;
}

// wait(step, timeout_s, executions=False) -> bool; step None waits for wake() or the timeout alone.
PyObject* wait_for(PyObject*, PyObject* args) {
  PyObject* number;
  double timeout_s;
  int executions = 0;
  if (!PyArg_ParseTuple(args, "Od|p", &number, &timeout_s, &executions)) return nullptr;
  int64_t step = INT64_MAX;
  if (number != Py_None) {
    step = PyLong_AsLongLong(number);
    if (step == -1 && PyErr_Occurred()) return nullptr;
  }
  if (!(timeout_s >= 0)) timeout_s = 0;
  if (timeout_s > 3600) timeout_s = 3600;
  bool reached;
  Py_BEGIN_ALLOW_THREADS;
  reached = wait_step(executions ? Pace::kExecutions : Pace::kSteps, step, int64_t(timeout_s * 1e9));
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(reached);
}

PyObject* wake_up(PyObject*, PyObject*) {
  wake();
  Py_RETURN_NONE;
}

PyObject* set_async_wrapper(PyObject*, PyObject* function) {
  Py_XSETREF(g_async_wrapper, Py_NewRef(function));
  Py_RETURN_NONE;
}

// on_first_use(function): None takes it back.
PyObject* on_first_use(PyObject*, PyObject* function) {
  Py_XSETREF(g_first_use, function == Py_None ? nullptr : Py_NewRef(function));
  Py_RETURN_NONE;
}

PyMethodDef g_methods[] = {
    {"annotate", method(annotate), METH_FASTCALL | METH_KEYWORDS, "annotate($module, name, /, **args)\n--\n\n"},
    {"site", method(make_site), METH_FASTCALL | METH_KEYWORDS,
     "site($module, name, /, *, level=1, category='', sample=0)\n--\n\n"},
    {"begin", method(begin_region), METH_FASTCALL | METH_KEYWORDS,
     "begin($module, site, /, *, producer=None, consumer=None)\n--\n\n"},
    {"end", end_region, METH_O, "end($module, region, /)\n--\n\n"},
    {"instant", method(instant), METH_FASTCALL | METH_KEYWORDS,
     "instant($module, site, /, *, producer=None, consumer=None)\n--\n\n"},
    {"link", method(link_here), METH_FASTCALL | METH_KEYWORDS,
     "link($module, /, *, producer=None, consumer=None)\n--\n\n"},
    {"new_flow", new_flow_id, METH_NOARGS, "new_flow($module, /)\n--\n\n"},
    {"set_thinning", set_thinning, METH_VARARGS, "set_thinning($module, rest, names, /)\n--\n\n"},
    {"region_cost", region_cost, METH_NOARGS, "region_cost($module, /)\n--\n\n"},
    {"set_level", set_level, METH_VARARGS, "set_level($module, level, off, /)\n--\n\n"},
    {"step", method(step), METH_FASTCALL | METH_KEYWORDS, "step($module, number, /, **args)\n--\n\n"},
    {"counter", method(count_value), METH_FASTCALL, "counter($module, name, value, /)\n--\n\n"},
    {"span", span, METH_VARARGS, "span($module, name, kind, duration_s, /)\n--\n\n"},
    {"open", open_ring, METH_O, "open($module, directory, /)\n--\n\n"},
    {"renew", renew_ring, METH_VARARGS, "renew($module, directory, unlink, /)\n--\n\n"},
    {"descriptor", descriptor, METH_NOARGS, "descriptor($module, /)\n--\n\n"},
    {"close", close_ring, METH_O, "close($module, unlink, /)\n--\n\n"},
    {"record", record, METH_O, "record($module, on, /)\n--\n\n"},
    {"recording", recording, METH_NOARGS, "recording($module, /)\n--\n\n"},
    {"now", now, METH_NOARGS, "now($module, /)\n--\n\n"},
    {"clocks", clocks, METH_VARARGS, "clocks($module, name=None, /)\n--\n\n"},
    {"bracket", bracket, METH_VARARGS, "bracket($module, clock_id, tries, /)\n--\n\n"},
    {"clock_change", clock_change, METH_VARARGS, "clock_change($module, look, name, before, /)\n--\n\n"},
    {"clock_source", clock_source, METH_O, "clock_source($module, path, /)\n--\n\n"},
    {"host_counter", host_counter, METH_NOARGS, "host_counter($module, /)\n--\n\n"},
    {"steps", steps, METH_NOARGS, "steps($module, /)\n--\n\n"},
    {"executions", executions, METH_NOARGS, "executions($module, /)\n--\n\n"},
    {"mark", mark, METH_O, "mark($module, ticks, /)\n--\n\n"},
    {"marked", marked, METH_NOARGS, "marked($module, /)\n--\n\n"},
    {"compiled", compiled, METH_NOARGS, "compiled($module, /)\n--\n\n"},
    {"wait", wait_for, METH_VARARGS, "wait($module, step, timeout_s, executions=False, /)\n--\n\n"},
    {"wake", wake_up, METH_NOARGS, "wake($module, /)\n--\n\n"},
    {"patch", patch_jax, METH_O, "patch($module, trace_annotation, /)\n--\n\n"},
    {"unpatch", unpatch_jax, METH_NOARGS, "unpatch($module, /)\n--\n\n"},
    {"watch_calls", watch_calls, METH_O, "watch_calls($module, function, /)\n--\n\n"},
    {"on_watched_call", on_watched_call, METH_O, "on_watched_call($module, function, /)\n--\n\n"},
    {"want_stack", want_stack, METH_NOARGS, "want_stack($module, /)\n--\n\n"},
    {"gap", gap, METH_NOARGS, "gap($module, /)\n--\n\n"},
    {"gap_sample", gap_sample, METH_VARARGS, "gap_sample($module, call, is_input, /)\n--\n\n"},
    {"leads", leads, METH_NOARGS, "leads($module, /)\n--\n\n"},
    {"on_first_use", on_first_use, METH_O, "on_first_use($module, function, /)\n--\n\n"},
    {"set_async_wrapper", set_async_wrapper, METH_O, "set_async_wrapper($module, function, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr},
};

// Makes the module's two exported functions findable by name (include/fleetscope/recorder.h): Python loads modules so
// that nothing else sees them.
void make_global() {
  Dl_info self;
  void* symbol = reinterpret_cast<void*>(&fleetscope_recorder_table_v1);
  if (!start_public() || !dladdr(symbol, &self) || !self.dli_fname) return;
  dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
}

// `native_api`, a capsule: what other native code of ours writes records through.
bool add_api(PyObject* module) {
  PyObject* capsule =
      PyCapsule_New(const_cast<fleetscope_recorder_api*>(fleetscope_recorder()), FLEETSCOPE_RECORDER_CAPSULE, nullptr);
  bool added = capsule && PyModule_AddObjectRef(module, "native_api", capsule) == 0;
  Py_XDECREF(capsule);
  return added;
}

PyModuleDef g_module = {PyModuleDef_HEAD_INIT,
                        "_recorder",
                        "Span rings in shared memory: writer and reader.",
                        -1,
                        g_methods,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr};

}  // namespace
}  // namespace fleetscope::recorder

PyMODINIT_FUNC PyInit__recorder(void) {
  using namespace fleetscope::recorder;
  PyObject* module = PyModule_Create(&g_module);
  if (!module) return nullptr;
  make_global();
  g_step_name = PyUnicode_InternFromString("step");
  if (!g_step_name || !add_annotation_types(module) || !add_site_types(module) || !add_region_type(module) ||
      PyType_Ready(&ReaderType) < 0 ||
      PyModule_AddObjectRef(module, "Reader", reinterpret_cast<PyObject*>(&ReaderType)) < 0 ||
      PyModule_AddIntConstant(module, "ABI_VERSION", kAbiVersion) < 0 || !add_api(module)) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}
