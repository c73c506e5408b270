/* et_cffi._cpython: the description of a plain buffer, by CPython's C API. The same as what
 * et_cffi/_buffer.py does with memoryview and cffi, for the sources that need no second thought; PyPy, and
 * everything that is not plain, goes there.
 */
#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#include <stdbool.h>
#include <string.h>

#include "et_cffi.h"

#if defined(Py_LIMITED_API) && Py_LIMITED_API + 0 < 0x030B0000
/* The buffer protocol joined the stable ABI in Python 3.11, unchanged: these functions and this structure
   are the same since Python 3.0 (PEP 3118). The wheel is tested on every version from 3.9 on. */
typedef struct {
  void *buf;
  PyObject *obj;
  Py_ssize_t len;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char *format;
  Py_ssize_t *shape;
  Py_ssize_t *strides;
  Py_ssize_t *suboffsets;
  void *internal;
} Py_buffer;
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *exporter, Py_buffer *view, int flags);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer *view);
#define PyBUF_FULL_RO 0x011C
#endif

/* A buffer that is held. Who reads its memory: the runtime, until the input is replaced. */
typedef struct {
  PyObject_HEAD
  bool held;
  Py_buffer view;
} Pin;

static void pin_dealloc(PyObject *self) {
  Pin *pin = (Pin *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (pin->held) {
    PyBuffer_Release(&pin->view);
  }
  freefunc free_slot = (freefunc)PyType_GetSlot(type, Py_tp_free);
  free_slot(self);
  Py_DECREF(type);
}

static int pin_traverse(PyObject *self, visitproc visit, void *arg) {
  Pin *pin = (Pin *)self;
#if PY_VERSION_HEX >= 0x03090000
  Py_VISIT(Py_TYPE(self));
#endif
  if (pin->held) {
    Py_VISIT(pin->view.obj);
  }
  return 0;
}

static PyObject *pin_release(PyObject *self, PyObject *Py_UNUSED(none)) {
  Pin *pin = (Pin *)self;
  if (pin->held) {
    pin->held = false;
    PyBuffer_Release(&pin->view);
  }
  Py_RETURN_NONE;
}

static int pin_clear(PyObject *self) {
  PyObject *none = pin_release(self, NULL);
  Py_XDECREF(none);
  return 0;
}

static PyObject *pin_moved(PyObject *self, PyObject *Py_UNUSED(none)) {
  Pin *pin = (Pin *)self;
  Py_buffer now;
  if (!pin->held || PyObject_GetBuffer(pin->view.obj, &now, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    Py_RETURN_TRUE;
  }
  bool moved = now.buf != pin->view.buf || now.len != pin->view.len;
  PyBuffer_Release(&now);
  return PyBool_FromLong(moved);
}

static PyMethodDef pin_methods[] = {
    {"moved", pin_moved, METH_NOARGS, "Whether the memory is no longer where it was, or not as long."},
    {"release", pin_release, METH_NOARGS, "Let go of the buffer."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pin_slots[] = {
    {Py_tp_dealloc, (void *)pin_dealloc},  {Py_tp_traverse, (void *)pin_traverse},
    {Py_tp_clear, (void *)pin_clear},      {Py_tp_methods, pin_methods},
    {Py_tp_doc, "A buffer that is held."}, {0, NULL},
};

static PyType_Spec pin_spec = {
    .name = "et_cffi._cpython.Pin",
    .basicsize = sizeof(Pin),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = pin_slots,
};

/* The scalar type of a one-letter format code and an item size, or -1: the code names the kind, and the item
   size the width (et_cffi/dtypes.py has the same rule, and the codes that are left to it). */
static int scalar_type_of(const char *format, Py_ssize_t itemsize) {
  static const int floats[] = {-1, ETCFFI_ScalarType_Half, ETCFFI_ScalarType_Float, ETCFFI_ScalarType_Double};
  static const int signeds[] = {ETCFFI_ScalarType_Char, ETCFFI_ScalarType_Short, ETCFFI_ScalarType_Int,
                                ETCFFI_ScalarType_Long};
  static const int unsigneds[] = {ETCFFI_ScalarType_Byte, ETCFFI_ScalarType_UInt16, ETCFFI_ScalarType_UInt32,
                                  ETCFFI_ScalarType_UInt64};
  int width = itemsize == 1 ? 0 : itemsize == 2 ? 1 : itemsize == 4 ? 2 : itemsize == 8 ? 3 : -1;
  if (format == NULL) {
    format = "B";
  }
  if (*format == '@' || *format == '=' || *format == '<') {
    ++format;
  }
  if (width < 0 || format[0] == '\0' || format[1] != '\0') {
    return -1;
  }
  if (strchr("efd", format[0]) != NULL) {
    return floats[width];
  }
  if (strchr("bhilqn", format[0]) != NULL) {
    return signeds[width];
  }
  if (strchr("BHILQN", format[0]) != NULL) {
    return unsigneds[width];
  }
  return format[0] == '?' && width == 0 ? ETCFFI_ScalarType_Bool : -1;
}

/* Whether the view is plain, and if so its description in `value`. */
static bool describe(const Py_buffer *view, etcffi_value *value) {
  if (view->ndim > ETCFFI_MAX_DIM || view->suboffsets != NULL || view->obj == NULL ||
      /* A flat run of bytes may stand for a dtype without a format code. */
      (view->ndim == 1 && view->itemsize == 1) || (view->ndim > 0 && view->strides == NULL)) {
    return false;
  }
  int scalar_type = scalar_type_of(view->format, view->itemsize);
  if (scalar_type < 0) {
    return false;
  }
  etcffi_memory *memory = &value->memory;
  for (int i = 0; i < view->ndim; ++i) {
    if (view->strides[i] % view->itemsize != 0) {
      return false;
    }
    memory->sizes[i] = view->shape[i];
    memory->strides[i] = view->strides[i] / view->itemsize;
  }
  value->tag = ETCFFI_Tag_Tensor;
  memory->data = view->buf;
  memory->nbytes = (size_t)view->len;
  memory->scalar_type = scalar_type;
  memory->ndim = view->ndim;
  memory->device.type = ETCFFI_DeviceType_CPU;
  memory->device.index = 0;
  /* A read-only buffer stays put too, but a kernel may write to its input, and Python shares immutable
     objects. */
  memory->flags = view->readonly ? 0 : ETCFFI_PINNED;
  memory->has_strides = 1;
  return true;
}

PyDoc_STRVAR(pin_doc,
             "pin(source, address) -> Pin or None\n\n"
             "Hold a plain buffer and describe it in the etcffi_value at that address. None for whatever is\n"
             "no plain buffer, of which nothing is said here.");

static PyObject *pin_type;

static PyObject *pin(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *source;
  unsigned long long address;
  if (!PyArg_ParseTuple(args, "OK:pin", &source, &address)) {
    return NULL;
  }
  Py_buffer view;
  if (PyObject_GetBuffer(source, &view, PyBUF_FULL_RO) != 0) {
    /* The slower path finds the same, and has the words for it. */
    PyErr_Clear();
    Py_RETURN_NONE;
  }
  if (!describe(&view, (etcffi_value *)(uintptr_t)address)) {
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
  }
  allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)pin_type, Py_tp_alloc);
  Pin *made = (Pin *)allocate((PyTypeObject *)pin_type, 0);
  if (made == NULL) {
    PyBuffer_Release(&view);
    return NULL;
  }
  made->view = view;
  made->held = true;
  return (PyObject *)made;
}

static PyMethodDef methods[] = {
    {"pin", pin, METH_VARARGS, pin_doc},
    {NULL, NULL, 0, NULL},
};

static int execute(PyObject *module) {
  pin_type = PyType_FromSpec(&pin_spec);
  if (pin_type == NULL) {
    return -1;
  }
  Py_INCREF(pin_type);
  return PyModule_AddObject(module, "Pin", pin_type);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "et_cffi._cpython",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__cpython(void) {
  return PyModuleDef_Init(&definition);
}
