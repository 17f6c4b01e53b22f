// Regions that begin in one call and end in another: of generators, asyncio tasks, callbacks. Each has an object of its
// own, so that those of one site may interleave in any order, and end on another thread than they began on.
#include "annotation.h"
#include "calls.h"
#include "link_values.h"
#include "site.h"

namespace fleetscope::recorder {
namespace {

constexpr uint32_t kRegionLinks = 16;

struct Region {
  PyObject_HEAD PyObject* site;
  uint64_t thread;  // serial; 0: not open
  uint64_t start;
  uint32_t epoch;
  uint8_t shift;  // of its site; 0 where it began with links, which is no sample
  bool unsampled;
  uint32_t link_count;
  Argument links[kRegionLinks];
};

// Ends it, or forgets it; on whatever thread. True when it was open.
bool close_region(Region* self, bool recorded) {
  uint64_t began = self->thread;
  self->thread = 0;
  uint32_t epoch = gate();
  if (!began || epoch == 0 || self->epoch != epoch) return false;
  auto* site = reinterpret_cast<Site*>(self->site);
  if (t_thread && t_thread->serial == began) {
    uint64_t now = counter();
    const Open* ended = finish(t_thread, self, nullptr);
    if (!ended) return false;
    if (recorded) end_record(t_thread, *ended, now, running_step(), self->links, self->link_count);
  } else {
    uint64_t now = counter();
    Open open = {self,       nullptr, nullptr,         self->start, site->name_id,
                 site->kind, false,   self->unsampled, self->shift, false};
    Thread* mine = recorded ? thread_for_event(epoch) : nullptr;
    if (finish_elsewhere(began, epoch, self, &open, mine) == Elsewhere::kGivenUp) return false;
    if (mine) end_record(mine, open, now, running_step(), self->links, self->link_count);
  }
  if (!recorded) count_abandoned();
  return true;
}

void region_dealloc(PyObject* object) {
  auto* self = reinterpret_cast<Region*>(object);
  close_region(self, false);  // nobody can end it any more
  Py_XDECREF(self->site);
  PyObject_Free(object);
}

PyObject* region_end(PyObject* object, PyObject*) {
  close_region(reinterpret_cast<Region*>(object), true);
  Py_RETURN_NONE;
}

PyObject* region_link(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  auto* self = reinterpret_cast<Region*>(object);
  LinkWords words(args + count, names);
  uint32_t room = kRegionLinks - self->link_count;
  // Too many for it: those that find no place with the thread are moments, as of a pass that leaves no record. Never to
  // another region that the thread is in: of requests that interleave, that is somebody else's.
  if (self->unsampled || words.count() > room) return link_now(words, object), Py_NewRef(Py_None);
  self->link_count += words.fill(self->links + self->link_count, room);
  Py_RETURN_NONE;
}

PyMethodDef region_methods[] = {
    {"link", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(region_link)), METH_FASTCALL | METH_KEYWORDS,
     "link($self, /, *, producer=None, consumer=None)\n--\n\nLinks it, until its end."},
    {"end", region_end, METH_NOARGS, "end($self, /)\n--\n\nOnce; later calls do nothing."},
    {nullptr, nullptr, 0, nullptr},
};

// The site, or the site of that name: a borrowed-like new reference.
Site* site_of(PyObject* object) {
  if (PyObject_TypeCheck(object, &SiteType)) return reinterpret_cast<Site*>(Py_NewRef(object));
  return reinterpret_cast<Site*>(make_site(nullptr, &object, 1, nullptr));
}

PyObject* begin_of(Site* site, const LinkWords& words) {
  Region* self = PyObject_New(Region, &RegionType);
  if (!self) return nullptr;
  self->site = Py_NewRef(reinterpret_cast<PyObject*>(site));
  self->thread = 0;
  Argument links[kLinks];
  uint32_t given = words.fill(links, kLinks);
  self->link_count = given < kRegionLinks ? given : kRegionLinks;
  for (uint32_t i = 0; i < self->link_count; ++i) self->links[i] = links[i];
  self->shift = 0;
  self->unsampled = false;
  uint64_t gate = gate_word();
  uint32_t epoch = self->epoch = uint32_t(gate);
  if (epoch == 0 || !is_on(site, gate)) return reinterpret_cast<PyObject*>(self);
  Thread* thread = thread_for_event(epoch);
  if (!thread) return reinterpret_cast<PyObject*>(self);
  self->thread = thread->serial;
  self->shift = self->link_count ? 0 : site->shift;
  self->unsampled = self->shift && !sampled(site);
  uint64_t now = self->start =
      begin(thread, {self, nullptr, nullptr, 0, site->name_id, site->kind, false, self->unsampled, self->shift, false});
  for (uint32_t i = kRegionLinks; i < given; ++i) link_region(thread, self, nullptr, links[i]);
  region_begins(thread, now);
  return reinterpret_cast<PyObject*>(self);
}

void instant_of(Site* site, const LinkWords& words) {
  uint64_t gate = gate_word();
  uint32_t epoch = uint32_t(gate);
  if (epoch == 0 || !is_on(site, gate)) return;
  Argument links[kLinks];
  uint32_t count = words.fill(links, kLinks);
  if (!count && !sampled(site)) return;
  Thread* thread = thread_for_event(epoch);
  if (!thread) return;
  uint8_t shift = count ? uint8_t{0} : site->shift;
  Open open = {site, nullptr, nullptr, counter(), site->name_id, site->kind, false, false, shift, false};
  end_record(thread, open, open.start, running_step(), links, count);
}

}  // namespace

PyTypeObject RegionType = {PyVarObject_HEAD_INIT(nullptr, 0)};

PyObject* site_begin(PyObject* site, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  return begin_of(reinterpret_cast<Site*>(site), LinkWords(args + count, names));
}

PyObject* site_instant(PyObject* site, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  instant_of(reinterpret_cast<Site*>(site), LinkWords(args + count, names));
  Py_RETURN_NONE;
}

PyObject* begin_region(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  Site* site = site_of(count > 0 ? args[0] : Py_None);
  if (!site) return nullptr;
  PyObject* region = begin_of(site, LinkWords(args + count, names));
  Py_DECREF(site);
  return region;
}

PyObject* end_region(PyObject*, PyObject* region) {
  if (Py_IS_TYPE(region, &RegionType)) close_region(reinterpret_cast<Region*>(region), true);
  Py_RETURN_NONE;
}

PyObject* instant(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  if (Site* site = site_of(count > 0 ? args[0] : Py_None)) {
    instant_of(site, LinkWords(args + count, names));
    Py_DECREF(site);
  }
  PyErr_Clear();
  Py_RETURN_NONE;
}

bool add_region_type(PyObject* module) {
  RegionType.tp_name = "fleetscope.native._recorder.Region";
  RegionType.tp_doc = "An open region: ended by end(), on any thread.";
  RegionType.tp_basicsize = sizeof(Region);
  RegionType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  RegionType.tp_dealloc = region_dealloc;
  RegionType.tp_methods = region_methods;
  return PyType_Ready(&RegionType) == 0 &&
         PyModule_AddObjectRef(module, "Region", reinterpret_cast<PyObject*>(&RegionType)) == 0;
}

}  // namespace fleetscope::recorder
