/* What sealing has of the native module: the functions of tables.c, for the list of its methods. */

#ifndef LEAKLINE_TABLES_H
#define LEAKLINE_TABLES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *fill_table(PyObject *module, PyObject *arguments);
PyObject *encode_table(PyObject *module, PyObject *arguments);
PyObject *scaled_floats(PyObject *module, PyObject *arguments);
PyObject *number_texts(PyObject *module, PyObject *arguments);

#endif
