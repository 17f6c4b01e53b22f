// jax.profiler.TraceAnnotation patched in place: objects of it, of its subclasses, and of names imported earlier are
// recorded.
//
// The class gets three attributes: __init__ as a slot wrapper, so that CPython puts our C function straight into
// tp_init of the class and its subclasses, and __enter__ / __exit__ as method descriptors of a kind of their own. The
// originals are always called: a session may be on. jaxlib's TraceMe itself, a nanobind class, is left alone.
#include <string.h>

#include <initializer_list>

#include "annotation.h"
#include "link_values.h"

namespace fleetscope::recorder {
namespace {

PyTypeObject* g_type = nullptr;  // TraceAnnotation
PyTypeObject* g_base = nullptr;  // TraceMe
// One of nanobind's methods, called unbound and without the checks of PyObject_Vectorcall, which are 3 ns a call.
// (TraceMe's tp_init is CPython's own slot_tp_init: it would look `__init__` up in the object's class and find ours
// again.)
struct Original {
  PyObject* method = nullptr;
  vectorcallfunc vectorcall = nullptr;

  bool find(PyTypeObject* type, const char* name) {
    Py_XSETREF(method, PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), name));
    vectorcall = method ? PyVectorcall_Function(method) : nullptr;
    return vectorcall != nullptr;
  }
  PyObject* operator()(PyObject* const* args, Py_ssize_t count) const {
    return vectorcall(method, args, size_t(count), nullptr);
  }
};
Original g_init, g_enter, g_exit;
PyObject* g_key = nullptr;  // attribute that holds an object's Annotation
PyObject* g_step_flag = nullptr;
PyObject* g_step_number = nullptr;

// `_r=1` marks a step to XLA, and step_num is its number.
Annotation* annotation_for(PyObject* args, PyObject* kwargs) {
  PyObject* name = PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, 0) : nullptr;
  if (!name && kwargs) name = PyDict_GetItemString(kwargs, "name");
  if (!name || !PyUnicode_Check(name)) return nullptr;
  if (!kwargs || !PyDict_GET_SIZE(kwargs)) return annotation_of(name);
  if (!PyDict_GetItemWithError(kwargs, g_step_flag)) return PyErr_Clear(), annotation_with(name, kwargs, false);
  PyObject* number = PyDict_GetItemWithError(kwargs, g_step_number);
  PyErr_Clear();
  if (!number || !PyLong_Check(number)) {
    // numpy integers, not arrays of a device: __index__ of a jax array would wait for it.
    if (!number || !PyIndex_Check(number) || strncmp(Py_TYPE(number)->tp_name, "numpy.", 6) != 0) {
      return annotation_with(name, nullptr, false);
    }
  }
  long long step = PyLong_Check(number) ? PyLong_AsLongLong(number) : PyNumber_AsSsize_t(number, nullptr);
  if (step == -1 && PyErr_Occurred()) return PyErr_Clear(), annotation_with(name, nullptr, false);
  if (__builtin_expect(!LinkWords(kwargs).any(), 1)) return annotation_of_step(name, step, nullptr);
  PyObject* rest = PyDict_Copy(kwargs);
  for (PyObject* own : {g_step_flag, g_step_number}) {
    if (rest && PyDict_DelItem(rest, own) < 0) PyErr_Clear();
  }
  PyErr_Clear();
  Annotation* annotation = annotation_of_step(name, step, rest);
  Py_XDECREF(rest);
  return annotation;
}

// The object made last and not yet entered. `with TraceAnnotation(..)` enters it next, and then its own dict, which
// costs 80 ns to write and read, is never used. A second object made before the first was entered puts the first aside.
struct Made {
  PyObject* object = nullptr;
  Annotation* annotation = nullptr;
};
Made g_made;

void keep_in_dict(PyObject* object, Annotation* annotation) {
  if (PyObject_GenericSetAttr(object, g_key, reinterpret_cast<PyObject*>(annotation)) < 0) PyErr_Clear();
}

void put_aside() {
  Made made = g_made;
  g_made = {};
  if (Py_REFCNT(made.object) > 1) keep_in_dict(made.object, made.annotation);
  Py_DECREF(made.annotation);
  Py_DECREF(made.object);
}

int init(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* positional[5] = {self};
  Py_ssize_t count = PyTuple_GET_SIZE(args);
  PyObject* done;
  if (__builtin_expect(count <= 4, 1)) {
    for (Py_ssize_t i = 0; i < count; ++i) positional[i + 1] = PyTuple_GET_ITEM(args, i);
    done = kwargs ? PyObject_VectorcallDict(g_init.method, positional, size_t(count) + 1, kwargs)
                  : g_init(positional, count + 1);
  } else {
    PyErr_SetString(PyExc_TypeError, "TraceAnnotation takes one positional argument");
    done = nullptr;
  }
  if (!done) return -1;
  Py_DECREF(done);
  if (gate() == 0) return 0;
  Annotation* annotation = annotation_for(args, kwargs);
  if (!annotation) return 0;
  if (g_made.object) put_aside();
  g_made = {Py_NewRef(self), annotation};
  return 0;
}

// What __init__ left for this object, as a new reference.
Annotation* annotation_in(PyObject* self) {
  // References to an object nobody but its `with` holds: the statement, the two bound methods it called up, and g_made.
  constexpr Py_ssize_t kTemporary = 4;
  if (g_made.object == self) {
    Made made = g_made;
    g_made = {};
    if (Py_REFCNT(self) > kTemporary) keep_in_dict(self, made.annotation);  // it may be entered again
    Py_DECREF(self);
    return made.annotation;
  }
  PyObject* value = PyObject_GenericGetAttr(self, g_key);
  if (!value) return PyErr_Clear(), nullptr;
  if (Py_IS_TYPE(value, &AnnotationType)) return reinterpret_cast<Annotation*>(value);
  Py_DECREF(value);
  return nullptr;
}

PyObject* enter(PyObject* self, PyObject* const*, Py_ssize_t count) {
  if (count) return PyErr_SetString(PyExc_TypeError, "__enter__ takes no arguments"), nullptr;
  PyObject* result = g_enter(&self, 1);
  if (result && gate()) {
    if (Annotation* annotation = annotation_in(self)) annotation_enter(annotation, self, nullptr, true);
  }
  return result;
}

PyObject* leave(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (gate()) annotation_exit(self, nullptr);
  PyObject* all[4] = {self};
  if (count > 3) return PyErr_SetString(PyExc_TypeError, "__exit__ takes at most 3 arguments"), nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) all[i + 1] = args[i];
  return g_exit(all, count + 1);
}

// A method of the class. CPython makes a bound method of each of the two for every `with`: those of a method_descriptor
// take 20 ns each, ours, which are kept for the next `with`, a few.
using Function = PyObject* (*)(PyObject* self, PyObject* const* args, Py_ssize_t count);
struct Method {
  PyObject_HEAD vectorcallfunc vectorcall;
  const char* name;
  Function function;
};
struct Bound {
  PyObject_HEAD vectorcallfunc vectorcall;
  Function function;
  PyObject* self;
};
PyTypeObject MethodType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject BoundType = {PyVarObject_HEAD_INIT(nullptr, 0)};
constexpr int kSpare = 16;
Bound* g_spare[kSpare];
int g_spares = 0;

bool has_names(PyObject* names) {
  bool has = names && PyTuple_GET_SIZE(names);
  if (has) PyErr_SetString(PyExc_TypeError, "TraceAnnotation's methods take no keyword arguments");
  return has;
}

PyObject* call_bound(PyObject* object, PyObject* const* args, size_t count, PyObject* names) {
  auto* self = reinterpret_cast<Bound*>(object);
  if (__builtin_expect(has_names(names), 0)) return nullptr;
  return self->function(self->self, args, PyVectorcall_NARGS(count));
}

PyObject* call_unbound(PyObject* object, PyObject* const* args, size_t count, PyObject* names) {
  auto* self = reinterpret_cast<Method*>(object);
  if (has_names(names)) return nullptr;
  Py_ssize_t given = PyVectorcall_NARGS(count);
  if (given < 1 || !PyObject_TypeCheck(args[0], g_base)) {
    return PyErr_Format(PyExc_TypeError, "%s needs a %s", self->name, g_base->tp_name), nullptr;
  }
  return self->function(args[0], args + 1, given - 1);
}

PyObject* bind(PyObject* object, PyObject* instance, PyObject*) {
  if (!instance || instance == Py_None) return Py_NewRef(object);
  Bound* bound;
  if (__builtin_expect(g_spares > 0, 1)) {
    bound = g_spare[--g_spares];
    PyObject_Init(reinterpret_cast<PyObject*>(bound), &BoundType);
  } else if (!(bound = PyObject_GC_New(Bound, &BoundType))) {
    return nullptr;
  }
  bound->vectorcall = call_bound;
  bound->function = reinterpret_cast<Method*>(object)->function;
  bound->self = Py_NewRef(instance);
  PyObject_GC_Track(bound);
  return reinterpret_cast<PyObject*>(bound);
}

void bound_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Bound*>(object);
  PyObject_GC_UnTrack(object);
  Py_CLEAR(self->self);
  if (g_spares < kSpare) {
    g_spare[g_spares++] = self;
  } else {
    PyObject_GC_Del(object);
  }
}

int bound_traverse(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(reinterpret_cast<Bound*>(object)->self);
  return 0;
}

void method_dealloc(PyObject* object) { PyObject_Free(object); }

PyObject* method_repr(PyObject* object) {
  return PyUnicode_FromFormat("<method %s of TraceAnnotation>", reinterpret_cast<Method*>(object)->name);
}

bool ready() {
  if (BoundType.tp_flags & Py_TPFLAGS_READY) return true;
  for (PyTypeObject* type : {&MethodType, &BoundType}) {
    type->tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION;
    type->tp_call = PyVectorcall_Call;
  }
  MethodType.tp_name = "fleetscope.native._recorder.AnnotationMethod";
  MethodType.tp_basicsize = sizeof(Method);
  MethodType.tp_flags |= Py_TPFLAGS_METHOD_DESCRIPTOR;
  MethodType.tp_vectorcall_offset = offsetof(Method, vectorcall);
  MethodType.tp_descr_get = bind;
  MethodType.tp_dealloc = method_dealloc;
  MethodType.tp_repr = method_repr;
  BoundType.tp_name = "fleetscope.native._recorder.BoundAnnotationMethod";
  BoundType.tp_basicsize = sizeof(Bound);
  BoundType.tp_flags |= Py_TPFLAGS_HAVE_GC;
  BoundType.tp_vectorcall_offset = offsetof(Bound, vectorcall);
  BoundType.tp_traverse = bound_traverse;
  BoundType.tp_dealloc = bound_dealloc;
  return PyType_Ready(&MethodType) == 0 && PyType_Ready(&BoundType) == 0;
}

PyObject* make_method(const char* name, Function function) {
  auto* self = PyObject_New(Method, &MethodType);
  if (self) self->vectorcall = call_unbound, self->name = name, self->function = function;
  return reinterpret_cast<PyObject*>(self);
}

bool set(PyTypeObject* type, const char* name, PyObject* value) {
  if (!value) return false;
  bool done = PyObject_SetAttrString(reinterpret_cast<PyObject*>(type), name, value) == 0;
  Py_DECREF(value);
  return done;
}

}  // namespace

// patch(TraceAnnotation) -> bool: False when the class is not what we know, and nothing was changed.
PyObject* patch_jax(PyObject*, PyObject* object) {
  if (g_type) Py_RETURN_TRUE;
  if (!PyType_Check(object)) Py_RETURN_FALSE;
  auto* type = reinterpret_cast<PyTypeObject*>(object);
  PyTypeObject* base = type->tp_base;
  bool own = false;
  for (const char* name : {"__init__", "__enter__", "__exit__"}) {
    own = own || PyDict_GetItemString(type->tp_dict, name) != nullptr;
  }
  if (own || !base || base == &PyBaseObject_Type || !(type->tp_flags & Py_TPFLAGS_HEAPTYPE)) {
    Py_RETURN_FALSE;
  }
  PyObject* wrapper = PyDict_GetItemString(PyBaseObject_Type.tp_dict, "__init__");
  if (!wrapper || !Py_IS_TYPE(wrapper, &PyWrapperDescr_Type)) Py_RETURN_FALSE;
  if (!g_init.find(base, "__init__") || !g_enter.find(base, "__enter__") || !g_exit.find(base, "__exit__") ||
      !ready()) {
    PyErr_Clear();
    Py_RETURN_FALSE;
  }
  g_base = base;
  g_key = PyUnicode_InternFromString("_fleetscope");
  g_step_flag = PyUnicode_InternFromString("_r");
  g_step_number = PyUnicode_InternFromString("step_num");
  wrapperbase* slot = reinterpret_cast<PyWrapperDescrObject*>(wrapper)->d_base;
  if (set(type, "__init__", PyDescr_NewWrapper(type, slot, reinterpret_cast<void*>(init))) &&
      set(type, "__enter__", make_method("__enter__", enter)) &&
      set(type, "__exit__", make_method("__exit__", leave))) {
    g_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(object));
    Py_RETURN_TRUE;
  }
  PyErr_Clear();
  for (const char* name : {"__init__", "__enter__", "__exit__"}) {
    if (PyObject_SetAttrString(object, name, nullptr) < 0) PyErr_Clear();
  }
  Py_RETURN_FALSE;
}

PyObject* unpatch_jax(PyObject*, PyObject*) {
  if (g_type) {
    for (const char* name : {"__init__", "__enter__", "__exit__"}) {
      if (PyObject_SetAttrString(reinterpret_cast<PyObject*>(g_type), name, nullptr) < 0) PyErr_Clear();
    }
    Py_CLEAR(g_type);
  }
  Py_RETURN_NONE;
}

}  // namespace fleetscope::recorder
