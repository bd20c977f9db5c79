/* References to classes, read where they stand: a class made by `class` is referred to once by each instance. */

#include "native.h"

/* One number per weak reference, 0 for an object that is gone. None of them is referred to meanwhile. */
static PyObject *
reference_counts(PyObject *Py_UNUSED(module), PyObject *references)
{
    if (!PyList_CheckExact(references)) {
        PyErr_Format(PyExc_TypeError, "reference_counts() takes a list, not %.100s", Py_TYPE(references)->tp_name);
        return NULL;
    }
    Py_ssize_t length = PyList_GET_SIZE(references);
    PyObject *counts = PyList_New(length);
    if (counts == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        PyObject *reference = i < PyList_GET_SIZE(references) ? PyList_GET_ITEM(references, i) : Py_None;
        if (!PyWeakref_CheckRef(reference)) {
            Py_DECREF(counts);
            PyErr_Format(PyExc_TypeError, "item %zd is no weak reference", i);
            return NULL;
        }
        PyObject *object = ((PyWeakReference *)reference)->wr_object;
        Py_ssize_t number = object == Py_None ? 0 : Py_REFCNT(object);
        PyObject *count = PyLong_FromSsize_t(number > 0 ? number : 0);
        if (count == NULL) {
            Py_DECREF(counts);
            return NULL;
        }
        PyList_SET_ITEM(counts, i, count);
    }
    return counts;
}

static PyMethodDef methods[] = {
    {"reference_counts", reference_counts, METH_O,
     "How many references there are to what each weak reference of a list leads to; 0 where it is gone."},
    {NULL, NULL, 0, NULL},
};

int
ll_add_classes(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
