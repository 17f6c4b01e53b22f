// What Python says of links: producer=, consumer=, and the metadata of XLA's TraceMe (_pt, _p, _ct, _c).
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "writer.h"

namespace fleetscope::recorder {

// The words among the arguments of a call that mean links. A value that is no id stays an argument: user code never
// sees an error of ours.
class LinkWords {
 public:
  explicit LinkWords(PyObject* kwargs);                 // a dict, or nullptr
  LinkWords(PyObject* const* values, PyObject* names);  // of a vectorcall, names nullptr or a tuple
  uint32_t count() const { return count_; }             // links, at most kLinks
  bool any() const { return count_ != 0; }
  uint32_t fill(Argument* into, uint32_t room) const;  // how many it wrote
  bool takes(PyObject* key) const;                     // the argument of that name became a link

 private:
  enum Word : uint8_t { kProducerWord, kConsumerWord, kP, kC, kPt, kCt, kWords };
  static int word_of(PyObject* key);
  void note(PyObject* key, PyObject* value);
  void check();

  PyObject* value_[kWords] = {};
  bool any_ = false;  // of the words; count_ tells whether their values mean links
  uint32_t count_ = 0;
};

// To the region of `owner` (nullptr: that the code is in); where that takes none, as moments.
void link_now(const LinkWords& words, const void* owner);
// link(producer=, consumer=): to the region the caller is in, else a moment of its own.
PyObject* link_here(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* names);
PyObject* new_flow_id(PyObject* module, PyObject* unused);

}  // namespace fleetscope::recorder
