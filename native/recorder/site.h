// Call sites: the cheapest way to record from Python, and what may be switched off or thinned out one by one.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "thin.h"
#include "writer.h"

namespace fleetscope::recorder {

struct Site {
  PyObject_HEAD PyObject* name;
  PyObject* category;  // str, or nullptr
  uint64_t armed;      // the gate for which name_id, enabled and shift hold
  uint64_t hits;
  uint32_t named;  // epoch that name_id is of
  uint32_t name_id;
  uint8_t kind;
  uint8_t level;
  uint8_t own;    // one in 2^own leaves a record, as its user wants it
  uint8_t shift;  // and with what the governor has thinned
  bool enabled;
};

extern PyTypeObject SiteType;

// What the gate's holder has decided for a site; false: record nothing. Cheap but on the first call after a change.
bool arm(Site* site, uint64_t gate);
inline bool is_on(Site* site, uint64_t gate) {
  if (__builtin_expect(site->armed != gate, 0)) return arm(site, gate);
  return site->enabled;
}
// Whether this pass is one of those that leave a record.
inline bool sampled(Site* site) {
  return __builtin_expect(site->shift == 0, 1) || keeps(site->hits++, site->shift, site);
}

PyObject* make_site(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* names);
// The site that `annotate` of a literal is. Of an interned name: names made from data would take 2 KB each.
PyObject* site_of_literal(PyObject* name);
PyObject* set_level(PyObject* module, PyObject* args);
bool add_site_types(PyObject* module);

// region.cpp: regions that begin and end in different calls, and moments.
extern PyTypeObject RegionType;
PyObject* begin_region(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* names);
PyObject* end_region(PyObject* module, PyObject* region);
PyObject* instant(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* names);
PyObject* site_begin(PyObject* site, PyObject* const* args, Py_ssize_t count, PyObject* names);
PyObject* site_instant(PyObject* site, PyObject* const* args, Py_ssize_t count, PyObject* names);
bool add_region_type(PyObject* module);

}  // namespace fleetscope::recorder
