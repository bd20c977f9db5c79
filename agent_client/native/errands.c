/* A call on the main thread between two steps of the program, at a point where a signal handler could run.

   ctypes is not used for this, because it would print and discard exceptions raised in the call, such as Ctrl-C or an
   alarm of the program. */

#include "native.h"

static int
run(void *callable)
{
    PyObject *result = PyObject_CallNoArgs(callable);
    Py_DECREF((PyObject *)callable);
    if (result == NULL) {
        /* The interpreter raises the exception in the program. */
        return -1;
    }
    Py_DECREF(result);
    return 0;
}

static PyObject *
call_on_main_thread(PyObject *module, PyObject *callable)
{
    Py_INCREF(callable);
    if (Py_AddPendingCall(run, callable) < 0) {
        Py_DECREF(callable);
        Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyMethodDef functions[] = {
    {"call_on_main_thread", call_on_main_thread, METH_O,
     "Schedule a call without arguments on the main thread, where its exceptions are raised. Return False if the queue is full."},
    {NULL, NULL, 0, NULL},
};

int
ll_add_errands(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
