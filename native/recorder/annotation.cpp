#include "annotation.h"

#include <string.h>

#include <initializer_list>
#include <new>

#include "calls.h"
#include "link_values.h"
#include "thin.h"

namespace fleetscope::recorder {
namespace {

PyObject* g_names = nullptr;        // str -> int id in the open segment
PyObject* g_annotations = nullptr;  // str -> shared Annotation; none is ever taken out
constexpr size_t kRecent = 64;
Annotation* g_recent[kRecent];  // borrowed from g_annotations, by the address of the name

// Names from data (one a file, one a request) would make this grow for ever; past the limit each use makes its own
// object.
constexpr Py_ssize_t kSharedLimit = kNames;
constexpr uint32_t kTextLimit = kNames / 2;  // names that argument values may take, so that regions still find room

// Ids of literals by their address, which is the same every time, without their hash.
struct Known {
  PyObject* text = nullptr;  // a reference: another str must not get its address
  uint32_t id = 0;
};
Known g_known[kRecent];
Known& known_at(PyObject* text) { return g_known[reinterpret_cast<uintptr_t>(text) / 16 % kRecent]; }

__attribute__((noinline, cold)) uint32_t keep_known(PyObject* text, uint32_t id) {
  if (PyUnicode_CHECK_INTERNED(text)) {
    Known& at = known_at(text);
    Py_XSETREF(at.text, Py_NewRef(text));
    at.id = id;
  }
  return id;
}

uint32_t id_of_text(PyObject* text, bool is_value) {
  if (const Known& at = known_at(text); at.text == text) return at.id;
  if (!g_names) g_names = PyDict_New();
  if (!g_names) return PyErr_Clear(), 0;
  if (PyObject* known = PyDict_GetItemWithError(g_names, text)) {
    return keep_known(text, uint32_t(PyLong_AsUnsignedLong(known)));
  }
  PyErr_Clear();
  if (is_value && segment_is_open() && segment_header()->names_used.load(std::memory_order_relaxed) >= kTextLimit)
    return 0;
  Py_ssize_t bytes = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(text, &bytes);
  PyObject* replaced = nullptr;
  if (!utf8) {  // lone surrogates
    PyErr_Clear();
    replaced = PyUnicode_AsEncodedString(text, "utf-8", "replace");
    if (!replaced) return PyErr_Clear(), 0;
    utf8 = PyBytes_AS_STRING(replaced);
    bytes = PyBytes_GET_SIZE(replaced);
  }
  uint32_t id = add_name(utf8, bytes > int64_t{kNameBytes} * 2 ? kNameBytes * 2 : uint32_t(bytes));
  Py_XDECREF(replaced);
  if (id) {
    PyObject* number = PyLong_FromUnsignedLong(id);
    if (!number || PyDict_SetItem(g_names, text, number) < 0) PyErr_Clear();
    Py_XDECREF(number);
    keep_known(text, id);
  }
  return id;
}

// Only exact builtin types: int() of a jax array would wait for the device.
bool is_plain(PyObject* value) {
  return PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyUnicode_CheckExact(value);
}

// The arguments we can write; a new reference or nullptr. What we cannot is not held: it may be a device buffer.
PyObject* plain_arguments(PyObject* kwargs, const LinkWords& links) {
  if (!kwargs || !PyDict_GET_SIZE(kwargs)) return nullptr;
  PyObject *key, *value, *kept = nullptr;
  Py_ssize_t at = 0;
  bool all = true;
  while (all && PyDict_Next(kwargs, &at, &key, &value)) all = is_plain(value) || links.takes(key);
  if (all) return Py_NewRef(kwargs);
  kept = PyDict_New();
  at = 0;
  while (kept && PyDict_Next(kwargs, &at, &key, &value)) {
    if ((is_plain(value) || links.takes(key)) && PyDict_SetItem(kept, key, value) < 0) PyErr_Clear();
  }
  PyErr_Clear();
  return kept;
}

bool fill_argument(PyObject* key, PyObject* value, Argument* argument) {
  if (!PyUnicode_CheckExact(key)) return false;
  if (PyBool_Check(value) || PyLong_CheckExact(value)) {
    int overflow = 0;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) return false;
    argument->kind = kArgInt;
    argument->value = static_cast<uint64_t>(number);
  } else if (PyFloat_CheckExact(value)) {
    double number = PyFloat_AS_DOUBLE(value);
    argument->kind = kArgFloat;
    memcpy(&argument->value, &number, sizeof number);
  } else if (PyUnicode_CheckExact(value)) {
    argument->kind = kArgName;
    argument->value = id_of_text(value, true);
  } else {
    return false;
  }
  argument->key = id_of_text(key, false);
  return true;
}

bool has_links(const Annotation* self) { return self->arg_count && is_link(self->args[0].kind); }

// What carries a link is what joins two others: it is not thinned.
uint8_t shift_of(Annotation* self) { return self->kind == kHost && !has_links(self) ? thinned(self->name) : 0; }

void resolve(Annotation* self, PyObject* kwargs, const LinkWords& links, uint64_t gate,
             const Annotation* like = nullptr) {
  self->armed = gate;
  self->name_id = like ? like->name_id : id_of_text(self->name, false);
  self->arg_count = uint8_t(links.fill(self->args, Py_SIZE(self) < kLinks ? uint32_t(Py_SIZE(self)) : kLinks));
  self->shift = like && !has_links(self) ? like->shift : shift_of(self);
  PyObject *key, *value;
  Py_ssize_t at = 0;
  while (kwargs && self->arg_count < Py_SIZE(self) && PyDict_Next(kwargs, &at, &key, &value)) {
    if (!links.takes(key) && fill_argument(key, value, &self->args[self->arg_count])) ++self->arg_count;
  }
}

// Another segment has other names; else a level, a category or what is thinned has changed.
void arm(Annotation* self, uint64_t gate) {
  if (uint32_t(self->armed) != uint32_t(gate)) return resolve(self, self->kwargs, LinkWords(self->kwargs), gate);
  self->shift = shift_of(self);
  self->armed = gate;
}

inline bool sampled(Annotation* self) {
  if (__builtin_expect(self->shift == 0, 1)) return true;
  Annotation* counts = self->shared ? self->shared : self;
  // Names beyond the shared ones have an object for each use: their passes are counted together.
  static uint64_t others = 0;
  return counts->lasts ? keeps(counts->hits++, self->shift, counts) : keeps(others++, self->shift, &others);
}

// Steps and annotations with an argument are made and dropped every time: the last few objects are kept for the next.
constexpr Py_ssize_t kSpareRoom = 4;
constexpr uint32_t kSpare = 8;
Annotation* g_spare[kSpareRoom][kSpare];
uint32_t g_spares[kSpareRoom];

Annotation* allocate(Py_ssize_t room) {
  if (room >= kSpareRoom || g_spares[room] == 0) return PyObject_NewVar(Annotation, &AnnotationType, room);
  Annotation* self = g_spare[room][--g_spares[room]];
  PyObject_InitVar(reinterpret_cast<PyVarObject*>(self), &AnnotationType, room);
  return self;
}

void release(Annotation* self) {
  Py_ssize_t room = Py_SIZE(self);
  if (room >= kSpareRoom || g_spares[room] == kSpare) return PyObject_Free(self);
  g_spare[room][g_spares[room]++] = self;
}

Annotation* make(PyObject* name, PyObject* kwargs, bool reusable, uint8_t kind, Annotation* like = nullptr) {
  Py_ssize_t count = kwargs ? PyDict_GET_SIZE(kwargs) : 0;
  Py_ssize_t room = count < Py_ssize_t{kArgs} ? count : Py_ssize_t{kArgs};
  LinkWords links(kwargs);
  room += links.count();
  Annotation* self = allocate(room);
  if (!self) return PyErr_Clear(), nullptr;
  self->name = Py_NewRef(name);
  self->kwargs = reusable && count ? plain_arguments(kwargs, links) : nullptr;
  self->number = 0;
  self->armed = self->hits = 0;
  self->shared = like ? reinterpret_cast<Annotation*>(Py_NewRef(like)) : nullptr;
  self->name_id = 0;
  self->shift = 0;
  self->kind = kind;
  self->arg_count = 0;
  self->is_step = false;
  self->entered = false;
  self->lasts = false;
  uint64_t word = gate_word();
  if (uint32_t(word)) {
    if (like && like->armed != word) arm(like, word);  // a name that always has arguments never enters its own
    resolve(self, kwargs, links, word, like);
  }
  return self;
}

uint8_t kind_of(PyObject* name) {
  Py_ssize_t bytes = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(name, &bytes);
  if (!utf8) PyErr_Clear();
  return utf8 ? kind_of_name(utf8, bytes) : uint8_t{kHost};
}

void annotation_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Annotation*>(object);
  // `profiler.step(n)` as a statement: dropped without `with`, it still says that step n has begun.
  if (self->is_step && !self->entered) {
    if (uint32_t epoch = gate()) {
      PyObject *type, *value, *traceback;
      PyErr_Fetch(&type, &value, &traceback);
      uint64_t now = counter();
      step_begin(int64_t(self->number), now);
      if (Thread* thread = thread_for_event(epoch)) {
        if (uint32_t(self->armed) != epoch) resolve(self, self->kwargs, LinkWords(self->kwargs), gate_word());
        append(thread, now, self->name_id, 0, self->number, kStep, self->args, self->arg_count);
      }
      PyErr_Restore(type, value, traceback);
    }
  }
  Py_XDECREF(self->name);
  Py_XDECREF(self->kwargs);
  Py_XDECREF(self->shared);
  release(self);
}

PyObject* enter(PyObject* object, PyObject*) {
  auto* self = reinterpret_cast<Annotation*>(object);
  self->entered = true;
  annotation_enter(self, self, current_frame(), false);
  return Py_NewRef(object);
}

PyObject* leave(PyObject* object, PyObject* const*, Py_ssize_t) {
  annotation_exit(object, current_frame());
  Py_RETURN_NONE;
}

PyObject* annotation_call(PyObject* object, PyObject* args, PyObject* kwargs) {
  PyObject* function = nullptr;
  if (!PyArg_UnpackTuple(args, "annotate", 1, 1, &function)) return nullptr;
  (void)kwargs;
  PyObject* type = reinterpret_cast<PyObject*>(&DecoratedType);
  // Calling a coroutine or generator function only makes an object; its region is around what runs later.
  if (g_async_wrapper && PyFunction_Check(function)) {
    int flags = reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))->co_flags;
    if (flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) type = g_async_wrapper;
  }
  return PyObject_CallFunctionObjArgs(type, object, function, nullptr);
}

PyMethodDef annotation_methods[] = {
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(leave)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

// A decorated function: calls it inside the region.
struct Decorated {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject* function;
  Annotation* annotation;
  PyObject* dict;
  PyObject* weakrefs;
};

PyObject* decorated_vectorcall(PyObject* object, PyObject* const* args, size_t count, PyObject* names) {
  auto* self = reinterpret_cast<Decorated*>(object);
  // The call's own frame is the owner: recursion and threads each have theirs.
  const void* owner = args ? static_cast<const void*>(&args) : self;
  annotation_enter(self->annotation, owner, nullptr, false);
  PyObject* result = PyObject_Vectorcall(self->function, args, count, names);
  annotation_exit(owner, nullptr);
  return result;
}

PyObject* decorated_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *annotation, *function;
  if (!PyArg_UnpackTuple(args, "Decorated", 2, 2, &annotation, &function)) return nullptr;
  if (!PyObject_TypeCheck(annotation, &AnnotationType))
    return PyErr_Format(PyExc_TypeError, "not an annotation"), nullptr;
  auto* self = reinterpret_cast<Decorated*>(type->tp_alloc(type, 0));
  if (!self) return nullptr;
  self->vectorcall = decorated_vectorcall;
  self->function = Py_NewRef(function);
  self->annotation = reinterpret_cast<Annotation*>(Py_NewRef(annotation));
  self->dict = PyDict_New();
  self->weakrefs = nullptr;
  if (!self->dict) return Py_DECREF(self), nullptr;
  for (const char* attribute : {"__module__", "__name__", "__qualname__", "__doc__", "__annotations__"}) {
    PyObject* value = PyObject_GetAttrString(function, attribute);
    if (value) PyDict_SetItemString(self->dict, attribute, value);
    PyErr_Clear();
    Py_XDECREF(value);
  }
  PyDict_SetItemString(self->dict, "__wrapped__", function);
  PyErr_Clear();
  return reinterpret_cast<PyObject*>(self);
}

int decorated_traverse(PyObject* object, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Decorated*>(object);
  Py_VISIT(self->function);
  Py_VISIT(self->dict);
  return 0;
}

int decorated_clear(PyObject* object) {
  auto* self = reinterpret_cast<Decorated*>(object);
  Py_CLEAR(self->function);
  Py_CLEAR(self->dict);
  return 0;
}

void decorated_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Decorated*>(object);
  PyObject_GC_UnTrack(object);
  if (self->weakrefs) PyObject_ClearWeakRefs(object);
  decorated_clear(object);
  Py_XDECREF(self->annotation);
  Py_TYPE(object)->tp_free(object);
}

PyObject* decorated_get(PyObject* self, PyObject* instance, PyObject*) {
  return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

PyObject* decorated_repr(PyObject* object) { return PyObject_Repr(reinterpret_cast<Decorated*>(object)->function); }

PyGetSetDef decorated_fields[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

}  // namespace

PyObject* g_async_wrapper = nullptr;
PyTypeObject AnnotationType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject DecoratedType = {PyVarObject_HEAD_INIT(nullptr, 0)};

uint8_t kind_of_name(const char* text, Py_ssize_t bytes) {
  auto starts = [&](const char* with) {
    return size_t(bytes) >= strlen(with) && memcmp(text, with, strlen(with)) == 0;
  };
  if (starts("data_wait")) return kDataWait;
  if (starts("checkpoint") || starts("save_checkpoint")) return kCheckpoint;
  return kHost;
}

uint32_t name_id_of(PyObject* text) { return PyUnicode_Check(text) ? id_of_text(text, false) : 0; }

uint8_t thinned(PyObject* name) {
  Py_ssize_t bytes = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(name, &bytes);
  if (!utf8) PyErr_Clear();  // lone surrogates
  return shift_of_name(utf8 ? utf8 : "", size_t(utf8 ? bytes : 0));
}

void forget_names() {
  if (g_names) PyDict_Clear(g_names);
  for (Known& at : g_known) Py_CLEAR(at.text);
}

Thread* thread_for_event(uint32_t epoch) {
  Thread* before = t_thread;
  bool known = before && before->epoch == epoch;
  Thread* thread = thread_of(epoch);
  if (__builtin_expect(known && thread && !thread->nameless, 1)) return thread;
  if (!thread) return count_no_ring(), nullptr;
  thread->nameless = false;
  // First event of a thread: what threading calls it, or its id. Never threading.current_thread(), which would register
  // a foreign thread as a Python one.
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyObject* modules = PyImport_GetModuleDict();
  PyObject* threading = modules ? PyDict_GetItemString(modules, "threading") : nullptr;
  PyObject* active = threading ? PyObject_GetAttrString(threading, "_active") : nullptr;
  PyObject* ident = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
  PyObject* entry = active && ident && PyDict_Check(active) ? PyDict_GetItemWithError(active, ident) : nullptr;
  PyObject* name = entry ? PyObject_GetAttrString(entry, "_name") : nullptr;
  PyErr_Clear();
  if (!name || !PyUnicode_Check(name)) {
    unsigned long long tid = thread->slot->tid.load();
    bool is_main = tid == segment_header()->pid;
    Py_XSETREF(name, is_main ? PyUnicode_FromString("MainThread") : PyUnicode_FromFormat("thread-%llu", tid));
  }
  if (name) name_thread(id_of_text(name, true));
  Py_XDECREF(name);
  Py_XDECREF(ident);
  Py_XDECREF(active);
  PyErr_Restore(type, value, traceback);
  return thread;
}

void annotation_enter(Annotation* self, const void* owner, const void* frame, bool held) {
  uint64_t gate = gate_word();
  Thread* thread = nullptr;
  if (__builtin_expect(uint32_t(gate) != 0, 1)) {
    if (__builtin_expect(self->armed != gate, 0)) arm(self, gate);
    thread = thread_for_event(uint32_t(gate));
  }
  if (__builtin_expect(thread == nullptr, 0)) {
    if (held) Py_DECREF(self);
    return;
  }
  uint64_t now = begin(thread, {owner, frame, self, 0, self->name_id, self->kind, held, !sampled(self), self->shift});
  region_begins(thread, now);
  if (self->kind == kStep) step_begin(int64_t(self->number), now);
}

void end_record(Thread* thread, const Open& open, uint64_t now, uint64_t arg, const Argument* args, uint32_t count) {
  if (now) region_ends(thread, open.kind, open.start, now);
  if (open.unsampled) return;
  if (__builtin_expect(now == 0, 0)) now = counter();  // it was not the newest, which left none
  // A virtual machine restored from a snapshot can read an earlier counter: zero, never a huge unsigned number.
  uint64_t dur = now > open.start ? now - open.start : 0;
  if (__builtin_expect(open.shift == 0 && count == 0 && !open.linked, 1)) {
    return append_one(thread, open.start, open.name, dur, arg, open.kind);
  }
  if (open.shift == 0 && !open.linked) return append(thread, open.start, open.name, dur, arg, open.kind, args, count);
  Argument extras[kExtras];
  uint32_t all = 0;
  if (open.shift) extras[all++] = {0, kWeight, uint64_t{1} << open.shift};
  for (uint32_t i = 0; i < count; ++i) extras[all++] = args[i];
  if (open.linked) all += take_links(thread, open, extras + all, kExtras - 1 - all);
  append(thread, open.start, open.name, dur, arg, open.kind, extras, all);
}

void annotation_exit(const void* owner, const void* frame) {
  uint32_t epoch = gate();
  if (__builtin_expect(epoch == 0, 0)) return;
  Thread* thread = t_thread;
  if (!thread || thread->epoch != epoch || !thread->slot) return;
  uint64_t now = counter_of_end(thread);
  const Open* open = finish(thread, owner, frame);
  if (!open) return;  // begun before the gate opened, or on another thread
  auto* self = static_cast<Annotation*>(open->context);
  bool held = open->held;
  end_record(thread, *open, now, open->kind == kStep ? self->number : running_step(), self->args, self->arg_count);
  if (held) Py_DECREF(self);
}

Annotation* annotation_of(PyObject* name) {
  // A literal is the same object every time: found by address, without its hash. The shared annotation keeps it alive.
  Annotation*& recent = g_recent[reinterpret_cast<uintptr_t>(name) / 16 % kRecent];
  if (recent && recent->name == name) return reinterpret_cast<Annotation*>(Py_NewRef(recent));
  if (!g_annotations) g_annotations = PyDict_New();
  if (!g_annotations) return PyErr_Clear(), nullptr;
  PyObject* known = PyDict_GetItemWithError(g_annotations, name);
  if (known) {
    if (reinterpret_cast<Annotation*>(known)->name == name) recent = reinterpret_cast<Annotation*>(known);
    return reinterpret_cast<Annotation*>(Py_NewRef(known));
  }
  PyErr_Clear();
  Annotation* made = make(name, nullptr, true, kind_of(name));
  if (!made) return nullptr;
  if (PyDict_GET_SIZE(g_annotations) < kSharedLimit) {
    made->lasts = PyDict_SetItem(g_annotations, name, reinterpret_cast<PyObject*>(made)) == 0;
    PyErr_Clear();
  }
  return made;
}

Annotation* annotation_with(PyObject* name, PyObject* kwargs, bool reusable) {
  Annotation* shared = annotation_of(name);  // knows id and kind
  if (!shared) return nullptr;
  Annotation* self = make(name, kwargs, reusable, shared->kind, shared);
  Py_DECREF(shared);
  return self;
}

Annotation* annotation_of_step(PyObject* name, int64_t step, PyObject* kwargs) {
  Annotation* self = make(name, kwargs, false, kStep);
  if (!self) return nullptr;
  self->number = uint64_t(step);
  return self;
}

bool add_annotation_types(PyObject* module) {
  AnnotationType.tp_name = "fleetscope.native._recorder.Annotation";
  AnnotationType.tp_doc = "A named region: context manager and decorator.";
  AnnotationType.tp_basicsize = offsetof(Annotation, args);
  AnnotationType.tp_itemsize = sizeof(Argument);
  AnnotationType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  AnnotationType.tp_dealloc = annotation_dealloc;
  AnnotationType.tp_methods = annotation_methods;
  AnnotationType.tp_call = annotation_call;
  DecoratedType.tp_name = "fleetscope.native._recorder.Decorated";
  DecoratedType.tp_doc = "A function that runs inside a region.";
  DecoratedType.tp_basicsize = sizeof(Decorated);
  DecoratedType.tp_flags =
      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
  DecoratedType.tp_vectorcall_offset = offsetof(Decorated, vectorcall);
  DecoratedType.tp_call = PyVectorcall_Call;
  DecoratedType.tp_new = decorated_new;
  DecoratedType.tp_dealloc = decorated_dealloc;
  DecoratedType.tp_traverse = decorated_traverse;
  DecoratedType.tp_clear = decorated_clear;
  DecoratedType.tp_descr_get = decorated_get;
  DecoratedType.tp_repr = decorated_repr;
  DecoratedType.tp_getset = decorated_fields;
  DecoratedType.tp_dictoffset = offsetof(Decorated, dict);
  DecoratedType.tp_weaklistoffset = offsetof(Decorated, weakrefs);
  g_release = [](void* context) { Py_DECREF(static_cast<PyObject*>(context)); };
  for (PyTypeObject* type : {&AnnotationType, &DecoratedType}) {
    if (PyType_Ready(type) < 0) return false;
  }
  return PyModule_AddObjectRef(module, "Annotation", reinterpret_cast<PyObject*>(&AnnotationType)) == 0 &&
         PyModule_AddObjectRef(module, "Decorated", reinterpret_cast<PyObject*>(&DecoratedType)) == 0;
}

}  // namespace fleetscope::recorder
