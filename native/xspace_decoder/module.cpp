// Python face of the decoder: `decode` and Arrow capsules. Everything a caller reads is documented in native/xspace.py.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include "arrow.h"
#include "decode.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fleetscope::xspace {
namespace {

template <typename Node>
void free_capsule(PyObject* capsule, const char* name) {
  auto* node = static_cast<Node*>(PyCapsule_GetPointer(capsule, name));
  if (node == nullptr) return;
  // A consumer that took the contents has set release to null.
  if (node->release != nullptr) node->release(node);
  delete node;
}

nb::object schema_capsule(const Table& table) {
  auto schema = std::make_unique<ArrowSchema>();
  export_schema(table, schema.get());
  PyObject* capsule =
      PyCapsule_New(schema.get(), "arrow_schema", [](PyObject* c) { free_capsule<ArrowSchema>(c, "arrow_schema"); });
  if (capsule == nullptr) throw nb::python_error();
  schema.release();
  return nb::steal(capsule);
}

nb::object array_capsule(const std::shared_ptr<const Table>& table) {
  auto array = std::make_unique<ArrowArray>();
  export_array(table, array.get());
  PyObject* capsule =
      PyCapsule_New(array.get(), "arrow_array", [](PyObject* c) { free_capsule<ArrowArray>(c, "arrow_array"); });
  if (capsule == nullptr) throw nb::python_error();
  array.release();
  return nb::steal(capsule);
}

// A contiguous view of any buffer, held for as long as the decoder reads it.
class View {
 public:
  explicit View(nb::handle source) {
    if (PyObject_GetBuffer(source.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() { PyBuffer_Release(&view_); }
  Bytes bytes() const { return Bytes(static_cast<const char*>(view_.buf), static_cast<size_t>(view_.len)); }

 private:
  Py_buffer view_{};
};

}  // namespace
}  // namespace fleetscope::xspace

NB_MODULE(_xspace, m) {
  using namespace fleetscope::xspace;

  nb::class_<Table>(m, "Table", "Columns of one table, handed over without a copy by the Arrow PyCapsule interface.")
      .def_ro("num_rows", &Table::rows)
      .def("__arrow_c_schema__", [](const Table& table) { return schema_capsule(table); })
      .def(
          "__arrow_c_array__",
          [](std::shared_ptr<Table> table, nb::object) -> nb::typed<nb::tuple, nb::object, nb::object> {
            return nb::make_tuple(schema_capsule(*table), array_capsule(table));
          },
          "requested_schema"_a = nb::none());

  nb::class_<Decoded>(m, "Decoded", "Outcome of one `decode`: a fault (0 = none) or seven tables.")
      .def_prop_ro("fault", [](const Decoded& decoded) { return static_cast<int>(decoded.fault); })
      .def_ro("fault_offset", &Decoded::fault_offset)
      .def_ro("replaced_utf8", &Decoded::replaced_utf8)
      .def_ro("memory_bytes", &Decoded::memory_bytes)
      .def_ro("planes", &Decoded::planes)
      .def_ro("lines", &Decoded::lines)
      .def_ro("events", &Decoded::events)
      .def_ro("event_metadata", &Decoded::event_metadata)
      .def_ro("stat_metadata", &Decoded::stat_metadata)
      .def_ro("stats", &Decoded::stats)
      .def_ro("messages", &Decoded::messages);

  m.def(
      "decode",
      [](nb::object data, uint64_t memory_limit) {
        View view(data);
        nb::gil_scoped_release release;
        return decode(view.bytes(), memory_limit);
      },
      "data"_a, "memory_limit"_a = 0, "Decodes a contiguous buffer; the GIL is released meanwhile.");
}
