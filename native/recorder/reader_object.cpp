// Reader: SegmentReader for Python. Columns leave as bytes; fleetscope.native.recorder makes arrays of them.
#include <string.h>

#include <new>

#include "annotation.h"
#include "reader.h"

namespace fleetscope::recorder {
namespace {

struct Reader {
  PyObject_HEAD SegmentReader* segment;
};

SegmentReader& of(PyObject* self) { return *reinterpret_cast<Reader*>(self)->segment; }

PyObject* reader_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* path = nullptr;
  int descriptor = -1;
  if (!PyArg_ParseTuple(args, "O&|i", PyUnicode_FSConverter, &path, &descriptor)) return nullptr;
  auto* self = reinterpret_cast<Reader*>(type->tp_alloc(type, 0));
  if (self) self->segment = new (std::nothrow) SegmentReader;
  const char* wrong = "no memory";
  if (self && self->segment) {
    wrong = descriptor < 0 ? self->segment->open(PyBytes_AS_STRING(path)) : self->segment->adopt(descriptor);
  }
  if (wrong) {
    PyErr_Format(PyExc_ValueError, "%s %s", PyBytes_AS_STRING(path), wrong);
    Py_CLEAR(self);
  }
  Py_DECREF(path);
  return reinterpret_cast<PyObject*>(self);
}

void reader_dealloc(PyObject* self) {
  delete reinterpret_cast<Reader*>(self)->segment;
  Py_TYPE(self)->tp_free(self);
}

PyObject* shrank() { return PyErr_SetString(PyExc_ValueError, "the segment's file shrank"), nullptr; }

template <class T>
PyObject* column(const std::vector<T>& values) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(values.data()), Py_ssize_t(values.size() * sizeof(T)));
}

PyObject* drain(PyObject* self, PyObject* args) {
  long long records, until;
  if (!PyArg_ParseTuple(args, "LL", &records, &until)) return nullptr;
  // Kept from drain to drain, one for all readers of a thread: fresh memory costs as much again in page faults.
  static thread_local Drained out;
  out.clear();
  bool read;
  Py_BEGIN_ALLOW_THREADS;
  read = of(self).drain(records < 0 ? 0 : uint64_t(records), until, &out);
  Py_END_ALLOW_THREADS;
  if (!read) return shrank();
  return Py_BuildValue("(NNNNNNNNNNNNNNNNNNKO)", column(out.start), column(out.dur), column(out.arg), column(out.seq),
                       column(out.name), column(out.line), column(out.kind), column(out.flags), column(out.flow),
                       column(out.weight), column(out.arg_row), column(out.arg_key), column(out.arg_kind),
                       column(out.arg_value), column(out.link_row), column(out.link_kind), column(out.link_type),
                       column(out.link_id), (unsigned long long)out.lost, out.more ? Py_True : Py_False);
}

PyObject* names(PyObject* self, PyObject* from) {
  unsigned long first = PyLong_AsUnsignedLong(from);
  if (PyErr_Occurred()) return nullptr;
  std::vector<std::string> all;
  if (!of(self).names(uint32_t(first), &all)) return shrank();
  PyObject* list = PyList_New(Py_ssize_t(all.size()));
  for (size_t i = 0; list && i < all.size(); ++i) {
    PyObject* text = PyUnicode_DecodeUTF8(all[i].data(), Py_ssize_t(all[i].size()), "replace");
    if (!text) return Py_DECREF(list), nullptr;
    PyList_SET_ITEM(list, Py_ssize_t(i), text);
  }
  return list;
}

PyObject* threads(PyObject* self, PyObject*) {
  PyObject* list = PyList_New(0);
  for (const ThreadInfo& thread : of(self).threads()) {
    PyObject* item = Py_BuildValue("(iKiO)", int(thread.line), (unsigned long long)thread.tid, int(thread.name),
                                   thread.retired ? Py_True : Py_False);
    if (!item || !list || PyList_Append(list, item) < 0) return Py_XDECREF(item), Py_XDECREF(list), nullptr;
    Py_DECREF(item);
  }
  return list;
}

PyObject* open_since(PyObject* self, PyObject*) {
  std::vector<OpenSince> all;
  if (!of(self).open_since(&all)) return shrank();
  PyObject* list = PyList_New(Py_ssize_t(all.size()));
  for (size_t i = 0; list && i < all.size(); ++i) {
    PyObject* item = Py_BuildValue("(iLI)", int(all[i].line), (long long)all[i].start, all[i].depth);
    if (!item) return Py_DECREF(list), nullptr;
    PyList_SET_ITEM(list, Py_ssize_t(i), item);
  }
  return list;
}

PyObject* open_now(PyObject* self, PyObject*) {
  std::vector<OpenNow> all;
  if (!of(self).open_now(&all)) return shrank();
  PyObject* list = PyList_New(Py_ssize_t(all.size()));
  for (size_t i = 0; list && i < all.size(); ++i) {
    const OpenNow& at = all[i];
    PyObject* item = Py_BuildValue("(iKiILIi)", int(at.line), (unsigned long long)at.tid, int(at.thread_name), at.depth,
                                   (long long)at.start, unsigned(at.kind), int(at.name));
    if (!item) return Py_DECREF(list), nullptr;
    PyList_SET_ITEM(list, Py_ssize_t(i), item);
  }
  return list;
}

PyObject* info(PyObject* self, PyObject*) {
  const Header& head = of(self).header();
  const Anchor& anchor = head.anchor;
  char boot_id[sizeof head.boot_id + 1] = {};
  memcpy(boot_id, head.boot_id, sizeof head.boot_id);
  return Py_BuildValue("{s:k,s:K,s:N,s:s,s:K,s:K,s:(LLLL),s:K}", "pid", (unsigned long)head.pid, "start_ticks",
                       (unsigned long long)head.start_ticks, "boot_id",
                       PyUnicode_DecodeUTF8(boot_id, Py_ssize_t(strlen(boot_id)), "replace"), "clock",
                       head.clock == ClockKind::kTsc ? "tsc" : "monotonic_raw", "period_num",
                       (unsigned long long)head.period_num, "period_den", (unsigned long long)head.period_den, "anchor",
                       (long long)anchor.raw_before_ns, (long long)anchor.counter, (long long)anchor.realtime_ns,
                       (long long)anchor.raw_after_ns, "pid_namespace", (unsigned long long)head.pid_namespace);
}

PyObject* state(PyObject* self, PyObject*) {
  if (!of(self).refresh()) return shrank();
  const Header& head = of(self).header();
  return Py_BuildValue("{s:O,s:K,s:K,s:K,s:K,s:L}", "closed", head.closed.load() ? Py_True : Py_False, "events",
                       (unsigned long long)of(self).events(), "no_ring", (unsigned long long)head.no_ring.load(),
                       "name_limit", (unsigned long long)head.name_limit.load(), "abandoned",
                       (unsigned long long)head.abandoned.load(), "step", (long long)head.step.load());
}

PyObject* cursor(PyObject* self, PyObject*) {
  std::string bytes = of(self).cursor();
  return PyBytes_FromStringAndSize(bytes.data(), Py_ssize_t(bytes.size()));
}

PyObject* seek(PyObject* self, PyObject* bytes) {
  if (!PyBytes_Check(bytes) || !of(self).seek(PyBytes_AS_STRING(bytes), size_t(PyBytes_GET_SIZE(bytes)))) {
    return PyErr_SetString(PyExc_ValueError, "not a cursor of this ABI version"), nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* commit(PyObject* self, PyObject*) { return PyBool_FromLong(of(self).commit()); }
PyObject* held(PyObject* self, PyObject*) { return PyBool_FromLong(of(self).held()); }

PyMethodDef reader_methods[] = {
    {"drain", drain, METH_VARARGS, "drain($self, max_records, until, /)\n--\n\n"},
    {"names", names, METH_O, "names($self, first, /)\n--\n\n"},
    {"threads", threads, METH_NOARGS, "threads($self, /)\n--\n\n"},
    {"open_since", open_since, METH_NOARGS, "open_since($self, /)\n--\n\n"},
    {"open_now", open_now, METH_NOARGS, "open_now($self, /)\n--\n\n"},
    {"info", info, METH_NOARGS, "info($self, /)\n--\n\n"},
    {"state", state, METH_NOARGS, "state($self, /)\n--\n\n"},
    {"cursor", cursor, METH_NOARGS, "cursor($self, /)\n--\n\n"},
    {"seek", seek, METH_O, "seek($self, cursor, /)\n--\n\n"},
    {"commit", commit, METH_NOARGS, "commit($self, /)\n--\n\n"},
    {"held", held, METH_NOARGS, "held($self, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject make_type() {
  PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
  type.tp_name = "fleetscope.native._recorder.Reader";
  type.tp_doc = "Reads the segment of one process.";
  type.tp_basicsize = sizeof(Reader);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_new = reader_new;
  type.tp_dealloc = reader_dealloc;
  type.tp_methods = reader_methods;
  return type;
}

}  // namespace

PyTypeObject ReaderType = make_type();

}  // namespace fleetscope::recorder
