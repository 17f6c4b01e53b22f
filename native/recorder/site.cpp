#include "site.h"

#include <algorithm>
#include <initializer_list>

#include "annotation.h"
#include "calls.h"

namespace fleetscope::recorder {
namespace {

// CPython up to 3.13 makes a bound method for __enter__ and one for __exit__ each time (40 of 100 ns). So each site is
// the only object of a type of its own, whose two attributes are callables that bind to nothing and know their site:
// 1.8 KB a site. Beyond the limit sites share one type with ordinary methods.
constexpr uint32_t kOwnTypes = 4096;
uint32_t g_types = 0;

PyObject* g_sites = nullptr;  // (name, level, category, shift) -> Site; none is ever taken out
PyObject* g_off = nullptr;    // categories that are switched off

struct SiteCall {
  PyObject_HEAD vectorcallfunc vectorcall;
  Site* site;  // borrowed: the site's type holds this, and lives as long as the process
};

inline void enter_site(Site* self) {
  uint64_t gate = gate_word();
  uint32_t epoch = uint32_t(gate);
  if (epoch == 0 || !is_on(self, gate)) return;
  Thread* thread = t_thread;
  if (__builtin_expect(!thread || thread->epoch != epoch || !thread->slot || thread->nameless, 0)) {
    thread = thread_for_event(epoch);
    if (!thread) return;
  }
  uint64_t now =
      begin(thread, {self, current_frame(), self, 0, self->name_id, self->kind, false, !sampled(self), self->shift});
  region_begins(thread, now);
}

inline void leave_site(Site* self) {
  uint32_t epoch = gate();
  Thread* thread = t_thread;
  if (epoch == 0 || !thread || thread->epoch != epoch || thread->depth == 0) return;
  uint64_t now = counter_of_end(thread);
  const Open* open = finish(thread, self, current_frame());
  if (!open) return;  // not begun: off, or another thread's
  end_record(thread, *open, now, running_step(), nullptr, 0);
}

PyObject* call_enter(PyObject* object, PyObject* const*, size_t, PyObject*) {
  Site* site = reinterpret_cast<SiteCall*>(object)->site;
  enter_site(site);
  return Py_NewRef(reinterpret_cast<PyObject*>(site));
}

PyObject* enter(PyObject* self, PyObject*) {
  enter_site(reinterpret_cast<Site*>(self));
  return Py_NewRef(self);
}

PyObject* leave(PyObject* self, PyObject* const*, Py_ssize_t) {
  leave_site(reinterpret_cast<Site*>(self));
  Py_RETURN_NONE;
}

// As a decorator a site is the annotation of its name: calls of a function have owners of their own (annotation.cpp).
// Called with links alone it is one pass of itself that has them. Such a pass is no sample: it leaves a record always.
PyObject* site_call(PyObject* self, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) == 0) {
    auto* site = reinterpret_cast<Site*>(self);
    uint64_t gate = gate_word();
    if (uint32_t(gate) == 0 || !is_on(site, gate)) return Py_NewRef(self);
    auto* linked = reinterpret_cast<PyObject*>(annotation_with(site->name, kwargs, true));
    return linked ? linked : Py_NewRef(self);
  }
  Annotation* annotation = annotation_of(reinterpret_cast<Site*>(self)->name);
  if (!annotation) return PyErr_NoMemory();
  PyObject* made = PyObject_Call(reinterpret_cast<PyObject*>(annotation), args, kwargs);
  Py_DECREF(annotation);
  return made;
}

PyObject* site_repr(PyObject* self) {
  return PyUnicode_FromFormat("<fleetscope site %R>", reinterpret_cast<Site*>(self)->name);
}

void site_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Site*>(object);
  Py_XDECREF(self->name);
  Py_XDECREF(self->category);
  PyTypeObject* type = Py_TYPE(object);
  type->tp_free(object);
  if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) Py_DECREF(type);
}

void call_dealloc(PyObject* object) { PyObject_Free(object); }

PyTypeObject SiteCallType = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyMethodDef site_methods[] = {
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(leave)), METH_FASTCALL, nullptr},
    {"begin", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(site_begin)), METH_FASTCALL | METH_KEYWORDS,
     "begin($self, /, *, producer=None, consumer=None)\n--\n\nBegins a region that its end() ends, wherever."},
    {"instant", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(site_instant)),
     METH_FASTCALL | METH_KEYWORDS,
     "instant($self, /, *, producer=None, consumer=None)\n--\n\nA moment: a region of no length."},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef g_exit_def = {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(leave)), METH_FASTCALL,
                          nullptr};

SiteCall* make_call(Site* site, vectorcallfunc function) {
  SiteCall* call = PyObject_New(SiteCall, &SiteCallType);
  if (call) call->vectorcall = function, call->site = site;
  return call;
}

// The one type of a site; SiteType when there are enough of them.
PyTypeObject* type_for_site() {
  if (g_types >= kOwnTypes) return &SiteType;
  PyType_Slot slots[] = {{0, nullptr}};
  PyType_Spec spec = {"fleetscope.native._recorder.Site", int(sizeof(Site)), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  PyObject* type = PyType_FromSpecWithBases(&spec, reinterpret_cast<PyObject*>(&SiteType));
  if (!type) return PyErr_Clear(), &SiteType;
  ++g_types;
  return reinterpret_cast<PyTypeObject*>(type);
}

bool bind_calls(Site* self) {
  PyTypeObject* type = Py_TYPE(self);
  if (type == &SiteType) return true;
  bool bound = true;
  // The interpreter calls __enter__ by vectorcall, and __exit__ by an instruction that knows builtin functions, which
  // do not bind either.
  PyObject* calls[] = {reinterpret_cast<PyObject*>(make_call(self, call_enter)),
                       PyCFunction_New(&g_exit_def, reinterpret_cast<PyObject*>(self))};
  const char* names[] = {"__enter__", "__exit__"};
  for (int i = 0; i < 2; ++i) {
    bound = bound && calls[i] && PyObject_SetAttrString(reinterpret_cast<PyObject*>(type), names[i], calls[i]) == 0;
    Py_XDECREF(calls[i]);  // the type holds it
  }
  return bound;
}

Site* new_site(PyObject* name, uint8_t level, PyObject* category, uint8_t shift) {
  PyTypeObject* type = type_for_site();
  Site* self = PyObject_New(Site, type);
  if (type != &SiteType) Py_DECREF(type);  // the object holds it
  if (!self) return nullptr;
  self->name = Py_NewRef(name);
  self->category = Py_XNewRef(category);
  self->armed = self->hits = 0;
  self->named = self->name_id = 0;
  self->level = level;
  self->own = self->shift = shift;
  self->enabled = false;
  Py_ssize_t bytes = 0;
  const char* utf8 = PyUnicode_AsUTF8AndSize(name, &bytes);
  self->kind = utf8 ? kind_of_name(utf8, bytes) : uint8_t{kHost};
  PyErr_Clear();
  if (!bind_calls(self)) return Py_DECREF(self), nullptr;
  return self;
}

}  // namespace

PyTypeObject SiteType = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* site_of_literal(PyObject* name) {
  constexpr size_t kRecent = 64;
  static Site* recent[kRecent];  // borrowed from g_sites, by the address of the name
  Site*& at = recent[reinterpret_cast<uintptr_t>(name) / 16 % kRecent];
  if (__builtin_expect(at && at->name == name, 1)) return Py_NewRef(reinterpret_cast<PyObject*>(at));
  PyObject* site = make_site(nullptr, &name, 1, nullptr);
  auto* made = reinterpret_cast<Site*>(site);
  if (made && made->name == name && Py_REFCNT(site) > 1) at = made;
  return site;
}

bool arm(Site* self, uint64_t gate) {
  bool off = self->category && g_off && PySet_Contains(g_off, self->category) == 1;
  PyErr_Clear();
  self->enabled = g_site_level.load(std::memory_order_relaxed) >= self->level && !off;
  if (self->enabled && self->named != uint32_t(gate)) {
    self->name_id = name_id_of(self->name);
    self->named = uint32_t(gate);
  }
  self->shift = self->kind == kHost ? std::max(self->own, thinned(self->name)) : self->own;
  self->armed = gate;
  return self->enabled;
}

// site(name, /, *, level=1, category="", sample=0): the same object for the same words. What is none of it counts as
// its default: user code never sees an error of ours.
PyObject* make_site(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  PyObject* name = count > 0 ? Py_NewRef(args[0]) : PyUnicode_FromString("unnamed");
  if (name && !PyUnicode_CheckExact(name)) Py_SETREF(name, PyObject_Str(name));
  if (!name) PyErr_Clear(), name = PyUnicode_FromString("unnamed");
  if (!name) return nullptr;
  long level = 1, shift = 0;
  PyObject* category = nullptr;
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i) {
    PyObject *key = PyTuple_GET_ITEM(names, i), *value = args[count + i];
    if (PyUnicode_CompareWithASCIIString(key, "category") == 0) {
      if (PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value)) category = value;
    } else if (PyLong_CheckExact(value)) {
      long number = PyLong_AsLong(value);
      if (PyUnicode_CompareWithASCIIString(key, "level") == 0 && number >= 1 && number <= 3) level = number;
      if (PyUnicode_CompareWithASCIIString(key, "sample") == 0 && number >= 0 && number <= 20) shift = number;
      PyErr_Clear();
    }
  }
  if (!g_sites) g_sites = PyDict_New();
  PyObject* key = Py_BuildValue("(OlOl)", name, level, category ? category : Py_None, shift);
  PyObject* site = g_sites && key ? Py_XNewRef(PyDict_GetItemWithError(g_sites, key)) : nullptr;
  if (!site && !PyErr_Occurred()) {
    site = reinterpret_cast<PyObject*>(new_site(name, uint8_t(level), category, uint8_t(shift)));
    // Names from data would make this grow for ever; past the limit each call makes an object of its own.
    if (site && g_sites && key && PyDict_GET_SIZE(g_sites) < kNames && PyDict_SetItem(g_sites, key, site) < 0)
      PyErr_Clear();
  }
  Py_XDECREF(key);
  Py_DECREF(name);
  return site;
}

// set_level(level, categories off): for all sites, from their next use on.
PyObject* set_level(PyObject*, PyObject* args) {
  unsigned char level;
  PyObject* off;
  if (!PyArg_ParseTuple(args, "bO", &level, &off)) return nullptr;
  PyObject* categories = PyFrozenSet_New(off);
  if (!categories) return nullptr;
  bool same = level == g_site_level.load(std::memory_order_relaxed) && g_off &&
              PyObject_RichCompareBool(categories, g_off, Py_EQ) == 1;
  g_site_level.store(level, std::memory_order_relaxed);
  Py_XSETREF(g_off, categories);
  if (!same) turn_gate();
  Py_RETURN_NONE;
}

bool add_site_types(PyObject* module) {
  SiteCallType.tp_name = "fleetscope.native._recorder.SiteCall";
  SiteCallType.tp_basicsize = sizeof(SiteCall);
  SiteCallType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  SiteCallType.tp_vectorcall_offset = offsetof(SiteCall, vectorcall);
  SiteCallType.tp_call = PyVectorcall_Call;
  SiteCallType.tp_dealloc = call_dealloc;
  SiteType.tp_name = "fleetscope.native._recorder.Site";
  SiteType.tp_doc = "A named call site: context manager and decorator, for use again and again.";
  SiteType.tp_basicsize = sizeof(Site);
  SiteType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  SiteType.tp_dealloc = site_dealloc;
  SiteType.tp_methods = site_methods;
  SiteType.tp_call = site_call;
  SiteType.tp_repr = site_repr;
  for (PyTypeObject* type : {&SiteCallType, &SiteType}) {
    if (PyType_Ready(type) < 0) return false;
  }
  return PyModule_AddObjectRef(module, "Site", reinterpret_cast<PyObject*>(&SiteType)) == 0;
}

}  // namespace fleetscope::recorder
