#include "link_values.h"

#include <string.h>

#include <initializer_list>

#include "annotation.h"

namespace fleetscope::recorder {
namespace {

// An int, or one of numpy: __index__ of a jax array would wait for the device.
bool integer(PyObject* object, uint64_t* value) {
  if (!object || PyBool_Check(object)) return false;
  if (PyLong_Check(object)) {
    *value = PyLong_AsUnsignedLongLongMask(object);
    return !PyErr_Occurred() || (PyErr_Clear(), false);
  }
  if (!PyIndex_Check(object) || strncmp(Py_TYPE(object)->tp_name, "numpy.", 6) != 0) return false;
  PyObject* index = PyNumber_Index(object);
  if (index) *value = PyLong_AsUnsignedLongLongMask(index);
  bool known = index && !PyErr_Occurred();
  PyErr_Clear();
  Py_XDECREF(index);
  return known;
}

// An id, or a pair of context type and id.
bool pair_of(PyObject* object, uint8_t kind, Argument* link) {
  uint64_t type = 0, id = 0;
  if (object && PyTuple_CheckExact(object)) {
    if (PyTuple_GET_SIZE(object) != 2 || !integer(PyTuple_GET_ITEM(object, 0), &type)) return false;
    object = PyTuple_GET_ITEM(object, 1);
  }
  if (type >= kNameLimit || !integer(object, &id)) return false;
  *link = {uint32_t(type), kind, id};
  return true;
}

// One, or a list of them. `into` nullptr: only counts.
uint32_t values_of(PyObject* object, uint8_t kind, Argument* into, uint32_t room) {
  Argument link;
  if (!object || !PyList_CheckExact(object)) {
    if (room == 0 || !pair_of(object, kind, &link)) return 0;
    if (into) *into = link;
    return 1;
  }
  uint32_t count = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object) && count < room; ++i) {
    if (!pair_of(PyList_GET_ITEM(object, i), kind, &link)) continue;
    if (into) into[count] = link;
    ++count;
  }
  return count;
}

// As TraceMeProducer and TraceMeConsumer write them: the id, and its type beside it.
uint32_t metadata(PyObject* type, PyObject* id, uint8_t kind, Argument* into, uint32_t room) {
  uint64_t number = 0, context = 0;
  if (room == 0 || !integer(id, &number) || (type && (!integer(type, &context) || context >= kNameLimit))) return 0;
  if (into) *into = {uint32_t(context), kind, number};
  return 1;
}

}  // namespace

LinkWords::LinkWords(PyObject* kwargs) {
  PyObject *key, *value;
  Py_ssize_t at = 0;
  while (kwargs && PyDict_Next(kwargs, &at, &key, &value)) note(key, value);
  check();
}

LinkWords::LinkWords(PyObject* const* values, PyObject* names) {
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i) note(PyTuple_GET_ITEM(names, i), values[i]);
  check();
}

int LinkWords::word_of(PyObject* key) {
  static PyObject* const kTexts[kWords] = {
      PyUnicode_InternFromString("producer"), PyUnicode_InternFromString("consumer"),
      PyUnicode_InternFromString("_p"),       PyUnicode_InternFromString("_c"),
      PyUnicode_InternFromString("_pt"),      PyUnicode_InternFromString("_ct")};
  for (int word = 0; word < kWords; ++word) {
    if (key == kTexts[word]) return word;
  }
  // Names in code are interned; those of a dict made from data need not be.
  if (!PyUnicode_CheckExact(key) || PyUnicode_CHECK_INTERNED(key)) return -1;
  for (int word = 0; word < kWords; ++word) {
    if (kTexts[word] && PyUnicode_Compare(key, kTexts[word]) == 0) return word;
  }
  return -1;
}

void LinkWords::note(PyObject* key, PyObject* value) {
  int word = word_of(key);
  if (word < 0) return;
  value_[word] = value;
  any_ = true;
}

void LinkWords::check() {
  if (!any_) return;
  for (int word : {kProducerWord, kConsumerWord}) {
    uint32_t links = value_[word] ? values_of(value_[word], kProducer, nullptr, kLinks - count_) : 0;
    if (!links) value_[word] = nullptr;
    count_ += links;
  }
  for (int word : {kP, kC}) {
    int type = word == kP ? kPt : kCt;
    uint32_t links = value_[word] ? metadata(value_[type], value_[word], kProducer, nullptr, kLinks - count_) : 0;
    if (!links) value_[word] = value_[type] = nullptr;
    count_ += links;
  }
}

uint32_t LinkWords::fill(Argument* into, uint32_t room) const {
  uint32_t count = 0;
  if (!count_) return 0;
  if (value_[kProducerWord]) count += values_of(value_[kProducerWord], kProducer, into, room);
  if (value_[kConsumerWord]) count += values_of(value_[kConsumerWord], kConsumer, into + count, room - count);
  if (value_[kP]) count += metadata(value_[kPt], value_[kP], kProducer, into + count, room - count);
  if (value_[kC]) count += metadata(value_[kCt], value_[kC], kConsumer, into + count, room - count);
  return count;
}

bool LinkWords::takes(PyObject* key) const {
  if (!count_) return false;
  int word = word_of(key);
  return word >= 0 && value_[word];
}

void link_now(const LinkWords& words, const void* owner) {
  static PyObject* name = PyUnicode_InternFromString("link");
  uint32_t epoch = gate();
  Thread* thread = epoch && words.any() ? thread_for_event(epoch) : nullptr;
  if (!thread) return;
  Argument links[kLinks];
  uint32_t given = words.fill(links, kLinks), left = 0;
  const void* frame = owner ? nullptr : current_frame();
  for (uint32_t i = 0; i < given; ++i) {
    if (!link_region(thread, owner, frame, links[i])) links[left++] = links[i];
  }
  if (left) append(thread, counter(), name ? name_id_of(name) : 0, 0, running_step(), kHost, links, left);
}

PyObject* link_here(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  link_now(LinkWords(args + count, names), nullptr);
  Py_RETURN_NONE;
}

PyObject* new_flow_id(PyObject*, PyObject*) { return PyLong_FromUnsignedLongLong(new_flow()); }

}  // namespace fleetscope::recorder
