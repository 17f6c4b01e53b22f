// The module fleetscope.native._pjrt_shim: wraps the tables that jaxlib is about to use.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>

#include "flights.h"
#include "keeper.h"
#include "plugin.h"
#include "programs.h"
#include "state.h"

namespace fleetscope::pjrt {
namespace {

constexpr const char* kCapsule = "pjrt_c_api";  // jaxlib's name for a table

PyObject* capsule_or_reason(const Table* table, const std::string& why) {
  if (!table) return PyUnicode_DecodeUTF8(why.data(), Py_ssize_t(why.size()), "replace");
  return PyCapsule_New(const_cast<Table*>(table), kCapsule, nullptr);
}

// wrap(name, library_path or capsule, /) -> capsule, or a str: why not.
PyObject* wrap_plugin(PyObject*, PyObject* args) {
  const char* name;
  PyObject* source;
  if (!PyArg_ParseTuple(args, "sO", &name, &source)) return nullptr;
  std::string why;
  const Table* table;
  if (PyCapsule_CheckExact(source)) {
    auto* real = static_cast<const Table*>(PyCapsule_GetPointer(source, kCapsule));
    if (!real) return nullptr;
    table = wrap(real, name, &why);
  } else {
    PyObject* path = nullptr;
    if (!PyUnicode_FSConverter(source, &path)) return nullptr;
    Py_BEGIN_ALLOW_THREADS;
    table = wrap_file(PyBytes_AS_STRING(path), name, &why);
    Py_END_ALLOW_THREADS;
    Py_DECREF(path);
  }
  if (table) start_keeper();
  return capsule_or_reason(table, why);
}

PyObject* refused(PyObject*, PyObject*) {
  g_counts.refused.fetch_add(1);
  start_keeper();  // which tells it
  Py_RETURN_NONE;
}

PyObject* stop(PyObject*, PyObject* timeout_ms) {
  long wait = PyLong_AsLong(timeout_ms);
  if (wait == -1 && PyErr_Occurred()) return nullptr;
  bool ended;
  Py_BEGIN_ALLOW_THREADS;
  ended = stop_keeper(int(wait));
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(ended);
}

PyObject* counts(PyObject*, PyObject*) {
  using Number = unsigned long long;
  return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:K}", "errors", Number(g_counts.errors.load()), "refused",
                       Number(g_counts.refused.load()), "twice", Number(g_counts.twice.load()), "untracked",
                       Number(g_counts.untracked.load()), "hlo_left_out", Number(g_counts.hlo_left_out.load()),
                       "in_flight", Number(flights_now()));
}

// programs() -> [(module name, executions launched since the process began, busy ns of devices)]
PyObject* programs(PyObject*, PyObject*) {
  PyObject* list = PyList_New(0);
  for (uint32_t index = 1; list && index <= kModules; ++index) {
    const Module* of = g_modules[index].load(std::memory_order_acquire);
    if (!of) break;
    double busy_ns = double(of->busy.load()) * double(g_period_num) / double(g_period_den);
    PyObject* name = PyUnicode_DecodeUTF8(of->name.data(), Py_ssize_t(of->name.size()), "replace");
    PyObject* row =
        name ? Py_BuildValue("NKL", name, (unsigned long long)of->launches.load(), (long long)busy_ns) : nullptr;
    if (!row || PyList_Append(list, row) != 0) Py_CLEAR(list);
    Py_XDECREF(row);
  }
  return list;
}

// follow(module name, /) -> bool
PyObject* follow(PyObject*, PyObject* name) {
  Py_ssize_t size;
  const char* text = PyUnicode_AsUTF8AndSize(name, &size);
  if (!text) return nullptr;
  std::string wanted(text, size_t(size));
  bool found;
  Py_BEGIN_ALLOW_THREADS;
  found = follow_module(wanted);
  Py_END_ALLOW_THREADS;
  return PyBool_FromLong(found);
}

PyMethodDef g_methods[] = {
    {"wrap", wrap_plugin, METH_VARARGS, "wrap($module, name, source, /)\n--\n\n"},
    {"refused", refused, METH_NOARGS, "refused($module, /)\n--\n\n"},
    {"stop", stop, METH_O, "stop($module, timeout_ms, /)\n--\n\n"},
    {"counts", counts, METH_NOARGS, "counts($module, /)\n--\n\n"},
    {"programs", programs, METH_NOARGS, "programs($module, /)\n--\n\n"},
    {"follow", follow, METH_O, "follow($module, name, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT,
                        "_pjrt_shim",
                        "Every execution of a PJRT plugin, recorded on its way.",
                        -1,
                        g_methods,
                        nullptr,
                        nullptr,
                        nullptr,
                        nullptr};

}  // namespace
}  // namespace fleetscope::pjrt

PyMODINIT_FUNC PyInit__pjrt_shim(void) {
  auto* recorder = static_cast<const fleetscope_recorder_api*>(PyCapsule_Import(FLEETSCOPE_RECORDER_CAPSULE, 0));
  if (!recorder) return nullptr;
  if (recorder->version != FLEETSCOPE_RECORDER_API || recorder->struct_size < sizeof *recorder) {
    PyErr_SetString(PyExc_ImportError, "the recorder is of another version");
    return nullptr;
  }
  fleetscope::pjrt::start_state(recorder);
  return PyModule_Create(&fleetscope::pjrt::g_module);
}
