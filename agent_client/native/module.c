/* leakline._native: the module definition, which only adds the parts. */

#include "native.h"

static int (*const parts[])(PyObject *) = {
    ll_add_walk,
    ll_add_census,
    ll_add_referrers,
    ll_add_garbage,
    ll_add_classes,
    ll_add_errands,
};

static int
execute(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "leakline._native supports only the main interpreter");
        return -1;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(parts); i++) {
        if (parts[i](module) < 0) {
            return -1;
        }
    }
    /* Increase this with every change that the Python side must know of: it may find a module built earlier. */
    if (PyModule_AddIntConstant(module, "interface", 3) < 0) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "made_for", PY_VERSION_HEX);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "leakline._native",
    .m_doc = "Heap walks and scans for leakline.probes; optional.",
    .m_size = 0,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
