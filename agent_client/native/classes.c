/* All classes, and the references to them: each instance of a class made by `class` holds one reference to it. */

#include "native.h"

/* Return one number per weak reference, 0 for an object that is gone. No reference to an object is taken meanwhile. */
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
            PyErr_Format(PyExc_TypeError, "item %zd is not a weak reference", i);
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

/* Return every class except `object`, each once, from a breadth-first walk. It uses the method of `type` itself,
   because a metaclass may define another one. */
static PyObject *
all_classes(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    PyObject *classes = PyList_New(0);
    ll_table *seen = ll_table_new((size_t)16 << 20);
    PyObject *subclasses_of = PyObject_GetAttrString((PyObject *)&PyType_Type, "__subclasses__");
    PyObject *cls = (PyObject *)&PyBaseObject_Type;
    int failed = classes == NULL || seen == NULL || subclasses_of == NULL;
    for (Py_ssize_t i = 0; !failed; i++) {
        PyObject *below = PyObject_CallOneArg(subclasses_of, cls);
        failed = below == NULL;
        for (Py_ssize_t j = 0; !failed && j < PyList_GET_SIZE(below); j++) {
            PyObject *one = PyList_GET_ITEM(below, j);
            int64_t *mark = ll_table_at(seen, one);
            if (mark == NULL || *mark == 0) {
                failed = mark == NULL || PyList_Append(classes, one) < 0;
                if (!failed) {
                    *mark = 1;
                }
            }
        }
        Py_XDECREF(below);
        if (failed || i >= PyList_GET_SIZE(classes)) {
            break;
        }
        cls = PyList_GET_ITEM(classes, i);
    }
    Py_XDECREF(subclasses_of);
    if (seen != NULL) {
        ll_table_free(seen);
    }
    if (failed) {
        Py_XDECREF(classes);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return classes;
}

static PyMethodDef methods[] = {
    {"reference_counts", reference_counts, METH_O,
     "Return the reference count of the target of each weak reference in a list; 0 if it is dead."},
    {"all_classes", all_classes, METH_NOARGS, "Return a list of all classes except `object`, each once, bases first."},
    {NULL, NULL, 0, NULL},
};

int
ll_add_classes(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
