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

#include <stdatomic.h>
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
PyAPI_FUNC(int) PyObject_CheckBuffer(PyObject *exporter);
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

/* A managed tensor that was taken out of a DLPack capsule, and is given back once; NULL where there is none.
 */
typedef struct {
  void *managed;
  bool versioned;
} Claimed;

/* What holds an input's memory: a buffer; a result that was passed back in; a torch tensor and its storage;
   or what a DLPack producer handed over. Who reads the memory: the runtime, until the input is replaced. */
typedef struct {
  PyObject_HEAD
  bool held; /* view is */
  Py_buffer view;
  Place owner;      /* where the memory was that the view's exporter has its own from, or the tensor's */
  PyObject *source; /* the result, or the tensor */
  PyObject *storage;
  Claimed claimed;
} Pin;

static PyObject *obj_name, *base_name, *data_ptr_name, *nbytes_name, *resizable_name, *storage_name;
static PyObject *dlpack_name, *dlpack_device_name, *release_name, *no_arguments, *dlpack_keywords;

/* The deleter may be Python code, and an exception on its way. */
static void give_back(Claimed *claimed) {
  void *managed = claimed->managed;
  if (managed == NULL) {
    return;
  }
  claimed->managed = NULL;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (claimed->versioned) {
    etcffi_dlpack_release_versioned(managed);
  } else {
    etcffi_dlpack_release(managed);
  }
  PyErr_Restore(type, value, traceback);
}

/* What Python code of a torch tensor says, as a number; 0 where it says none. */
static unsigned long long ask(PyObject *object, PyObject *method) {
  PyObject *answer = PyObject_CallMethodObjArgs(object, method, NULL);
  unsigned long long number = answer == NULL ? 0 : PyLong_AsUnsignedLongLong(answer);
  Py_XDECREF(answer);
  if (PyErr_Occurred()) {
    PyErr_Clear();
    return 0;
  }
  return number;
}

/* Where a torch tensor's first element is, and how long its storage: a tensor can be given another one. */
static Place place_of_tensor(PyObject *tensor) {
  PyObject *storage = PyObject_CallMethodObjArgs(tensor, storage_name, NULL);
  Place place = {(void *)(uintptr_t)ask(tensor, data_ptr_name), 0};
  if (storage != NULL) {
    place.length = (Py_ssize_t)ask(storage, nbytes_name);
    Py_DECREF(storage);
  }
  PyErr_Clear();
  return place;
}

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
  Py_CLEAR(pin->source);
  Py_CLEAR(pin->storage);
  give_back(&pin->claimed);
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
  Py_VISIT(pin->source);
  Py_VISIT(pin->storage);
  return 0;
}

static PyObject *pin_release(PyObject *self, PyObject *Py_UNUSED(none)) {
  Pin *pin = (Pin *)self;
  if (pin->held) {
    pin->held = false;
    PyBuffer_Release(&pin->view);
  }
  Py_CLEAR(pin->source);
  Py_CLEAR(pin->storage);
  give_back(&pin->claimed);
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
  if (pin->storage != NULL) {
    Place place = place_of_tensor(pin->source);
    return PyBool_FromLong(place.address != pin->owner.address || place.length != pin->owner.length);
  }
  if (pin->source != NULL || pin->claimed.managed != NULL) {
    Py_RETURN_FALSE; /* a result's block is neither resized nor freed, and a producer has promised as much */
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

static PyObject *refuse_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs)) {
  return PyErr_Format(PyExc_TypeError, "%R is what a method returns; it is not made from Python",
                      (PyObject *)type);
}

static PyType_Slot pin_slots[] = {
    {Py_tp_new, (void *)refuse_new},
    {Py_tp_dealloc, (void *)pin_dealloc},
    {Py_tp_traverse, (void *)pin_traverse},
    {Py_tp_clear, (void *)pin_clear},
    {Py_tp_methods, pin_methods},
    {Py_tp_doc, "A buffer that is held."},
    {0, NULL},
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
  memory->flags = view->readonly ? ETCFFI_READ_ONLY : ETCFFI_PINNED;
  memory->has_strides = 1;
  return true;
}

static PyObject *pin_type;

/* An input of the run under way. */
typedef struct {
  PyObject *source;
  Py_buffer view; /* obj is NULL where none is held */
  /* Of a torch tensor. */
  PyObject *storage;
  Place place;
  bool resizable;
  bool asked; /* its Python code has run, which may have changed the caller's list */
  /* Of a DLPack producer: what it answered, and the capsule's tensor once it is claimed. */
  PyObject *device;
  PyObject *capsule;
  Claimed claimed;
} Given;

static void let_go(Given *given) {
  if (given->view.obj != NULL) {
    PyBuffer_Release(&given->view);
    given->view.obj = NULL;
  }
  give_back(&given->claimed);
  Py_CLEAR(given->device);
  Py_CLEAR(given->capsule);
  Py_CLEAR(given->storage);
  Py_CLEAR(given->source);
  given->asked = false;
}

/* A pin that takes over what holds the input's memory. */
static PyObject *make_pin(Given *given, const etcffi_memory *memory) {
  allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)pin_type, Py_tp_alloc);
  Pin *made = (Pin *)allocate((PyTypeObject *)pin_type, 0);
  if (made == NULL) {
    return NULL;
  }
  if (given->claimed.managed != NULL) {
    made->claimed = given->claimed;
    given->claimed.managed = NULL;
  } else if (given->view.obj != NULL) {
    made->view = given->view;
    made->held = true;
    given->view.obj = NULL;
    Place own = {made->view.buf, made->view.len};
    made->owner = place_of_owner(made->view.obj, own);
  } else {
    made->source = given->source;
    given->source = NULL;
    made->storage = given->storage;
    given->storage = NULL;
    made->owner.address = memory->data;
    made->owner.length = given->place.length;
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

static PyMethodDef lender_methods[] = {
    {"_adopt", lender_adopt, METH_O | METH_CLASS, adopt_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lender_slots[] = {
    {Py_tp_dealloc, (void *)lender_dealloc},
    {Py_tp_new, (void *)refuse_new},
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

/* How an input is to be described. */
enum {
  kPlanned = 'p', /* a tensor that the runtime copies inside the call */
  kTensor = 't',
  kDouble = 'd',
  kScalar = 's'
};

/* Who uses the method: nobody, a plain run that claimed it by itself, or, any number of calls deep, the
   Python layer, which has its own claim for a thread. */
enum { kIdle = 0, kClaimed = -1 };

typedef struct {
  PyObject_HEAD
  etcffi_method *method; /* one reference */
  PyTypeObject *result_type;
  Py_ssize_t num_inputs;
  Py_ssize_t num_outputs;
  etcffi_value *inputs;
  etcffi_value *outputs;
  _Atomic(Given *) spare; /* one for each input, or NULL while a call has it */
  char *kinds;            /* of each input */
  /* Of torch, where results are torch's; else NULL. */
  PyObject *tensor_type;
  PyObject *is_neg;
  PyObject *is_conj;
  const ExchangeAPI *exchange;
  const uint64_t *log_counter;
  uint64_t logged;
  _Atomic int use;
  bool running;         /* a run is under way, for whoever uses it */
  unsigned long thread; /* that runs it, or ran it last */
  /* Lists of what holds inputs (Pin, and the Python layer's Memory). Who reads `held`: the runtime, in every
     run until the inputs are replaced or the method is gone. `refused` are pointers of refused calls: some of
     them may be installed beside some of `held`. Never handed out and put back, since Ctrl-C may come in
     between. */
  PyObject *held;
  PyObject *refused;
  /* The Python layer's results of the last run, or NULL; and what a plain run left since it last looked: its
     results, or None where it was refused. Only one of the two is there: nothing is kept beyond the next run.
   */
  PyObject *results;
  PyObject *left;
  bool left_clones;
} Runner;

/* Lets go of all that a list of holders holds, now: somebody's exception may keep the list. */
static void release_all(PyObject *list) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  for (Py_ssize_t i = 0; i < PyList_Size(list); ++i) {
    PyObject *none = PyObject_CallMethodObjArgs(PyList_GetItem(list, i), release_name, NULL);
    Py_XDECREF(none);
  }
  Py_DECREF(list);
  PyErr_Restore(type, value, traceback);
}

static void free_given(Runner *runner, Given *given) {
  for (Py_ssize_t i = 0; given != NULL && i < runner->num_inputs; ++i) {
    let_go(&given[i]);
  }
  free(given);
}

static void runner_dealloc(PyObject *self) {
  Runner *runner = (Runner *)self;
  PyTypeObject *type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  free(runner->inputs);
  free(runner->outputs);
  free_given(runner, runner->spare);
  free(runner->kinds);
  etcffi_method_release(runner->method);
  Py_XDECREF((PyObject *)runner->result_type);
  Py_XDECREF(runner->tensor_type);
  Py_XDECREF(runner->is_neg);
  Py_XDECREF(runner->is_conj);
  Py_XDECREF(runner->left);
  Py_XDECREF(runner->results);
  Py_XDECREF(runner->held);
  Py_XDECREF(runner->refused);
  freefunc free_slot = (freefunc)PyType_GetSlot(type, Py_tp_free);
  free_slot(self);
  Py_DECREF(type);
}

static int runner_traverse(PyObject *self, visitproc visit, void *arg) {
#if PY_VERSION_HEX >= 0x03090000
  Py_VISIT(Py_TYPE(self));
#endif
  Py_VISIT(((Runner *)self)->left);
  Py_VISIT(((Runner *)self)->results);
  Py_VISIT(((Runner *)self)->held);
  Py_VISIT(((Runner *)self)->refused);
  return 0;
}

static int runner_clear(PyObject *self) {
  Runner *runner = (Runner *)self;
  etcffi_method_refuse_inputs(runner->method); /* whoever comes to it still reads none of them */
  Py_CLEAR(runner->left);
  Py_CLEAR(runner->results);
  Py_CLEAR(runner->held);
  Py_CLEAR(runner->refused);
  return 0;
}

/* Takes torch's tensor class, where it has a table of a version that is understood. */
static void use_torch(Runner *runner, PyObject *tensor_type) {
  PyObject *capsule = PyObject_GetAttrString(tensor_type, "__dlpack_c_exchange_api__");
  if (capsule != NULL && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
    const ExchangeAPI *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    runner->is_neg = PyObject_GetAttrString(tensor_type, "is_neg");
    runner->is_conj = PyObject_GetAttrString(tensor_type, "is_conj");
    if (table->version.major == ETCFFI_DLPACK_MAJOR && table->describe != NULL &&
        table->from_managed != NULL && runner->is_neg != NULL && runner->is_conj != NULL) {
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
  const char *kinds;
  Py_ssize_t num_inputs, num_outputs;
  if (!PyArg_ParseTuple(args, "KOy#nO:Runner", &address, &result_type, &kinds, &num_inputs, &num_outputs,
                        &tensor_type)) {
    return NULL;
  }
  allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
  Runner *runner = (Runner *)allocate(type, 0);
  if (runner == NULL) {
    return NULL;
  }
  runner->method = (etcffi_method *)(uintptr_t)address;
  etcffi_method_retain(runner->method);
  Py_INCREF(result_type);
  runner->result_type = (PyTypeObject *)result_type;
  runner->num_inputs = num_inputs;
  runner->num_outputs = num_outputs;
  runner->inputs = calloc((size_t)num_inputs + 1, sizeof(etcffi_value));
  runner->outputs = calloc((size_t)num_outputs + 1, sizeof(etcffi_value));
  runner->log_counter = etcffi_log_counter();
  runner->logged = *runner->log_counter;
  runner->kinds = malloc((size_t)num_inputs + 1);
  if (runner->inputs == NULL || runner->outputs == NULL || runner->kinds == NULL) {
    Py_DECREF(runner);
    return PyErr_NoMemory();
  }
  memcpy(runner->kinds, kinds, (size_t)num_inputs);
  runner->held = PyList_New(0);
  runner->refused = PyList_New(0);
  if (runner->held == NULL || runner->refused == NULL) {
    Py_DECREF(runner);
    return NULL;
  }
  if (tensor_type != Py_None) {
    use_torch(runner, tensor_type);
  }
  return (PyObject *)runner;
}

/* ---- Before anything is claimed: what may run Python code ---- */

/* Whether something is plain, and whether it raised. */
typedef enum { kPlain, kOdd, kRaised } Answer;

static bool is_torchs(const Runner *runner, PyObject *source) {
  return runner->exchange != NULL && (PyObject *)Py_TYPE(source) == runner->tensor_type;
}

/* No sign may be pending that torch applies only when something reads the tensor. A mode of torch's may run
   code of its own. */
static Answer ask_torch(const Runner *runner, Given *given) {
  PyObject *negated = PyObject_CallFunctionObjArgs(runner->is_neg, given->source, NULL);
  PyObject *conjugated = PyObject_CallFunctionObjArgs(runner->is_conj, given->source, NULL);
  given->storage = PyObject_CallMethodObjArgs(given->source, storage_name, NULL);
  bool settled = negated == Py_False && conjugated == Py_False && given->storage != NULL;
  PyErr_Clear();
  if (settled) {
    given->place.address = (void *)(uintptr_t)ask(given->storage, data_ptr_name);
    given->place.length = (Py_ssize_t)ask(given->storage, nbytes_name);
    /* One that is not torch's own (torch.from_numpy) may be freed under it by whoever owns the memory. */
    PyObject *resizable = PyObject_CallMethodObjArgs(given->storage, resizable_name, NULL);
    given->resizable = resizable == Py_True;
    Py_XDECREF(resizable);
    PyErr_Clear();
  }
  Py_XDECREF(negated);
  Py_XDECREF(conjugated);
  return settled ? kPlain : kOdd;
}

/* Whether a producer said that its memory is the host's: DLPack's CPU, or pinned or managed CUDA memory. */
static bool is_host(PyObject *said) {
  if (!PyTuple_Check(said) || PyTuple_Size(said) != 2 || !PyLong_Check(PyTuple_GetItem(said, 0)) ||
      !PyLong_Check(PyTuple_GetItem(said, 1))) {
    return false;
  }
  long kind = PyLong_AsLong(PyTuple_GetItem(said, 0));
  PyErr_Clear();
  return kind == 1 || kind == 3 || kind == 13;
}

/* Whether it is of torch's tensor class or one made of it, where the process has torch: there is more to ask
   than __dlpack__ tells. */
static bool is_a_tensor(PyObject *source) {
  PyObject *torch = PyDict_GetItemString(PyImport_GetModuleDict(), "torch");
  PyObject *type = torch == NULL ? NULL : PyObject_GetAttrString(torch, "Tensor");
  bool is = type != NULL && PyType_Check(type) && PyType_IsSubtype(Py_TYPE(source), (PyTypeObject *)type);
  Py_XDECREF(type);
  PyErr_Clear();
  return is;
}

static const char legacy[] = "dltensor", versioned[] = "dltensor_versioned";

/* Asks a producer of today for a capsule; an older one, or one of a device, is left to the Python layer. */
static Answer ask_dlpack(Given *given) {
  given->asked = true;
  PyObject *method = PyObject_GetAttr((PyObject *)Py_TYPE(given->source), dlpack_device_name);
  if (method == NULL) {
    PyErr_Clear();
    return kOdd;
  }
  Py_DECREF(method);
  given->device = PyObject_CallMethodObjArgs(given->source, dlpack_device_name, NULL);
  if (given->device == NULL) {
    return kRaised;
  }
  if (!is_host(given->device)) {
    return kOdd;
  }
  method = PyObject_GetAttr(given->source, dlpack_name);
  given->capsule = method == NULL ? NULL : PyObject_Call(method, no_arguments, dlpack_keywords);
  Py_XDECREF(method);
  if (given->capsule == NULL) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) {
      return kRaised;
    }
    PyErr_Clear();
    return kOdd;
  }
  return kPlain;
}

/* Takes the tensor out of the capsule. From here on it is ours to give back: the capsule's destructor goes by
   the name. */
static bool claim(Given *given) {
  given->claimed.versioned = PyCapsule_IsValid(given->capsule, versioned) != 0;
  const char *name = given->claimed.versioned ? versioned : legacy;
  if (!PyCapsule_IsValid(given->capsule, name)) {
    return false;
  }
  void *managed = PyCapsule_GetPointer(given->capsule, name);
  if (PyCapsule_SetName(given->capsule,
                        given->claimed.versioned ? "used_dltensor_versioned" : "used_dltensor") != 0) {
    PyErr_Clear();
    return false;
  }
  given->claimed.managed = managed;
  return true;
}

static void undo_claim(Given *given) {
  if (given->claimed.managed != NULL &&
      PyCapsule_SetName(given->capsule, given->claimed.versioned ? versioned : legacy) == 0) {
    given->claimed.managed = NULL;
  }
  PyErr_Clear();
}

/* With `claims` false, an input that Python code has to be asked for is not plain. */
static Answer ask_all(const Runner *runner, Given *given, bool claims) {
  /* Nobody is asked for memory if it is all for nothing. */
  for (Py_ssize_t i = 0; i < runner->num_inputs; ++i) {
    PyObject *source = given[i].source;
    bool is_tensor = runner->kinds[i] == kPlanned || runner->kinds[i] == kTensor;
    bool is_scalar =
        source == Py_None || PyBool_Check(source) || PyLong_CheckExact(source) || PyFloat_CheckExact(source);
    if (is_tensor == is_scalar) {
      return kOdd;
    }
  }
  for (Py_ssize_t i = 0; i < runner->num_inputs; ++i) {
    PyObject *source = given[i].source;
    Answer answer = kPlain;
    if (is_torchs(runner, source)) {
      answer = ask_torch(runner, &given[i]);
    } else if (runner->kinds[i] != kDouble && runner->kinds[i] != kScalar &&
               Py_TYPE(source) != runner->result_type && !PyObject_CheckBuffer(source)) {
      bool produces =
          claims && !is_a_tensor(source) && PyObject_HasAttr((PyObject *)Py_TYPE(source), dlpack_name);
      answer = produces ? ask_dlpack(&given[i]) : kOdd;
    }
    if (answer != kPlain) {
      return answer;
    }
  }
  return kPlain;
}

/* ---- What was asked, for the Python layer: a producer is asked once ---- */

typedef struct {
  PyObject_HEAD
  PyObject *device;
  PyObject *capsule;
} Asked;

static PyObject *asked_type;

static void asked_dealloc(PyObject *self) {
  PyTypeObject *type = Py_TYPE(self);
  Py_CLEAR(((Asked *)self)->device);
  Py_CLEAR(((Asked *)self)->capsule);
  freefunc free_slot = (freefunc)PyType_GetSlot(type, Py_tp_free);
  free_slot(self);
  Py_DECREF(type);
}

static PyObject *asked_release(PyObject *self, PyObject *Py_UNUSED(none)) {
  Py_CLEAR(((Asked *)self)->capsule);
  Py_RETURN_NONE;
}

static PyObject *asked_dlpack(PyObject *self, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(keywords)) {
  if (((Asked *)self)->capsule == NULL) {
    return PyErr_Format(PyExc_ValueError, "the capsule has been let go of");
  }
  Py_INCREF(((Asked *)self)->capsule);
  return ((Asked *)self)->capsule;
}

static PyObject *asked_device(PyObject *self, PyObject *Py_UNUSED(none)) {
  Py_INCREF(((Asked *)self)->device);
  return ((Asked *)self)->device;
}

static PyMethodDef asked_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))asked_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", asked_device, METH_NOARGS, NULL},
    {"release", asked_release, METH_NOARGS, "Let go of the capsule, whoever keeps this object."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot asked_slots[] = {
    {Py_tp_dealloc, (void *)asked_dealloc},
    {Py_tp_new, (void *)refuse_new},
    {Py_tp_methods, asked_methods},
    {Py_tp_doc, "A DLPack producer that has been asked."},
    {0, NULL},
};

static PyType_Spec asked_spec = {
    .name = "et_cffi._cpython.Asked",
    .basicsize = sizeof(Asked),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = asked_slots,
};

/* (inputs,), with what producers have handed over in their place; None where none has. */
static PyObject *inputs_asked(const Runner *runner, Given *given) {
  bool any = false;
  for (Py_ssize_t i = 0; i < runner->num_inputs; ++i) {
    any = any || given[i].asked;
  }
  if (!any) {
    Py_RETURN_NONE;
  }
  PyObject *inputs = PyList_New(runner->num_inputs);
  for (Py_ssize_t i = 0; inputs != NULL && i < runner->num_inputs; ++i) {
    PyObject *item = given[i].source;
    if (given[i].capsule == NULL) {
      Py_INCREF(item);
    } else {
      allocfunc allocate = (allocfunc)PyType_GetSlot((PyTypeObject *)asked_type, Py_tp_alloc);
      Asked *asked = (Asked *)allocate((PyTypeObject *)asked_type, 0);
      if (asked != NULL) {
        undo_claim(&given[i]);
        asked->device = given[i].device;
        asked->capsule = given[i].capsule;
        given[i].device = given[i].capsule = NULL;
      }
      item = (PyObject *)asked;
    }
    if (item == NULL) {
      Py_CLEAR(inputs);
    } else {
      PyList_SetItem(inputs, i, item);
    }
  }
  return inputs == NULL ? NULL : Py_BuildValue("(N)", inputs);
}

/* ---- With the method claimed: nothing below runs Python code until the run is over ---- */

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

static bool describe_tensor(const DLTensor *tensor, etcffi_value *value) {
  value->tag = ETCFFI_Tag_Tensor;
  return etcffi_memory_from_dlpack(tensor, &value->memory) == 0 &&
         value->memory.device.type == ETCFFI_DeviceType_CPU;
}

/* A torch tensor of the class itself, on the host. Everything else, and whatever is odd about it, the Python
   layer looks at. */
static bool describe_torch(const Runner *runner, const Given *given, etcffi_value *value) {
  DLTensor tensor;
  if (runner->exchange->describe(given->source, &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  if (!describe_tensor(&tensor, value) || value->memory.data == NULL ||
      !is_in(&given->place, &value->memory)) {
    return false;
  }
  /* As much may be read as the storage has. */
  const char *end = (const char *)given->place.address + given->place.length;
  value->memory.nbytes = (size_t)(end - (const char *)value->memory.data);
  value->memory.flags = given->resizable ? ETCFFI_PINNED : 0;
  return true;
}

static bool describe_claimed(const Given *given, etcffi_value *value) {
  uint64_t flags = 0;
  const DLTensor *tensor;
  if (given->claimed.versioned) {
    const DLManagedTensorVersioned *managed = given->claimed.managed;
    if (managed->version.major != ETCFFI_DLPACK_MAJOR) {
      return false;
    }
    tensor = &managed->dl_tensor;
    flags = managed->flags;
  } else {
    tensor = &((const DLManagedTensor *)given->claimed.managed)->dl_tensor;
  }
  if (!describe_tensor(tensor, value)) {
    return false;
  }
  /* Claiming the capsule is the producer's promise to leave the memory where it is. */
  value->memory.flags = (flags & ETCFFI_DLPACK_READ_ONLY) != 0 ? ETCFFI_READ_ONLY : ETCFFI_PINNED;
  return true;
}

static bool describe_scalar(char kind, PyObject *source, etcffi_value *value) {
  if (source == Py_None) {
    value->tag = ETCFFI_Tag_None;
  } else if (PyBool_Check(source)) { /* before int, which it is too */
    value->tag = ETCFFI_Tag_Bool;
    value->as_int = source == Py_True;
  } else if (PyFloat_CheckExact(source)) {
    value->tag = ETCFFI_Tag_Double;
    value->as_double = PyFloat_AsDouble(source);
  } else {
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(source, &overflow);
    if (overflow != 0) {
      return false;
    }
    value->tag = kind == kDouble ? ETCFFI_Tag_Double : ETCFFI_Tag_Int;
    value->as_double = (double)number;
    value->as_int = number;
  }
  return true;
}

static bool describe_item(const Runner *runner, char kind, Given *given, etcffi_value *value) {
  value->pointed_at = 0;
  if (kind == kDouble || kind == kScalar) {
    return describe_scalar(kind, given->source, value);
  }
  if (is_torchs(runner, given->source)) {
    return describe_torch(runner, given, value);
  }
  if (given->capsule != NULL) {
    return claim(given) && describe_claimed(given, value);
  }
  if (Py_TYPE(given->source) == runner->result_type) {
    const etcffi_tensor *tensor = ((Lender *)given->source)->tensor;
    if (tensor == NULL) {
      return false;
    }
    value->tag = ETCFFI_Tag_Tensor;
    value->memory = *etcffi_tensor_memory(tensor);
    value->memory.nbytes = etcffi_tensor_readable(tensor);
    value->memory.flags = ETCFFI_PINNED;
    return true;
  }
  if (PyObject_GetBuffer(given->source, &given->view, PyBUF_FULL_RO) != 0) {
    PyErr_Clear(); /* the Python layer finds the same, and has the words for it */
    given->view.obj = NULL;
    return false;
  }
  /* A class with a __buffer__ of its own runs code that may move the inputs before it: not plain. */
  return given->view.obj == given->source && describe(&given->view, value);
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

static PyObject *make_result(Runner *runner, etcffi_value *value) {
  if (value->tag == ETCFFI_Tag_Tensor) {
    etcffi_tensor *tensor = value->tensor;
    value->tensor = NULL;
    PyObject *made = make_torch(runner, tensor);
    if (made == NULL) {
      made = lender_new(runner->result_type, tensor);
    }
    if (made == NULL) {
      etcffi_tensor_release(tensor);
    }
    return made;
  }
  switch (value->tag) {
  case ETCFFI_Tag_Int:
    return PyLong_FromLongLong(value->as_int);
  case ETCFFI_Tag_Bool:
    return PyBool_FromLong((long)value->as_int);
  case ETCFFI_Tag_Double:
    return PyFloat_FromDouble(value->as_double);
  case ETCFFI_Tag_None:
    Py_RETURN_NONE;
  default:
    etcffi_tensor_release(value->tensor);
    value->tensor = NULL;
    return PyErr_Format(PyExc_TypeError, "an output has become a value of another kind (tag %d)",
                        (int)value->tag);
  }
}

/* The results, which take over the references in runner->outputs; NULL where one cannot be made. */
static PyObject *take_results(Runner *runner) {
  PyObject *results = PyList_New(runner->num_outputs);
  for (Py_ssize_t i = 0; i < runner->num_outputs; ++i) {
    PyObject *made = results == NULL ? NULL : make_result(runner, &runner->outputs[i]);
    if (made != NULL) {
      PyList_SetItem(results, i, made);
    } else {
      Py_CLEAR(results);
      etcffi_tensor_release(runner->outputs[i].tensor);
      runner->outputs[i].tensor = NULL;
    }
  }
  return results;
}

/* The inputs that the runtime reads in a later run too, or NULL where memory ran out. */
static PyObject *take_pins(Runner *runner, Given *given, Py_ssize_t pointed_at) {
  PyObject *pins = PyList_New(pointed_at);
  Py_ssize_t count = 0;
  for (Py_ssize_t i = 0; pins != NULL && i < runner->num_inputs; ++i) {
    if (runner->inputs[i].pointed_at == 0) {
      continue;
    }
    PyObject *pin = make_pin(&given[i], &runner->inputs[i].memory);
    if (pin == NULL) {
      Py_CLEAR(pins);
    } else {
      PyList_SetItem(pins, count++, pin);
    }
  }
  return pins;
}

static void leave(Runner *runner, PyObject *results, bool clones) {
  PyObject *left = runner->left, *before = runner->results;
  Py_INCREF(results);
  runner->left = results;
  runner->left_clones = clones;
  runner->results = NULL;
  Py_XDECREF(left);
  Py_XDECREF(before);
}

/* Nothing is run and nothing read until a whole set of inputs is there; what any set left is held until then.
 */
static void refuse(Runner *runner) {
  etcffi_method_refuse_inputs(runner->method);
  leave(runner, Py_None, false);
}

/* After the runtime was given pointers: settles who holds what is behind them. False, with an exception,
   where memory ran out. */
static bool settle(Runner *runner, Given *given, etcffi_status status) {
  Py_ssize_t pointed_at = 0;
  for (Py_ssize_t i = 0; i < runner->num_inputs; ++i) {
    pointed_at += runner->inputs[i].pointed_at != 0;
  }
  /* A method that was busy took none of the inputs, and has those of before. */
  bool complete = status == 0 || (status != ETCFFI_Busy && etcffi_method_has_inputs(runner->method) != 0);
  if (complete && pointed_at == 0 && PyList_Size(runner->held) == 0) {
    return true;
  }
  PyObject *pins = take_pins(runner, given, pointed_at);
  if (pins == NULL) {
    refuse(runner);
    return false;
  }
  if (complete) {
    PyObject *replaced = runner->held;
    runner->held = pins;
    release_all(replaced);
    return true;
  }
  refuse(runner);
  bool added = true;
  for (Py_ssize_t i = 0; added && i < pointed_at; ++i) {
    added = PyList_Append(runner->refused, PyList_GetItem(pins, i)) == 0;
  }
  Py_DECREF(pins);
  return added;
}

/* Takes a reference to each input, which nobody can then change while this runs without the interpreter's
   lock. False where it is no list or tuple of as many as there are. Exactly these: a class of somebody's own
   may give other items than it has, or never end. */
static bool take_sources(const Runner *runner, PyObject *inputs, Given *given) {
  bool is_list = PyList_CheckExact(inputs);
  if ((!is_list && !PyTuple_CheckExact(inputs)) ||
      (is_list ? PyList_Size(inputs) : PyTuple_Size(inputs)) != runner->num_inputs) {
    return false;
  }
  for (Py_ssize_t i = 0; i < runner->num_inputs; ++i) {
    PyObject *source = is_list ? PyList_GetItem(inputs, i) : PyTuple_GetItem(inputs, i);
    if (source == NULL) { /* another thread made the list shorter */
      PyErr_Clear();
      return false;
    }
    Py_INCREF(source);
    given[i].source = source;
  }
  return true;
}

/* Takes the inputs and asks them what has to be asked. The caller lets go of `given` in any case. */
static Answer prepare(Runner *runner, PyObject *inputs, Given **given, bool claims) {
  *given = atomic_exchange(&runner->spare, NULL);
  if (*given == NULL) { /* an input's producer runs the method too, or another thread tries to */
    *given = calloc((size_t)runner->num_inputs + 1, sizeof(Given));
  }
  if (*given == NULL) {
    PyErr_NoMemory();
    return kRaised;
  }
  return take_sources(runner, inputs, *given) ? ask_all(runner, *given, claims) : kOdd;
}

static void put_back(Runner *runner, Given *given) {
  for (Py_ssize_t i = 0; given != NULL && i < runner->num_inputs; ++i) {
    let_go(&given[i]);
  }
  Given *none = NULL;
  if (!atomic_compare_exchange_strong(&runner->spare, &none, given)) {
    free(given);
  }
}

/* Runs the method, which is claimed. False, and nothing happened, where an input is not plain. */
static bool run_claimed(Runner *runner, Given *given, int clone, etcffi_status *status) {
  for (Py_ssize_t i = 0; i < runner->num_inputs; ++i) {
    if (!describe_item(runner, runner->kinds[i], &given[i], &runner->inputs[i])) {
      return false;
    }
  }
  Py_BEGIN_ALLOW_THREADS
  *status = etcffi_method_run(runner->method, runner->inputs, (size_t)runner->num_inputs, clone,
                              runner->outputs, (size_t)runner->num_outputs);
  Py_END_ALLOW_THREADS
  return true;
}

PyDoc_STRVAR(
    run_doc,
    "run(inputs, clone, held=False) -> results, or (status, results), or (inputs,), or None\n\n"
    "Set the inputs, run, get the outputs, and keep what the runtime was pointed at. The list of\n"
    "results where nothing else is to be done; with a status where the runtime has logged something,\n"
    "or where the status is not 0 and results is None. Where an input is not plain nothing happens;\n"
    "the answer has the inputs to go on with where a DLPack producer was asked, and is else None.\n\n"
    "held: whether the caller holds the method (hold()). If not it is claimed here, and the answer is\n"
    "None also where it is in use, or where a producer would have to be asked.");

/* The answer to a run that the runtime was asked for; `left` keeps the results too. */
static PyObject *answer_of(Runner *runner, Given *given, etcffi_status status, int clone) {
  PyObject *results = status == 0 ? take_results(runner) : NULL;
  bool failed = status == 0 && results == NULL;
  leave(runner, results == NULL ? Py_None : results, clone != 0);
  failed = !settle(runner, given, status) || failed;
  PyObject *answer = NULL;
  uint64_t logged = *runner->log_counter;
  if (failed) {
    refuse(runner);
  } else if (results != NULL && logged == runner->logged) {
    answer = PyList_GetSlice(results, 0, runner->num_outputs); /* the caller's own */
  } else {
    answer = Py_BuildValue("(iO)", (int)status, results == NULL ? Py_None : results);
  }
  runner->logged = logged;
  Py_XDECREF(results);
  return answer;
}

/* A caller who tries again after a refusal accumulates nothing: nothing reads an incomplete set. */
static void drop_refused(Runner *runner) {
  PyObject *refused = runner->refused;
  PyObject *empty = PyList_Size(refused) > 0 ? PyList_New(0) : NULL;
  if (empty != NULL) {
    runner->refused = empty;
    release_all(refused);
  }
  PyErr_Clear();
}

static PyObject *runner_run(PyObject *self, PyObject *const *args, Py_ssize_t count) {
  Runner *runner = (Runner *)self;
  if (count != 2 && count != 3) {
    return PyErr_Format(PyExc_TypeError, "run() takes 2 or 3 arguments");
  }
  int clone = PyObject_IsTrue(args[1]);
  if (clone < 0) {
    return NULL;
  }
  bool held = count == 3 && args[2] == Py_True;
  if ((!held && atomic_load(&runner->use) != kIdle) || runner->held == NULL || runner->refused == NULL) {
    Py_RETURN_NONE;
  }
  Given *given;
  Answer answer = prepare(runner, args[0], &given, held);
  PyObject *answered = NULL;
  int idle = kIdle;
  if (answer == kPlain && !runner->running &&
      (held || atomic_compare_exchange_strong(&runner->use, &idle, kClaimed))) {
    runner->running = true;
    runner->thread = PyThread_get_thread_ident();
    drop_refused(runner);
    etcffi_status status = 0;
    if (run_claimed(runner, given, clone, &status)) {
      answered = answer_of(runner, given, status, clone);
    } else {
      answer = kOdd;
    }
    runner->running = false;
    if (!held) {
      atomic_store(&runner->use, kIdle);
    }
  } else if (answer == kPlain) {
    answer = kOdd;
  } else if (answer == kRaised) {
    refuse(runner); /* any call that is refused leaves the inputs incomplete */
  }
  if (answer == kOdd) {
    answered = inputs_asked(runner, given);
  }
  put_back(runner, given);
  return answered;
}

PyDoc_STRVAR(hold_doc,
             "hold() -> None, or whether this thread is the one that runs it\n\n"
             "Keep run() from claiming the method until let_go(). A bool, and the method is not held,\n"
             "where a run is under way.");

static PyObject *runner_hold(PyObject *self, PyObject *Py_UNUSED(none)) {
  Runner *runner = (Runner *)self;
  int use = atomic_load(&runner->use);
  do {
    if (use < 0 || runner->running) {
      return PyBool_FromLong(runner->thread == PyThread_get_thread_ident());
    }
  } while (!atomic_compare_exchange_weak(&runner->use, &use, use + 1));
  Py_RETURN_NONE;
}

static PyObject *runner_let_go(PyObject *self, PyObject *Py_UNUSED(none)) {
  atomic_fetch_sub(&((Runner *)self)->use, 1);
  Py_RETURN_NONE;
}

static PyObject *runner_left(PyObject *self, void *Py_UNUSED(closure)) {
  Runner *runner = (Runner *)self;
  if (runner->left == NULL) {
    Py_RETURN_NONE;
  }
  return Py_BuildValue("(OO)", runner->left_clones ? Py_True : Py_False, runner->left);
}

static PyObject *get_results(PyObject *self, void *Py_UNUSED(closure)) {
  PyObject *results = ((Runner *)self)->results;
  if (results == NULL) {
    Py_RETURN_NONE;
  }
  Py_INCREF(results);
  return results;
}

static int set_results(PyObject *self, PyObject *value, void *Py_UNUSED(closure)) {
  Runner *runner = (Runner *)self;
  PyObject *results = runner->results, *left = runner->left;
  Py_XINCREF(value);
  runner->results = value;
  runner->left = NULL;
  Py_XDECREF(results);
  Py_XDECREF(left);
  return 0;
}

static PyObject *get_list(PyObject *self, void *closure) {
  Runner *runner = (Runner *)self;
  PyObject *list = closure == NULL ? runner->held : runner->refused;
  Py_XINCREF(list);
  return list != NULL ? list : PyList_New(0); /* a collector has been here */
}

static int set_list(PyObject *self, PyObject *value, void *closure) {
  Runner *runner = (Runner *)self;
  if (value == NULL || !PyList_CheckExact(value)) {
    PyErr_SetString(PyExc_TypeError, "expected a list");
    return -1;
  }
  PyObject **place = closure == NULL ? &runner->held : &runner->refused;
  PyObject *before = *place;
  Py_INCREF(value);
  *place = value;
  Py_XDECREF(before);
  return 0;
}

static PyObject *runner_exchanges(PyObject *self, void *Py_UNUSED(closure)) {
  return PyBool_FromLong(((Runner *)self)->exchange != NULL);
}

static PyGetSetDef runner_getset[] = {
    {"exchanges", runner_exchanges, NULL, "Whether it makes torch tensors of results on the host.", NULL},
    {"left", runner_left, NULL, "What runs left: None, or (clones, results or None).", NULL},
    {"results", get_results, set_results, "The Python layer's; to set them ends what was left.", NULL},
    {"held", get_list, set_list, "What holds the inputs.", NULL},
    {"refused", get_list, set_list, "What holds inputs of refused calls.", (void *)1},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef runner_methods[] = {
    {"run", (PyCFunction)(void (*)(void))runner_run, METH_FASTCALL, run_doc},
    {"hold", runner_hold, METH_NOARGS, hold_doc},
    {"let_go", runner_let_go, METH_NOARGS, "End what hold() began."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot runner_slots[] = {
    {Py_tp_new, (void *)runner_new},
    {Py_tp_dealloc, (void *)runner_dealloc},
    {Py_tp_traverse, (void *)runner_traverse},
    {Py_tp_clear, (void *)runner_clear},
    {Py_tp_methods, runner_methods},
    {Py_tp_getset, runner_getset},
    {Py_tp_doc, "Runs a method whose inputs and outputs are tensors and numbers."},
    {0, NULL},
};

static PyType_Spec runner_spec = {
    .name = "et_cffi._cpython.Runner",
    .basicsize = sizeof(Runner),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
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
  struct {
    PyObject **name;
    const char *text;
  } names[] = {
      {&obj_name, "obj"},
      {&base_name, "base"},
      {&data_ptr_name, "data_ptr"},
      {&nbytes_name, "nbytes"},
      {&resizable_name, "resizable"},
      {&storage_name, "untyped_storage"},
      {&dlpack_name, "__dlpack__"},
      {&dlpack_device_name, "__dlpack_device__"},
      {&release_name, "release"},
  };
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); ++i) {
    *names[i].name = PyUnicode_InternFromString(names[i].text);
    if (*names[i].name == NULL) {
      return -1;
    }
  }
  no_arguments = PyTuple_New(0);
  dlpack_keywords = Py_BuildValue("{s(ii)}", "max_version", ETCFFI_DLPACK_MAJOR, ETCFFI_DLPACK_MINOR);
  pin_type = PyType_FromSpec(&pin_spec);
  asked_type = PyType_FromSpec(&asked_spec);
  if (no_arguments == NULL || dlpack_keywords == NULL || pin_type == NULL || asked_type == NULL) {
    return -1;
  }
  Py_INCREF(pin_type);
  Py_INCREF(asked_type);
  if (add_type(module, "Pin", pin_type) != 0 || add_type(module, "Asked", asked_type) != 0 ||
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
