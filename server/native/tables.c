/* leakline_server._native: seals the rows of a table of series as chunks, in one pass over each number.

   It supports CPython 3.11 to 3.14 with the interpreter lock. `store/series/sealing.py` and
   `store/series/chunk_codec.py` describe the results, and do the same in numpy if this module was not built. Every
   length is checked before anything is read or written. Numbers are copied, so no buffer needs to be aligned.
   Differences wrap around like those of numpy. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "leakline_server._native supports CPython 3.11 to 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "leakline_server._native requires the GIL"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "leakline_server._native requires a little-endian machine"
#endif

/* The same value as incoming_batch.NOT_THERE. */
#define NOT_THERE INT64_MIN

enum {
    NUMBER = 8, /* bytes */
    /* The numbers of a piece: present, first, last, min, max, in the order of summaries.py. */
    NUMBERS_OF_A_PIECE = 5,
};

static inline int64_t
integer_at(const char *at)
{
    int64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static PyObject *
wrong(const char *what)
{
    PyErr_SetString(PyExc_ValueError, what);
    return NULL;
}

/* -- rows as chunks */

typedef struct {
    int64_t first, last, low, high;
    /* Minimum, maximum and common bits of the differences between neighbours. */
    int64_t least, most;
    uint64_t common;
} row_numbers;

/* Summarize the entries of the row from `start` to before `stop`; there must be at least one. */
static void
look_at(const char *row, Py_ssize_t start, Py_ssize_t stop, row_numbers *of)
{
    int64_t before = integer_at(row + start * NUMBER), low = before, high = before, least = 0, most = 0;
    uint64_t common = 0;
    of->first = before;
    /* The first difference of a piece is that to the entry before the piece. */
    if (start > 0) {
        int64_t step = (int64_t)((uint64_t)before - (uint64_t)integer_at(row + (start - 1) * NUMBER));
        least = most = step;
        common = (uint64_t)step;
    } else if (stop > 1) {
        least = most = (int64_t)((uint64_t)integer_at(row + NUMBER) - (uint64_t)before);
    }
    for (Py_ssize_t at = start + 1; at < stop; at++) {
        int64_t value = integer_at(row + at * NUMBER);
        int64_t step = (int64_t)((uint64_t)value - (uint64_t)before);
        low = value < low ? value : low;
        high = value > high ? value : high;
        least = step < least ? step : least;
        most = step > most ? step : most;
        common |= (uint64_t)step;
        before = value;
    }
    of->last = before;
    of->low = low;
    of->high = high;
    of->least = least;
    of->most = most;
    of->common = common;
}

static void
note_piece(double *record, Py_ssize_t entries, const row_numbers *of)
{
    record[0] = (double)entries;
    record[1] = (double)of->first;
    record[2] = (double)of->last;
    record[3] = (double)of->low;
    record[4] = (double)of->high;
}

/* Merge the numbers of the next piece into those of the pieces before it. */
static void
join(row_numbers *all, const row_numbers *next)
{
    all->last = next->last;
    all->low = next->low < all->low ? next->low : all->low;
    all->high = next->high > all->high ? next->high : all->high;
    all->least = next->least < all->least ? next->least : all->least;
    all->most = next->most > all->most ? next->most : all->most;
    all->common |= next->common;
}

/* Write a record for each piece and return how many records are valid: only the first if all values are equal. */
static Py_ssize_t
look_at_pieces(const char *row, Py_ssize_t length, const Py_buffer *starts, double *records, row_numbers *all)
{
    Py_ssize_t pieces = starts->len / NUMBER;
    if (pieces == 0) {
        look_at(row, 0, length, all);
        return 0;
    }
    for (Py_ssize_t i = 0; i < pieces; i++) {
        Py_ssize_t start = integer_at((char *)starts->buf + i * NUMBER);
        Py_ssize_t stop = i + 1 < pieces ? integer_at((char *)starts->buf + (i + 1) * NUMBER) : length;
        row_numbers one;
        look_at(row, start, stop, &one);
        note_piece(records + i * NUMBERS_OF_A_PIECE, stop - start, &one);
        if (i == 0) {
            *all = one;
            /* A single entry has no difference of its own, so the one to the next entry is used. */
            if (stop == 1 && length > 1) {
                all->least = all->most = (int64_t)((uint64_t)integer_at(row + NUMBER) - (uint64_t)one.first);
            }
        } else {
            join(all, &one);
        }
    }
    return (double)all->low == (double)all->high ? 1 : pieces;
}

#define WRITE_STEPS(type)                                                                                              \
    for (Py_ssize_t at = 1; at < length; at++) {                                                                       \
        int64_t value = integer_at(row + at * NUMBER);                                                                 \
        type step = (type)((int64_t)((uint64_t)value - (uint64_t)before) >> shift);                                    \
        memcpy(to + (at - 1) * (Py_ssize_t)sizeof step, &step, sizeof step);                                           \
        before = value;                                                                                                \
    }

static int
width_of(int64_t least, int64_t most)
{
    if (least >= INT8_MIN && most <= INT8_MAX) {
        return 1;
    }
    if (least >= INT16_MIN && most <= INT16_MAX) {
        return 2;
    }
    return least >= INT32_MIN && most <= INT32_MAX ? 4 : 8;
}

/* Return the payload, as defined in chunk_codec.py, of a row whose values change. */
static PyObject *
payload_of(const char *row, Py_ssize_t length, const row_numbers *of, int *width)
{
    int shift = of->common ? __builtin_ctzll(of->common) : 0;
    *width = width_of(of->least >> shift, of->most >> shift);
    if (length > (PY_SSIZE_T_MAX - 2) / NUMBER) {
        return PyErr_NoMemory();
    }
    PyObject *payload = PyBytes_FromStringAndSize(NULL, 2 + (length - 1) * *width);
    if (payload == NULL) {
        return NULL;
    }
    char *to = PyBytes_AS_STRING(payload);
    *to++ = 0;
    *to++ = (char)shift;
    int64_t before = of->first;
    switch (*width) {
    case 1: WRITE_STEPS(int8_t) break;
    case 2: WRITE_STEPS(int16_t) break;
    case 4: WRITE_STEPS(int32_t) break;
    default: WRITE_STEPS(int64_t) break;
    }
    return payload;
}

/* Return None if an entry is missing. */
static PyObject *
encoded_row(const char *row, Py_ssize_t length, const Py_buffer *starts, double *records)
{
    row_numbers of;
    Py_ssize_t pieces = look_at_pieces(row, length, starts, records, &of);
    if (of.low == NOT_THERE) {
        Py_RETURN_NONE;
    }
    int width = 0;
    PyObject *payload =
        (double)of.low == (double)of.high ? PyBytes_FromStringAndSize(NULL, 0) : payload_of(row, length, &of, &width);
    if (payload == NULL) {
        return NULL;
    }
    return Py_BuildValue(
        "ddddiNy#", (double)of.first, (double)of.last, (double)of.low, (double)of.high, width, payload,
        (const char *)records, pieces * NUMBERS_OF_A_PIECE * (Py_ssize_t)sizeof *records
    );
}

/* Return 1 if these are ascending positions in the row that start at 0. */
static int
are_starts(const Py_buffer *starts, Py_ssize_t length)
{
    int64_t before = -1;
    for (Py_ssize_t i = 0; i < starts->len / NUMBER; i++) {
        int64_t start = integer_at((char *)starts->buf + i * NUMBER);
        if (start <= before || start >= length || (i == 0 && start != 0)) {
            return 0;
        }
        before = start;
    }
    return starts->len % NUMBER == 0;
}

static PyObject *
encoded_rows(const Py_buffer *cells, Py_ssize_t length, const Py_buffer *starts)
{
    if (length <= 0 || cells->len % NUMBER || cells->len / NUMBER % length || !are_starts(starts, length)) {
        return wrong("the rows of a table do not match its pieces");
    }
    Py_ssize_t rows = cells->len / NUMBER / length;
    PyObject *found = PyList_New(rows);
    double *records = PyMem_Calloc((size_t)(starts->len / NUMBER) + 1, NUMBERS_OF_A_PIECE * sizeof *records);
    if (records == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; found != NULL && records != NULL && i < rows; i++) {
        PyObject *one = encoded_row((char *)cells->buf + i * length * NUMBER, length, starts, records);
        if (one == NULL) {
            break;
        }
        PyList_SET_ITEM(found, i, one);
    }
    PyMem_Free(records);
    if (PyErr_Occurred()) {
        Py_CLEAR(found);
    }
    return found;
}

static PyObject *
encode_table(PyObject *module, PyObject *arguments)
{
    Py_buffer cells, starts;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(arguments, "y*ny*:encode_table", &cells, &length, &starts)) {
        return NULL;
    }
    PyObject *found = encoded_rows(&cells, length, &starts);
    PyBuffer_Release(&cells);
    PyBuffer_Release(&starts);
    return found;
}

/* -- the module */

static int
execute(PyObject *module)
{
    /* Increase this with every change that the Python side must know of: it may find a module built earlier. */
    return PyModule_AddIntConstant(module, "interface", 3);
}

static PyMethodDef methods[] = {
    {"encode_table", encode_table, METH_VARARGS,
     "Return (first, last, min, max, width, payload, records of the pieces) of every row of an int64 table; None for a "
     "row with a missing entry. The pieces begin at these int64 positions."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "leakline_server._native",
    .m_doc = "Seals batches; optional.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
