/* et_cffi._cpython: a run whose inputs and outputs are plain, by CPython's C API.
 *
 * Nothing happens here that the Python layer does not do too, with memoryview and cffi, and everything that
 * is not plain is left to it: another kind of input, an output that is no tensor, a refusal's words. PyPy has
 * only the Python layer. The two part in Method.execute and in the base class of TensorBuffer.
 */
#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#include <stdbool.h>
#include <stdlib.h>
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
#define PyBUF_WRITABLE 0x0001
#define PyBUF_FORMAT 0x0004
#define PyBUF_ND 0x0008
#define PyBUF_STRIDES 0x0018
#define PyBUF_C_CONTIGUOUS 0x0038
#define PyBUF_F_CONTIGUOUS 0x0058
#define PyBUF_ANY_CONTIGUOUS 0x0098
#define PyBUF_FULL_RO 0x011C
#define Py_bf_getbuffer 1
#define Py_bf_releasebuffer 2
#endif
#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080 /* in every Python since 3.7, and in the stable ABI since 3.10 */
#endif

typedef struct {
  void *address;
  Py_ssize_t length;
} Place;

/* What holds an input's memory: a buffer, or a result that was passed back in. Who reads the memory: the
   runtime, until the input is replaced. */
typedef struct {
  PyObject_HEAD
  bool held; /* view is */
  Py_buffer view;
  Place owner; /* where the memory was that the view's exporter has its own from */
  PyObject *result;
} Pin;

static PyObject *obj_name, *base_name;

/* Where the memory is that an exporter has its own from: a memoryview what it is of, an array that is a view
   its base. `own` where it has none. An array is resized by its owner, whatever views of it are lent out. */
static Place place_of_owner(PyObject *exporter, Place own) {
  Place place = own;
  PyObject *lender = exporter;
  Py_INCREF(lender);
  for (int depth = 0; depth < 8; ++depth) {
    PyObject *next = PyObject_GetAttr(lender, PyMemoryView_Check(lender) ? obj_name : base_name);
    Py_DECREF(lender);
    lender = next;
    Py_buffer now;
    if (lender == NULL || lender == Py_None || PyObject_GetBuffer(lender, &now, PyBUF_FULL_RO) != 0) {
      PyErr_Clear();
      break;
    }
    place.address = now.buf;
    place.length = now.len;
    PyBuffer_Release(&now);
  }
  Py_XDECREF(lender);
  return place;
}

static void pin_dealloc(PyObject *self) {
  Pin *pin = (Pin *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (pin->held) {
    PyBuffer_Release(&pin->view);
  }
  Py_CLEAR(pin->result);
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
  Py_VISIT(pin->result);
  return 0;
}

static PyObject *pin_release(PyObject *self, PyObject *Py_UNUSED(none)) {
  Pin *pin = (Pin *)self;
  if (pin->held) {
    pin->held = false;
    PyBuffer_Release(&pin->view);
  }
  Py_CLEAR(pin->result);
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
  if (pin->result != NULL) {
    Py_RETURN_FALSE; /* its block is neither resized nor freed while it is held */
  }
  if (!pin->held || PyObject_GetBuffer(pin->view.obj, &now, PyBUF_FULL_RO) != 0) {
    PyErr_Clear();
    Py_RETURN_TRUE;
  }
  Place own = {now.buf, now.len};
  PyBuffer_Release(&now);
  Place owner = place_of_owner(pin->view.obj, own);
  return PyBool_FromLong(own.address != pin->view.buf || own.length != pin->view.len ||
                         owner.address != pin->owner.address || owner.length != pin->owner.length);
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

static PyObject *pin_type;

/* A pin that takes over the view, or a reference of its own to the result. */
static PyObject *make_pin(Py_buffer *view, PyObject *result) {
  allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)pin_type, Py_tp_alloc);
  Pin *made = (Pin *)allocate((PyTypeObject *)pin_type, 0);
  if (made == NULL) {
    return NULL;
  }
  if (result != NULL) {
    Py_INCREF(result);
    made->result = result;
  } else {
    made->view = *view;
    made->held = true;
    view->obj = NULL;
    Place own = {made->view.buf, made->view.len};
    made->owner = place_of_owner(made->view.obj, own);
  }
  return (PyObject *)made;
}

/* ---- Lender: the base of TensorBuffer ------------------------------------------------------------------ */

/* Who reads the tensor's memory: whoever holds this object or a buffer of it, which holds this object. */
typedef struct {
  PyObject_HEAD
  etcffi_tensor *tensor; /* one reference */
} Lender;

static void lender_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  etcffi_tensor_release(((Lender *)self)->tensor);
  freefunc free_slot = (freefunc)PyType_GetSlot(type, Py_tp_free);
  free_slot(self);
  Py_DECREF(type);
}

static int lender_getbuffer(PyObject *self, Py_buffer *view, int flags) {
  view->obj = NULL;
  const etcffi_tensor *tensor = ((Lender *)self)->tensor;
  if (tensor == NULL) {
    PyErr_SetString(PyExc_BufferError, "there is no tensor");
    return -1;
  }
  const etcffi_memory *memory = etcffi_tensor_memory(tensor);
  if (memory->device.type != ETCFFI_DeviceType_CPU) {
    PyErr_SetString(PyExc_BufferError, "the memory is on a device, which the host cannot read: it has to be "
                                       "copied to the host first (to_host())");
    return -1;
  }
  const etcffi_dtype *dtype = etcffi_dtype_of(memory->scalar_type);
  int64_t packed_c = 1, packed_f = 1;
  bool c_contiguous = true, f_contiguous = true;
  for (int i = 0, j = memory->ndim - 1; i < memory->ndim; ++i, --j) {
    c_contiguous = c_contiguous && (memory->sizes[j] == 1 || memory->strides[j] == packed_c);
    f_contiguous = f_contiguous && (memory->sizes[i] == 1 || memory->strides[i] == packed_f);
    packed_c *= memory->sizes[j];
    packed_f *= memory->sizes[i];
  }
  c_contiguous = c_contiguous || packed_c == 0;
  f_contiguous = f_contiguous || packed_c == 0;
  bool any_wanted = (flags & PyBUF_ANY_CONTIGUOUS) == PyBUF_ANY_CONTIGUOUS;
  bool f_wanted = (flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS;
  bool c_wanted =
      (flags & PyBUF_C_CONTIGUOUS) == PyBUF_C_CONTIGUOUS || (flags & PyBUF_STRIDES) != PyBUF_STRIDES;
  if ((any_wanted && !c_contiguous && !f_contiguous) || (f_wanted && !f_contiguous) ||
      (c_wanted && !c_contiguous)) {
    PyErr_SetString(PyExc_BufferError, "the memory is not contiguous in the order asked for");
    return -1;
  }
  Py_ssize_t *strides = NULL;
  if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES && memory->ndim > 0) {
    strides = PyMem_Malloc((size_t)memory->ndim * sizeof(Py_ssize_t));
    if (strides == NULL) {
      PyErr_NoMemory();
      return -1;
    }
    for (int i = 0; i < memory->ndim; ++i) {
      strides[i] = (Py_ssize_t)memory->strides[i] * dtype->itemsize; /* the protocol counts bytes */
    }
  }
  /* A dtype that no format code names is presented as the unsigned integer of its width. */
  const char *format = dtype->format;
  if (format[0] == '\0') {
    format = dtype->itemsize == 1 ? "B" : dtype->itemsize == 2 ? "H" : "I";
  }
  view->buf = memory->data;
  view->len = (Py_ssize_t)memory->nbytes;
  view->itemsize = dtype->itemsize;
  view->readonly = 0;
  view->ndim = (flags & PyBUF_ND) != 0 ? memory->ndim : 1; /* without a shape, a flat run of bytes */
  view->format = (flags & PyBUF_FORMAT) != 0 ? (char *)(uintptr_t)format : NULL;
  view->shape = (flags & PyBUF_ND) != 0 ? (Py_ssize_t *)(uintptr_t)memory->sizes : NULL;
  view->strides = strides;
  view->suboffsets = NULL;
  view->internal = strides;
  Py_INCREF(self);
  view->obj = self;
  return 0;
}

static void lender_releasebuffer(PyObject *Py_UNUSED(self), Py_buffer *view) {
  PyMem_Free(view->internal);
}

static PyObject *lender_address(PyObject *self, void *Py_UNUSED(closure)) {
  return PyLong_FromVoidPtr(((Lender *)self)->tensor);
}

static PyGetSetDef lender_getset[] = {
    {"_address", lender_address, NULL, "The address of the etcffi_tensor.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(adopt_doc, "_adopt(address) -> an object that owns the etcffi_tensor at that address.");

static PyObject *lender_new(PyTypeObject *type, etcffi_tensor *tensor) {
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  PyObject *made = allocate(type, 0);
  if (made != NULL) {
    ((Lender *)made)->tensor = tensor;
  }
  return made;
}

static PyObject *lender_adopt(PyObject *type, PyObject *address) {
  etcffi_tensor *tensor = PyLong_AsVoidPtr(address);
  if (tensor == NULL) {
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "no tensor is at address 0");
  }
  return lender_new((PyTypeObject *)type, tensor);
}

static PyObject *lender_refuse_new(PyTypeObject *type, PyObject *Py_UNUSED(args),
                                   PyObject *Py_UNUSED(kwargs)) {
  return PyErr_Format(PyExc_TypeError, "%R is what a method returns; it is not made from Python",
                      (PyObject *)type);
}

static PyMethodDef lender_methods[] = {
    {"_adopt", lender_adopt, METH_O | METH_CLASS, adopt_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lender_slots[] = {
    {Py_tp_dealloc, (void *)lender_dealloc},
    {Py_tp_new, (void *)lender_refuse_new},
    {Py_bf_getbuffer, (void *)lender_getbuffer},
    {Py_bf_releasebuffer, (void *)lender_releasebuffer},
    {Py_tp_getset, lender_getset},
    {Py_tp_methods, lender_methods},
    {Py_tp_doc, "A tensor's memory, lent out through the buffer protocol."},
    {0, NULL},
};

static PyType_Spec lender_spec = {
    .name = "et_cffi._cpython.Lender",
    .basicsize = sizeof(Lender),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = lender_slots,
};

/* ---- Runner: one run ----------------------------------------------------------------------------------- */

/* DLPack's table of C functions that a tensor class may offer (since DLPack 1.2), as far as it is used here:
   torch describes and makes tensors by it without a line of Python. Nothing of torch is linked. */
typedef struct {
  DLPackVersion version;
  void *previous;
  int (*allocate)(DLTensor *, DLManagedTensorVersioned **, void *,
                  void (*)(void *, const char *, const char *));
  int (*to_managed)(void *, DLManagedTensorVersioned **);
  int (*from_managed)(DLManagedTensorVersioned *, void **);
  int (*describe)(void *, DLTensor *);
} ExchangeAPI;

typedef struct {
  PyObject_HEAD
  etcffi_method *method; /* the Method that owns this runner keeps it, and says when it may run */
  PyTypeObject *result_type;
  Py_ssize_t num_inputs;
  Py_ssize_t num_outputs;
  etcffi_value *inputs;
  etcffi_value *outputs;
  PyObject **sources; /* the inputs of the run under way, a reference to each */
  Py_buffer *views;   /* obj is NULL where none is held */
  char *planned;      /* of each input, whether it is: the runtime then copies it inside the call */
  /* Of torch, where results are torch's; else NULL. */
  PyObject *tensor_type;
  PyObject *is_neg;
  PyObject *is_conj;
  PyObject *untyped_storage;
  Place *storages; /* of each input */
  const ExchangeAPI *exchange;
  const uint64_t *log_counter;
  uint64_t logged;
  bool running; /* a finaliser may run the method in the middle of a run */
} Runner;

static void runner_dealloc(PyObject *self) {
  Runner *runner = (Runner *)self;
  PyTypeObject *type = Py_TYPE(self);
  free(runner->inputs);
  free(runner->outputs);
  free(runner->sources);
  free(runner->views);
  free(runner->planned);
  free(runner->storages);
  Py_XDECREF((PyObject *)runner->result_type);
  Py_XDECREF(runner->tensor_type);
  Py_XDECREF(runner->is_neg);
  Py_XDECREF(runner->is_conj);
  Py_XDECREF(runner->untyped_storage);
  freefunc free_slot = (freefunc)PyType_GetSlot(type, Py_tp_free);
  free_slot(self);
  Py_DECREF(type);
}

/* Takes torch's tensor class, where it has a table of a version that is understood. */
static void use_torch(Runner *runner, PyObject *tensor_type) {
  PyObject *capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__");
  if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
    const ExchangeAPI *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    runner->is_neg = PyObject_GetAttrString(tensor_type, "is_neg");
    runner->is_conj = PyObject_GetAttrString(tensor_type, "is_conj");
    runner->untyped_storage = PyObject_GetAttrString(tensor_type, "untyped_storage");
    if (table->version.major == ETCFFI_DLPACK_MAJOR && table->describe != NULL &&
        table->from_managed != NULL && runner->is_neg != NULL && runner->is_conj != NULL &&
        runner->untyped_storage != NULL) {
      Py_INCREF(tensor_type);
      runner->tensor_type = tensor_type;
      runner->exchange = table;
    }
  }
  Py_XDECREF(capsule);
  PyErr_Clear(); /* an older torch goes the way of the Python layer */
}

static PyObject *runner_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
  unsigned long long address;
  PyObject *result_type, *tensor_type;
  const char *planned;
  Py_ssize_t num_inputs, num_outputs;
  if (!PyArg_ParseTuple(args, "KOy#nO:Runner", &address, &result_type, &planned, &num_inputs, &num_outputs,
                        &tensor_type)) {
    return NULL;
  }
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  Runner *runner = (Runner *)allocate(type, 0);
  if (runner == NULL) {
    return NULL;
  }
  runner->method = (etcffi_method *)(uintptr_t)address;
  Py_INCREF(result_type);
  runner->result_type = (PyTypeObject *)result_type;
  runner->num_inputs = num_inputs;
  runner->num_outputs = num_outputs;
  runner->inputs = calloc((size_t)num_inputs + 1, sizeof(etcffi_value));
  runner->outputs = calloc((size_t)num_outputs + 1, sizeof(etcffi_value));
  runner->views = calloc((size_t)num_inputs + 1, sizeof(Py_buffer));
  runner->sources = calloc((size_t)num_inputs + 1, sizeof(PyObject *));
  runner->log_counter = etcffi_log_counter();
  runner->logged = *runner->log_counter;
  runner->planned = malloc((size_t)num_inputs + 1);
  runner->storages = calloc((size_t)num_inputs + 1, sizeof(Place));
  if (runner->inputs == NULL || runner->outputs == NULL || runner->views == NULL || runner->planned == NULL ||
      runner->storages == NULL || runner->sources == NULL) {
    Py_DECREF(runner);
    return PyErr_NoMemory();
  }
  memcpy(runner->planned, planned, (size_t)num_inputs);
  if (tensor_type != Py_None) {
    use_torch(runner, tensor_type);
  }
  return (PyObject *)runner;
}

/* What Python code of a torch tensor says, as a number; 0 where it says none. */
static unsigned long long ask(PyObject *object, const char *method) {
  PyObject *answer = PyObject_CallMethod(object, method, NULL);
  unsigned long long number = answer == NULL ? 0 : PyLong_AsUnsignedLongLong(answer);
  Py_XDECREF(answer);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return 0;
  }
  return number;
}

/* Whether no sign is pending that torch applies only when something reads the tensor; notes where its storage
   is. Asked of all inputs before any pointer is taken: a mode of torch's may run code of its own. */
static bool ask_torch(Runner *runner, Py_ssize_t index, PyObject *source) {
  if (runner->exchange == NULL || (PyObject *)Py_TYPE(source) != runner->tensor_type) {
    return true;
  }
  PyObject *negated = PyObject_CallFunctionObjArgs(runner->is_neg, source, NULL);
  PyObject *conjugated = PyObject_CallFunctionObjArgs(runner->is_conj, source, NULL);
  PyObject *storage = PyObject_CallFunctionObjArgs(runner->untyped_storage, source, NULL);
  bool settled = negated == Py_False && conjugated == Py_False && storage != NULL;
  PyErr_Clear();
  if (settled) {
    runner->storages[index].address = (void *)(uintptr_t)ask(storage, "data_ptr");
    runner->storages[index].length = (Py_ssize_t)ask(storage, "nbytes");
  }
  Py_XDECREF(negated);
  Py_XDECREF(conjugated);
  Py_XDECREF(storage);
  return settled;
}

/* Whether the storage holds what the tensor describes: it can be resized under the tensor. */
static bool is_in(const Place *storage, const etcffi_memory *memory) {
  uint64_t last = 0;
  for (int i = 0; i < memory->ndim; ++i) {
    if (memory->sizes[i] == 0 || memory->strides[i] < 0) {
      return false;
    }
    last += (uint64_t)(memory->sizes[i] - 1) * (uint64_t)memory->strides[i];
  }
  uint64_t itemsize = (uint64_t)etcffi_dtype_of(memory->scalar_type)->itemsize;
  uint64_t begin = (uint64_t)(uintptr_t)storage->address, first = (uint64_t)(uintptr_t)memory->data;
  uint64_t length = (uint64_t)storage->length;
  return begin != 0 && first >= begin && first - begin <= length && last < length / itemsize &&
         (last + 1) * itemsize <= length - (first - begin);
}

/* A torch tensor of the class itself, on the host, for an input that is copied inside the call. Everything
   else, and whatever is odd about it, the Python layer looks at. */
static bool describe_torch(Runner *runner, Py_ssize_t index, PyObject *source) {
  etcffi_value *value = &runner->inputs[index];
  DLTensor tensor;
  if (runner->planned[index] == 0) {
    return false;
  }
  if (runner->exchange->describe(source, &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  value->tag = ETCFFI_Tag_Tensor;
  return etcffi_memory_from_dlpack(&tensor, &value->memory) == 0 && value->memory.data != NULL &&
         value->memory.device.type == ETCFFI_DeviceType_CPU &&
         is_in(&runner->storages[index], &value->memory);
}

static bool describe_item(Runner *runner, Py_ssize_t index, PyObject *source) {
  etcffi_value *value = &runner->inputs[index];
  Py_buffer *view = &runner->views[index];
  value->pointed_at = 0;
  if (runner->exchange != NULL && (PyObject *)Py_TYPE(source) == runner->tensor_type) {
    return describe_torch(runner, index, source);
  }
  if (Py_TYPE(source) == runner->result_type) {
    const etcffi_tensor *tensor = ((Lender *)source)->tensor;
    if (tensor == NULL) {
      return false;
    }
    value->tag = ETCFFI_Tag_Tensor;
    value->memory = *etcffi_tensor_memory(tensor);
    value->memory.nbytes = etcffi_tensor_readable(tensor);
    value->memory.flags = ETCFFI_PINNED;
    return true;
  }
  if (PyObject_GetBuffer(source, view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear(); /* the Python layer finds the same, and has the words for it */
    view->obj = NULL;
    return false;
  }
  /* A class with a __buffer__ of its own runs code that may move the inputs before it: not plain. */
  return view->obj == source && describe(view, value);
}

static void release_views(Runner *runner) {
  for (Py_ssize_t i = 0; i < runner->num_inputs; ++i) {
    if (runner->views[i].obj != NULL) {
      Py_buffer view = runner->views[i];
      runner->views[i].obj = NULL;
      PyBuffer_Release(&view);
    }
  }
}

/* A torch tensor over the memory, which holds the etcffi_tensor itself; NULL where torch cannot have it. */
static PyObject *make_torch(Runner *runner, etcffi_tensor *tensor) {
  DLManagedTensorVersioned *managed = NULL;
  void *made = NULL;
  if (runner->exchange == NULL || etcffi_tensor_memory(tensor)->device.type != ETCFFI_DeviceType_CPU ||
      etcffi_tensor_to_dlpack_versioned(tensor, 0, &managed) != 0) {
    return NULL;
  }
  if (runner->exchange->from_managed(managed, &made) != 0) {
    PyErr_Clear(); /* the managed tensor is torch's from the call on, also where it fails */
    return NULL;
  }
  etcffi_tensor_release(tensor);
  return made;
}

/* The results, which take over the references in runner->outputs; NULL where memory ran out. */
static PyObject *take_results(Runner *runner) {
  PyObject *results = PyList_New(runner->num_outputs);
  for (Py_ssize_t i = 0; i < runner->num_outputs; ++i) {
    etcffi_tensor *tensor = runner->outputs[i].tensor;
    runner->outputs[i].tensor = NULL;
    PyObject *made = results == NULL ? NULL : make_torch(runner, tensor);
    if (made == NULL && results != NULL) {
      made = lender_new(runner->result_type, tensor);
    }
    if (made == NULL) {
      etcffi_tensor_release(tensor);
      Py_CLEAR(results);
    } else {
      PyList_SetItem(results, i, made);
    }
  }
  return results;
}

/* The inputs that the runtime reads in a later run too, or NULL where memory ran out. */
static PyObject *take_pins(Runner *runner) {
  PyObject *pins = PyList_New(0);
  for (Py_ssize_t i = 0; pins != NULL && i < runner->num_inputs; ++i) {
    if (runner->inputs[i].pointed_at == 0) {
      continue;
    }
    bool is_result = runner->views[i].obj == NULL;
    PyObject *pin = make_pin(&runner->views[i], is_result ? runner->sources[i] : NULL);
    if (pin == NULL || PyList_Append(pins, pin) != 0) {
      Py_CLEAR(pins);
    }
    Py_XDECREF(pin);
  }
  return pins;
}

PyDoc_STRVAR(
    run_doc,
    "run(inputs, clone) -> results, or (status, results, pins), or None\n\n"
    "Set the inputs, run, and get the outputs. None, and nothing happened, where an input is not\n"
    "plain. The list of results alone, where nothing else is to be done; results is None where status\n"
    "is not 0; pins hold what the runtime was pointed at; the runtime may have logged something.");

/* Takes a reference to each input, which nobody can then change while this runs without the interpreter's
   lock. False, and none is taken, where it is no list or tuple of as many as there are. Exactly these: a
   class of somebody's own may give other items than it has, or never end. */
static bool take_sources(Runner *runner, PyObject *inputs) {
  bool is_list = PyList_CheckExact(inputs);
  if ((!is_list && !PyTuple_CheckExact(inputs)) ||
      (is_list ? PyList_Size(inputs) : PyTuple_Size(inputs)) != runner->num_inputs) {
    return false;
  }
  for (Py_ssize_t i = 0; i < runner->num_inputs; ++i) {
    runner->sources[i] = is_list ? PyList_GetItem(inputs, i) : PyTuple_GetItem(inputs, i);
    Py_XINCREF(runner->sources[i]);
    if (runner->sources[i] == NULL) { /* another thread made the list shorter */
      PyErr_Clear();
      for (Py_ssize_t j = 0; j < i; ++j) {
        Py_CLEAR(runner->sources[j]);
      }
      return false;
    }
  }
  return true;
}

/* What run() answers once the method ran, or was refused. */
static PyObject *answer_of(Runner *runner, etcffi_status status) {
  PyObject *results = NULL;
  if (status == 0) {
    results = take_results(runner);
    bool pointed_at = false;
    for (Py_ssize_t i = 0; i < runner->num_inputs; ++i) {
      pointed_at = pointed_at || runner->inputs[i].pointed_at != 0;
    }
    uint64_t logged = *runner->log_counter;
    if (!pointed_at && logged == runner->logged) {
      return results;
    }
    runner->logged = logged;
  } else {
    Py_INCREF(Py_None);
    results = Py_None;
  }
  PyObject *pins = take_pins(runner);
  PyObject *answer = NULL;
  if (pins != NULL && results != NULL) {
    answer = Py_BuildValue("(iOO)", (int)status, results, pins);
  }
  Py_XDECREF(pins);
  Py_XDECREF(results);
  return answer;
}

static PyObject *runner_run(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  Runner *runner = (Runner *)self;
  if (count != 2) {
    return PyErr_Format(PyExc_TypeError, "run() takes 2 arguments");
  }
  int clone = PyObject_IsTrue(args[1]);
  if (clone < 0) {
    return NULL;
  }
  if (runner->running || !take_sources(runner, args[0])) {
    Py_RETURN_NONE;
  }
  runner->running = true;
  bool plain = true;
  for (Py_ssize_t i = 0; plain && runner->exchange != NULL && i < runner->num_inputs; ++i) {
    plain = ask_torch(runner, i, runner->sources[i]);
  }
  for (Py_ssize_t i = 0; plain && i < runner->num_inputs; ++i) {
    plain = describe_item(runner, i, runner->sources[i]);
  }
  PyObject *answer = NULL;
  if (plain) {
    etcffi_status status;
    Py_BEGIN_ALLOW_THREADS
    status = etcffi_method_run(runner->method, runner->inputs, (size_t)runner->num_inputs, clone,
                               runner->outputs, (size_t)runner->num_outputs);
    Py_END_ALLOW_THREADS
    answer = answer_of(runner, status);
  } else {
    Py_INCREF(Py_None);
    answer = Py_None;
  }
  release_views(runner);
  for (Py_ssize_t i = 0; i < runner->num_inputs; ++i) {
    Py_CLEAR(runner->sources[i]);
  }
  runner->running = false;
  return answer;
}

static PyObject *runner_is_running(PyObject *self, void *Py_UNUSED(closure)) {
  return PyBool_FromLong(((Runner *)self)->running);
}

static PyGetSetDef runner_getset[] = {
    {"running", runner_is_running, NULL, "Whether run() is under way.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef runner_methods[] = {
    {"run", (PyCFunction)(void (*)(void))runner_run, METH_FASTCALL, run_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot runner_slots[] = {
    {Py_tp_new, (void *)runner_new},
    {Py_tp_dealloc, (void *)runner_dealloc},
    {Py_tp_methods, runner_methods},
    {Py_tp_getset, runner_getset},
    {Py_tp_doc, "Runs a method whose inputs and outputs are all tensors."},
    {0, NULL},
};

static PyType_Spec runner_spec = {
    .name = "et_cffi._cpython.Runner",
    .basicsize = sizeof(Runner),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = runner_slots,
};

static int add_type(PyObject *module, const char *name, PyObject *type) {
  if (type == NULL || PyModule_AddObject(module, name, type) != 0) {
    Py_XDECREF(type);
    return -1;
  }
  return 0;
}

static int execute(PyObject *module) {
  obj_name = PyUnicode_InternFromString("obj");
  base_name = PyUnicode_InternFromString("base");
  pin_type = PyType_FromSpec(&pin_spec);
  if (obj_name == NULL || base_name == NULL || pin_type == NULL) {
    return -1;
  }
  Py_INCREF(pin_type);
  if (add_type(module, "Pin", pin_type) != 0 ||
      add_type(module, "Lender", PyType_FromSpec(&lender_spec)) != 0) {
    return -1;
  }
  return add_type(module, "Runner", PyType_FromSpec(&runner_spec));
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
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__cpython(void) {
  return PyModuleDef_Init(&definition);
}
