/* et_cffi._capsule: the two things about DLPack that need the interpreter's C API and that cffi has no way
 * to do: to take the managed tensor out of a PyCapsule, and to put one in.
 */
#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#include <string.h>

#include "et_cffi.h"

static const char legacy[] = "dltensor";
static const char versioned[] = "dltensor_versioned";
static const char used_legacy[] = "used_dltensor";
static const char used_versioned[] = "used_dltensor_versioned";

PyDoc_STRVAR(claim_doc,
             "claim(capsule) -> (address, versioned)\n\n"
             "Take the managed tensor out of a DLPack capsule. The caller owns it from then on, and is to\n"
             "call its deleter once.");

static PyObject *claim(PyObject *Py_UNUSED(module), PyObject *capsule) {
  if (!PyCapsule_CheckExact(capsule)) {
    return PyErr_Format(PyExc_TypeError, "expected a DLPack capsule, not %R", (PyObject *)Py_TYPE(capsule));
  }
  const char *name = PyCapsule_GetName(capsule);
  if (name == NULL) {
    if (!PyErr_Occurred()) {
      PyErr_SetString(PyExc_TypeError, "expected a DLPack capsule, not one without a name");
    }
    return NULL;
  }
  if (strcmp(name, used_legacy) == 0 || strcmp(name, used_versioned) == 0) {
    PyErr_SetString(PyExc_ValueError,
                    "this DLPack capsule was already consumed; ask its producer for a new one");
    return NULL;
  }
  int is_versioned = strcmp(name, versioned) == 0;
  if (!is_versioned && strcmp(name, legacy) != 0) {
    return PyErr_Format(PyExc_TypeError, "expected a DLPack capsule, not one named '%s'", name);
  }
  void *managed = PyCapsule_GetPointer(capsule, name);
  if (managed == NULL) {
    return NULL; /* a ValueError: a capsule cannot be valid and hold NULL */
  }
  /* The answer comes first: once the name says "used", nobody but the caller would free the tensor. The
     producer's destructor sees the new name and leaves the tensor alone. */
  PyObject *answer = Py_BuildValue("(NN)", PyLong_FromVoidPtr(managed), PyBool_FromLong(is_versioned));
  if (answer != NULL && PyCapsule_SetName(capsule, is_versioned ? used_versioned : used_legacy) != 0) {
    Py_CLEAR(answer);
  }
  return answer;
}

static void delete_unclaimed(PyObject *capsule) {
  /* Destructors run anywhere, also while an exception is on its way; none may be lost or added. */
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (PyCapsule_IsValid(capsule, legacy)) {
    DLManagedTensor *managed = PyCapsule_GetPointer(capsule, legacy);
    if (managed->deleter != NULL) {
      managed->deleter(managed);
    }
  } else if (PyCapsule_IsValid(capsule, versioned)) {
    DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, versioned);
    if (managed->deleter != NULL) {
      managed->deleter(managed);
    }
  }
  PyErr_Restore(type, value, traceback);
}

PyDoc_STRVAR(wrap_doc,
             "wrap(address, versioned) -> capsule\n\n"
             "Put a managed tensor in a DLPack capsule, which owns it from then on: its deleter is called\n"
             "when the capsule goes away unclaimed. If this raises, the tensor is still the caller's.");

static PyObject *wrap(PyObject *Py_UNUSED(module), PyObject *args) {
  PyObject *address;
  int is_versioned;
  if (!PyArg_ParseTuple(args, "O!p:wrap", &PyLong_Type, &address, &is_versioned)) {
    return NULL;
  }
  void *managed = PyLong_AsVoidPtr(address);
  if (managed == NULL) {
    if (!PyErr_Occurred()) {
      PyErr_SetString(PyExc_ValueError, "the address of a managed tensor cannot be 0");
    }
    return NULL;
  }
  return PyCapsule_New(managed, is_versioned ? versioned : legacy, delete_unclaimed);
}

static PyMethodDef methods[] = {
    {"claim", claim, METH_O, claim_doc},
    {"wrap", wrap, METH_VARARGS, wrap_doc},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
/* Macros in every version; the limited API of 3.9 does not promise the slots, but those builds have a GIL. */
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "et_cffi._capsule", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__capsule(void) {
  return PyModuleDef_Init(&definition);
}
