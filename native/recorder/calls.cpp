#include "calls.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "annotation.h"

namespace fleetscope::recorder {

Thread* g_lead = nullptr;

namespace {

vectorcallfunc g_call = nullptr;  // jaxlib's, one for all its functions
PyTypeObject* g_type = nullptr;
PyObject* g_on_call = nullptr;  // called once in the next outermost call, when the sampler wants to see its stack
PyObject* g_name = nullptr;
bool g_want_stack = false;

constexpr uint32_t kFunctions = 64;
constexpr uint32_t kProbes = 4;
constexpr uint32_t kStacks = 2;        // of each new function, before looks at its gaps can mean anything
constexpr uint32_t kFreeStacks = 128;  // 20 us each: more only as the sampler asks for them
constexpr uint32_t kEnough = 8;        // samples of a function's gaps before its share is used
constexpr uint32_t kForget = 512;      // samples at which older ones begin to count half
constexpr double kShortestNs = 100e3;  // a shorter wait is not worth a record
constexpr double kLeastShare = 0.1;    // below, the samples may as well be chance
constexpr double kAbandonedNs = 10e9;  // a lead that has not called for so long loses the lead to one that does

// What the gaps before calls of one function were spent on.
struct Function {
  const void* self;
  uint32_t input;
  uint32_t samples;
  uint32_t stacks;
};
Function g_functions[kFunctions];
uint32_t g_free_stacks = kFreeStacks;

// The entry of a function; where there is no room the one with the fewest samples makes it.
Function& function_of(const void* self) {
  uint64_t hash = (reinterpret_cast<uintptr_t>(self) >> 4) * 0x9e3779b97f4a7c15u >> 32;
  Function* worst = nullptr;
  for (uint32_t i = 0; i < kProbes; ++i) {
    Function& at = g_functions[(hash + i) % kFunctions];
    if (at.self == self) return at;
    if (!worst || at.samples < worst->samples) worst = &at;
  }
  *worst = {self, 0, 0, 0};
  return *worst;
}

struct Lead {
  uint32_t epoch = 0;
  unsigned long ident = 0;
  int depth = 0;            // inside an outermost call: functions traced within it are not calls of the program
  uint64_t left = 0;        // end of the last outermost call
  uint64_t number = 0;      // outermost calls so far
  uint64_t gap_ticks = 0;   // of all gaps
  uint64_t said_ticks = 0;  // of those, declared: waits for input, checkpoints, compiles
  // The gap that is open:
  uint64_t edge = 0;                      // the last begin or end of a region in it
  uint64_t piece_from = 0, piece_to = 0;  // its longest stretch without one
  uint64_t aside = 0;                     // ticks of checkpoints and compiles in it
  bool declared = false;                  // somebody else has said what was waited for
  uint32_t input = 0, samples = 0;
};
Lead g;

double ns_of(uint64_t ticks) {
  const Header* head = segment_header();
  return double(ticks) * double(head->period_num) / double(head->period_den);
}

void edge_at(uint64_t now) {
  if (now > g.edge && now - g.edge > g.piece_to - g.piece_from) g.piece_from = g.edge, g.piece_to = now;
  g.edge = now;
}

void open_gap(uint64_t now) {
  g.left = g.edge = g.piece_from = g.piece_to = now;
  g.aside = 0;
  g.declared = false;
  g.input = g.samples = 0;
}

bool waits_by_name(const Thread* thread) {
  for (uint32_t i = 0; i < thread->depth; ++i) {
    if (thread->stack[i].kind == kDataWait) return true;
  }
  return false;
}

void close_gap(const void* self, Thread* thread, uint64_t now) {
  edge_at(now);
  uint64_t length = now - g.left;
  uint64_t other = length > g.aside ? length - g.aside : 0;
  g.gap_ticks += length;
  Function& function = function_of(self);
  bool declared = g.declared || waits_by_name(thread);
  if (declared) {
    g.said_ticks += length;
    return;
  }
  g.said_ticks += length - other;
  function.input += g.input;
  function.samples += g.samples;
  if (function.samples >= kForget) function.input /= 2, function.samples /= 2;
  if (function.samples < kEnough) return;
  // A gap long enough to have samples of its own (an evaluation, a stalled file system) is judged by them first.
  double share = double(function.input + 3 * g.input) / double(function.samples + 3 * g.samples);
  if (share < kLeastShare) return;
  uint64_t wait = uint64_t(double(other) * share);
  uint64_t piece = g.piece_to - g.piece_from;
  if (wait > piece) wait = piece;
  if (ns_of(wait) < kShortestNs) return;
  append(thread, g.piece_to - wait, name_id_of(g_name), wait, running_step(), kDataWait, nullptr, 0);
}

// Whether this thread's calls are the program's; may take the lead over.
bool is_lead(Thread* thread, uint32_t epoch, uint64_t now) {
  if (g.epoch == epoch && thread == g_lead) return true;
  if (g.epoch == epoch && g_lead && (g.depth > 0 || ns_of(now - g.left) < kAbandonedNs)) return false;
  g = Lead{};
  g.epoch = epoch;
  g.ident = PyThread_get_thread_ident();
  g_lead = thread;
  return true;
}

// Whether the error that is set is a mistake of the callback's own: raised by Python code of its file. What a signal
// handler of the program raised while the callback ran (KeyboardInterrupt, the TimeoutError of an alarm) is the
// program's, and must reach it.
bool is_ours(PyObject* callback) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  auto* at = reinterpret_cast<PyTracebackObject*>(traceback);
  while (at && at->tb_next) at = at->tb_next;
  bool ours = !at;
  if (at) {
    PyCodeObject* code = PyFrame_GetCode(at->tb_frame);
    PyObject* function = PyMethod_Check(callback) ? PyMethod_GET_FUNCTION(callback) : callback;
    ours = PyFunction_Check(function) &&
           PyUnicode_Compare(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))->co_filename,
                             code->co_filename) == 0;
    Py_DECREF(code);
  }
  PyErr_Restore(type, value, traceback);
  return ours;
}

// False with an error set: the call that it came in must not go on.
bool see_stack() {
  g_want_stack = false;
  if (!g_on_call) return true;
  PyObject* callback = Py_NewRef(g_on_call);  // it may be taken back meanwhile
  PyObject* done = PyObject_CallNoArgs(callback);
  bool fine = done || is_ours(callback);
  Py_DECREF(callback);
  if (!done && fine) PyErr_Clear();
  Py_XDECREF(done);
  return fine;
}

PyObject* call(PyObject* self, PyObject* const* args, size_t count, PyObject* names) {
  uint32_t epoch = gate();
  if (epoch == 0) return g_call(self, args, count, names);
  Thread* thread = thread_for_event(epoch);
  uint64_t now = counter();
  if (!thread || !is_lead(thread, epoch, now) || g.depth > 0) return g_call(self, args, count, names);
  if (g.number && now > g.left) close_gap(self, thread, now);
  g.number += 1;
  g.depth = 1;
  Function& function = function_of(self);
  bool is_new = function.stacks < kStacks && g_free_stacks > 0 && g_on_call;
  bool fine = true;
  if (__builtin_expect(g_want_stack || is_new, 0)) {
    if (is_new) function.stacks += 1, g_free_stacks -= 1;
    fine = see_stack();
  }
  PyObject* result = fine ? g_call(self, args, count, names) : nullptr;
  // Recording may have been closed and opened again meanwhile.
  if (g.epoch == epoch && g_lead == thread) {
    g.depth = 0;
    open_gap(counter());
  }
  return result;
}

}  // namespace

void lead_begins(uint64_t now) {
  if (g.depth == 0) edge_at(now);
}

void lead_ends(uint8_t kind, uint64_t start, uint64_t now) {
  if (g.depth > 0) return;
  bool within = start >= g.left;
  if (within && kind == kDataWait) g.declared = true;
  if (within && (kind == kCheckpoint || kind == kCompile)) {
    g.aside += now - start;
    g.edge = now;  // no stretch in which the program could have waited for input
    return;
  }
  edge_at(now);
}

// watch_calls(function) -> bool: False when it is no function of the kind we know, and nothing was changed.
PyObject* watch_calls(PyObject*, PyObject* function) {
  PyTypeObject* type = Py_TYPE(function);
  Py_ssize_t offset = type->tp_vectorcall_offset;
  const char* dot = strrchr(type->tp_name, '.');
  if (strcmp(dot ? dot + 1 : type->tp_name, "PjitFunction") != 0) Py_RETURN_FALSE;
  if (!(type->tp_flags & Py_TPFLAGS_HAVE_VECTORCALL) || offset <= 0) Py_RETURN_FALSE;
  auto* place = reinterpret_cast<vectorcallfunc*>(reinterpret_cast<char*>(function) + offset);
  if (*place == call) Py_RETURN_TRUE;
  if (!*place || (g_call && (*place != g_call || type != g_type))) Py_RETURN_FALSE;
  g_call = *place;
  g_type = type;
  if (!g_name) g_name = PyUnicode_InternFromString("data_wait (inferred)");
  *place = call;
  Py_RETURN_TRUE;
}

// on_watched_call(function): called within the first outermost call after each want_stack(); None takes it back.
PyObject* on_watched_call(PyObject*, PyObject* function) {
  Py_XSETREF(g_on_call, function == Py_None ? nullptr : Py_NewRef(function));
  Py_RETURN_NONE;
}

PyObject* want_stack(PyObject*, PyObject*) {
  g_want_stack = true;
  if (g_free_stacks < kFreeStacks) g_free_stacks += 1;
  Py_RETURN_NONE;
}

// gap() -> (ident of the training thread, calls so far, in a gap, ns of all gaps, ns of them that are declared); None
// before the first call.
PyObject* gap(PyObject*, PyObject*) {
  uint32_t epoch = gate();
  if (!epoch || g.epoch != epoch || !g_lead || !g.number) Py_RETURN_NONE;
  return Py_BuildValue("kKOdd", g.ident, (unsigned long long)g.number, g.depth == 0 ? Py_True : Py_False,
                       ns_of(g.gap_ticks), ns_of(g.said_ticks));
}

// gap_sample(call, is_input): a look at the training thread after that many calls; nothing if it has called since.
PyObject* gap_sample(PyObject*, PyObject* args) {
  unsigned long long number;
  int is_input;
  if (!PyArg_ParseTuple(args, "Kp", &number, &is_input)) return nullptr;
  if (g.depth == 0 && g.number == number) {
    g.samples += 1;
    g.input += is_input ? 1 : 0;
  }
  Py_RETURN_NONE;
}

// leads() -> bool: the calling thread is the training thread; while nobody has called anything yet, the main thread.
PyObject* leads(PyObject*, PyObject*) {
  uint32_t epoch = gate();
  if (!epoch) Py_RETURN_FALSE;
  if (g.epoch != epoch || !g_lead) return PyBool_FromLong(syscall(SYS_gettid) == getpid());
  return PyBool_FromLong(g_lead == t_thread);
}

}  // namespace fleetscope::recorder
