/* leakline_server._native: the series of a batch, from their JSON to arrays in one pass; and what sealing has of it
   (tables.c).

   CPython 3.11 to 3.14 with the interpreter lock. Only what is plain is read here, as `ingest.read_series` says; for
   everything else the answer is None, and the batch is decoded value by value. The text need not be valid JSON. */

#include "tables.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "leakline_server._native is made for CPython 3.11 to 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "leakline_server._native needs the interpreter lock"
#endif

/* As wire.MAX_INTEGER, limits.MAX_FLOAT, incoming_batch.NOT_THERE and wire.MAX_NAME_LENGTH. */
#define MAX_INTEGER (INT64_C(1) << 53)
#define MAX_FLOAT 1e15
#define NOT_THERE INT64_MIN
#define MAX_NAME_LENGTH 512

enum {
    MAX_INTEGER_DIGITS = 16,
    MAX_NAME_BYTES = 4 * MAX_NAME_LENGTH,
    /* A float that is written longer is nobody's, and its price is not bounded. */
    MAX_FLOAT_TEXT = 64,
    /* So many digits fit 64 bits. */
    MAX_MANTISSA_DIGITS = 19,
    /* Powers of ten up to here are doubles without rounding. */
    MAX_EXACT_POWER = 22,
    FIRST_ROWS = 16,
    NAMES_KEPT_BITS = 12,
    MAX_KEPT_NAME = 128,
};

/* What reading a part of the text comes to; ERROR has an exception set. */
typedef enum { FOUND, NOTHING, FLOATS, NOT_PLAIN, ERROR } outcome;

/* -- text

   The text ends with a closing brace, and nothing here steps over a closing brace: so every step forward, which is
   over another character, leads to a character that is there. */

static inline int
is_space(char character)
{
    return character == ' ' || character == '\n' || character == '\r' || character == '\t';
}

static inline const char *
after_spaces(const char *at)
{
    while (is_space(*at)) {
        at++;
    }
    return at;
}

static inline uint64_t
eight_at(const char *at)
{
    uint64_t eight;
    memcpy(&eight, at, sizeof eight);
    return eight;
}

static inline unsigned
digit_of(char character)
{
    return (unsigned)(unsigned char)character - '0';
}

/* Of the letter n. */
static inline outcome
after_null(const char **place)
{
    const char *at = *place;
    if (at[1] != 'u' || at[2] != 'l' || at[3] != 'l') {
        return NOT_PLAIN;
    }
    *place = at + 4;
    return NOTHING;
}

static inline int
goes_on_as_float(char character)
{
    return character == '.' || character == 'e' || character == 'E';
}

/* -- numbers */

/* FOUND, NOTHING for null, or FLOATS for a number that is not written as an integer. */
static inline outcome
read_integer(const char **place, int64_t *value)
{
    const char *at = *place;
    if (*at == 'n') {
        return after_null(place);
    }
    int negative = *at == '-';
    const char *first = at += negative;
    uint64_t number = 0;
    for (unsigned digit; (digit = digit_of(*at)) <= 9; at++) {
        number = 10 * number + digit;
    }
    Py_ssize_t digits = at - first;
    if (goes_on_as_float(*at)) {
        return FLOATS;
    }
    if (digits == 0 || digits > MAX_INTEGER_DIGITS || number > MAX_INTEGER || (*first == '0' && digits > 1)) {
        return NOT_PLAIN;
    }
    *place = at;
    *value = negative ? -(int64_t)number : (int64_t)number;
    return FOUND;
}

static const double POWERS[MAX_EXACT_POWER + 1] = {
    1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
};

/* The text is a number of JSON; what `float` makes of it. */
static outcome
rounded(const char *text, Py_ssize_t length, double *value)
{
    char copy[MAX_FLOAT_TEXT + 1];
    if (length > MAX_FLOAT_TEXT) {
        return NOT_PLAIN;
    }
    memcpy(copy, text, (size_t)length);
    copy[length] = 0;
    *value = PyOS_string_to_double(copy, NULL, NULL);
    return *value == -1.0 && PyErr_Occurred() ? ERROR : FOUND;
}

/* FOUND, or NOTHING for null. */
static inline outcome
read_float(const char **place, double *value)
{
    const char *at = *place, *start = at;
    if (*at == 'n') {
        return after_null(place);
    }
    int negative = *at == '-';
    const char *first = at += negative;
    uint64_t mantissa = 0;
    unsigned digit;
    for (; (digit = digit_of(*at)) <= 9; at++) {
        mantissa = 10 * mantissa + digit;
    }
    Py_ssize_t digits = at - first, behind = 0;
    if (digits == 0 || (*first == '0' && digits > 1)) {
        return NOT_PLAIN;
    }
    if (*at == '.') {
        const char *fraction = ++at;
        for (; (digit = digit_of(*at)) <= 9; at++) {
            mantissa = 10 * mantissa + digit;
        }
        behind = at - fraction;
        digits += behind;
        if (behind == 0) {
            return NOT_PLAIN;
        }
    }
    Py_ssize_t power = 0;
    if (*at == 'e' || *at == 'E') {
        at++;
        int smaller = *at == '-';
        at += smaller || *at == '+';
        const char *exponent = at;
        for (; (digit = digit_of(*at)) <= 9; at++) {
            /* Only whether it is small matters. */
            power = power < 1000 ? 10 * power + digit : power;
        }
        if (at == exponent) {
            return NOT_PLAIN;
        }
        power = smaller ? -power : power;
    }
    power -= behind;
    if (digits <= MAX_MANTISSA_DIGITS && mantissa <= (uint64_t)MAX_INTEGER && power >= -MAX_EXACT_POWER &&
        power <= MAX_EXACT_POWER) {
        /* Both are exact, so the one operation rounds as it should. */
        double number = (double)mantissa;
        number = power < 0 ? number / POWERS[-power] : number * POWERS[power];
        *value = negative ? -number : number;
    } else {
        outcome of_text = rounded(start, at - start, value);
        if (of_text != FOUND) {
            return of_text;
        }
    }
    if (fabs(*value) > MAX_FLOAT) {
        return NOT_PLAIN;
    }
    *place = at;
    return FOUND;
}

/* -- rows */

/* What is true of all numbers read, zero among them. */
typedef struct {
    double low, high;
} bounds;

static inline void
widen(bounds *all, double low, double high)
{
    all->low = low < all->low ? low : all->low;
    all->high = high > all->high ? high : all->high;
}

/* From an entry to the next one, or from the last one to behind the list; NULL when it is not there. */
static inline const char *
next_entry(const char *at, int is_last)
{
    at = after_spaces(at);
    return *at == (is_last ? ']' : ',') ? after_spaces(at + 1) : NULL;
}

/* Both read from the first entry. FOUND, NOTHING when there are holes in it, FLOATS when it is a row of those. */
static outcome
read_integers(const char **place, int64_t *row, Py_ssize_t count, bounds *all, int *stands_still)
{
    const char *at = *place;
    int64_t low = 0, high = 0, moved = 0;
    outcome whole = FOUND;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t value = NOT_THERE;
        outcome one = read_integer(&at, &value);
        if (one == FOUND) {
            low = value < low ? value : low;
            high = value > high ? value : high;
        } else if (one == NOTHING) {
            whole = NOTHING;
        } else {
            return one;
        }
        row[i] = value;
        moved |= value ^ row[0];
        at = next_entry(at, i == count - 1);
        if (at == NULL) {
            return NOT_PLAIN;
        }
    }
    widen(all, (double)low, (double)high);
    *stands_still = moved == 0;
    *place = at;
    return whole;
}

static outcome
read_floats(const char **place, double *row, Py_ssize_t count, bounds *all)
{
    const char *at = *place;
    double low = 0, high = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        double value = Py_NAN;
        outcome one = read_float(&at, &value);
        if (one != FOUND && one != NOTHING) {
            return one;
        }
        low = value < low ? value : low;
        high = value > high ? value : high;
        row[i] = value;
        at = next_entry(at, i == count - 1);
        if (at == NULL) {
            return NOT_PLAIN;
        }
    }
    widen(all, low, high);
    *place = at;
    return FOUND;
}

/* Series of one kind: their names, and a table of rows of eight bytes a number. */
typedef struct {
    PyObject *names;
    PyObject *table;
    Py_ssize_t rows, room;
} group;

/* Where the next row goes; NULL with an exception set. */
static void *
next_row(group *to, Py_ssize_t row_bytes)
{
    if (to->rows == to->room) {
        Py_ssize_t room = to->room ? 2 * to->room : FIRST_ROWS;
        if (row_bytes > PY_SSIZE_T_MAX / 2 / room) {
            return PyErr_NoMemory();
        }
        if (to->table == NULL) {
            to->table = PyBytes_FromStringAndSize(NULL, room * row_bytes);
        } else {
            _PyBytes_Resize(&to->table, room * row_bytes);
        }
        if (to->table == NULL) {
            return NULL;
        }
        to->room = room;
    }
    return PyBytes_AS_STRING(to->table) + to->rows * row_bytes;
}

static outcome
keep_row(group *to, PyObject *name)
{
    to->rows++;
    return PyList_Append(to->names, name) < 0 ? ERROR : FOUND;
}

/* -- names

   The same names come with every batch. Those of a few thousand series are kept, each in the one place that its hash
   gives it, and found there without being made anew; what is looked up by them later has their hash already. */

typedef struct {
    PyObject *name; /* ASCII, at most MAX_KEPT_NAME of it */
    uint64_t hash;
    uint64_t call; /* in which it was seen last */
} kept_name;

typedef struct {
    kept_name *names;
    uint64_t calls;
} native_state;

static inline int
is_name(const kept_name *kept, uint64_t hash, const char *text, Py_ssize_t length)
{
    return kept->name != NULL && kept->hash == hash && PyUnicode_GET_LENGTH(kept->name) == length &&
           memcmp(PyUnicode_1BYTE_DATA(kept->name), text, (size_t)length) == 0;
}

/* A name that is in no place of its own. No name is seen twice: either its place says so, or `others`. */
static outcome
other_name(PyObject *others, const char *text, Py_ssize_t length, PyObject **name)
{
    PyObject *made = PyUnicode_DecodeUTF8(text, length, "strict");
    if (made == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) {
            return ERROR;
        }
        PyErr_Clear();
        return NOT_PLAIN;
    }
    Py_ssize_t before = PySet_GET_SIZE(others);
    outcome seen = FOUND;
    if (PyUnicode_GET_LENGTH(made) > MAX_NAME_LENGTH) {
        seen = NOT_PLAIN;
    } else if (PySet_Add(others, made) < 0) {
        seen = ERROR;
    } else if (PySet_GET_SIZE(others) == before) {
        seen = NOT_PLAIN;
    }
    if (seen != FOUND) {
        Py_DECREF(made);
        return seen;
    }
    *name = made;
    return FOUND;
}

static inline uint64_t
mixed(uint64_t hash)
{
    hash *= UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

/* No quote, backslash, control character or byte of another character among the eight. */
static inline int
is_plain_ascii(uint64_t eight)
{
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones << 7;
    uint64_t quote = eight ^ ones * '"', backslash = eight ^ ones * '\\';
    /* The top bit of a byte is set where it is zero, is below a space, is DEL or is beyond; a borrow may set others
       above such a byte, which is enough. */
    uint64_t found = (quote - ones) | (backslash - ones) | (eight - ones * ' ') | (eight + ones) | eight;
    return (found & tops) == 0;
}

/* From behind the opening quote to behind the closing one. A name that the call had before is not plain. */
static outcome
read_name(native_state *state, const char **place, const char *last, PyObject *others, PyObject **name)
{
    const char *text = *place, *at = text;
    uint64_t hash = 0, rest = 1;
    unsigned char all = 0;
    /* A brace may be part of a name, so here the end is looked at. All names are cut into eights in the same way: of
       one that is plain, a closing quote and more are behind every eight. */
    for (uint64_t eight; last - at >= 8 && is_plain_ascii(eight = eight_at(at)); at += 8) {
        hash = mixed(hash ^ eight);
    }
    for (; at < last && *at != '"'; at++) {
        unsigned char byte = (unsigned char)*at;
        if (byte < 0x20 || byte == 0x7f || byte == '\\') {
            return NOT_PLAIN;
        }
        all |= byte;
        rest = rest << 8 | byte;
    }
    hash = mixed(hash ^ rest);
    Py_ssize_t length = at - text;
    if (at == last || length == 0 || length > MAX_NAME_BYTES) {
        return NOT_PLAIN;
    }
    *place = at + 1;
    if (all >= 0x80 || length > MAX_KEPT_NAME) {
        return other_name(others, text, length, name);
    }
    kept_name *kept = &state->names[hash >> (64 - NAMES_KEPT_BITS)];
    if (is_name(kept, hash, text, length)) {
        if (kept->call == state->calls) {
            return NOT_PLAIN;
        }
    } else if (kept->name != NULL && kept->call == state->calls) {
        /* Who was here first in a call stays to its end, or a third one could not tell. */
        return other_name(others, text, length, name);
    } else {
        PyObject *made = PyUnicode_DecodeASCII(text, length, NULL);
        if (made == NULL) {
            return ERROR;
        }
        Py_XSETREF(kept->name, made);
        kept->hash = hash;
    }
    kept->call = state->calls;
    *name = Py_NewRef(kept->name);
    return FOUND;
}

/* -- the series of a batch */

typedef struct {
    native_state *state;
    Py_ssize_t count, count_of_constant;
    PyObject *constant; /* name -> the number of all its entries */
    PyObject *others;
    group whole, holed, floats;
    bounds all;
} batch;

static outcome
keep_constant(batch *found, PyObject *name, int64_t value)
{
    PyObject *number = PyLong_FromLongLong(value);
    int failed = number == NULL || PyDict_SetItem(found->constant, name, number) < 0;
    Py_XDECREF(number);
    return failed ? ERROR : FOUND;
}

/* From the first entry to behind the list and its spaces. */
static outcome
read_row(batch *found, const char **place, PyObject *name)
{
    Py_ssize_t row_bytes = found->count * (Py_ssize_t)sizeof(int64_t);
    /* Most rows are whole, so it is read to where one of those would go. */
    int64_t *row = next_row(&found->whole, row_bytes);
    if (row == NULL) {
        return ERROR;
    }
    int stands_still;
    outcome kind = read_integers(place, row, found->count, &found->all, &stands_still);
    if (kind == FOUND) {
        if (stands_still && found->count >= found->count_of_constant) {
            return keep_constant(found, name, row[0]);
        }
        return keep_row(&found->whole, name);
    }
    if (kind == NOTHING) {
        int64_t *holed = next_row(&found->holed, row_bytes);
        if (holed == NULL) {
            return ERROR;
        }
        memcpy(holed, row, (size_t)row_bytes);
        return keep_row(&found->holed, name);
    }
    if (kind == FLOATS) {
        double *numbers = next_row(&found->floats, row_bytes);
        if (numbers == NULL) {
            return ERROR;
        }
        kind = read_floats(place, numbers, found->count, &found->all);
        return kind == FOUND ? keep_row(&found->floats, name) : kind;
    }
    return kind;
}

/* From the opening quote of a name to behind the list of its numbers. */
static outcome
read_one(batch *found, const char **place, const char *last)
{
    const char *at = *place;
    if (*at != '"') {
        return NOT_PLAIN;
    }
    at++;
    PyObject *name = NULL;
    outcome one = read_name(found->state, &at, last, found->others, &name);
    if (one != FOUND) {
        return one;
    }
    at = after_spaces(at);
    one = NOT_PLAIN;
    if (*at == ':') {
        at = after_spaces(at + 1);
        if (*at == '[') {
            at = after_spaces(at + 1);
            one = read_row(found, &at, name);
        }
    }
    Py_DECREF(name);
    *place = at;
    return one;
}

static outcome
read_all(batch *found, const char *text, Py_ssize_t length)
{
    while (length > 0 && is_space(text[length - 1])) {
        length--;
    }
    if (length == 0 || text[length - 1] != '}') {
        return NOT_PLAIN;
    }
    const char *last = text + length - 1, *at = after_spaces(text);
    if (*at != '{') {
        return NOT_PLAIN;
    }
    at = after_spaces(at + 1);
    if (*at == '}') {
        return at == last ? FOUND : NOT_PLAIN;
    }
    /* An entry takes a character and its comma, so what follows multiplies no more than the text has. */
    if (found->count <= 0 || found->count > length) {
        return NOT_PLAIN;
    }
    for (;;) {
        outcome one = read_one(found, &at, last);
        if (one != FOUND) {
            return one;
        }
        if (*at == '}') {
            return at == last ? FOUND : NOT_PLAIN;
        }
        if (*at != ',') {
            return NOT_PLAIN;
        }
        at = after_spaces(at + 1);
    }
}

/* The table without the room that was not needed; NULL with an exception set. */
static PyObject *
finished(group *of, Py_ssize_t count)
{
    if (of->table == NULL) {
        return PyBytes_FromStringAndSize(NULL, 0);
    }
    if (of->rows < of->room) {
        _PyBytes_Resize(&of->table, of->rows * count * (Py_ssize_t)sizeof(int64_t));
    }
    return Py_XNewRef(of->table);
}

static PyObject *
as_tuple(batch *found)
{
    PyObject *whole = finished(&found->whole, found->count);
    PyObject *holed = whole == NULL ? NULL : finished(&found->holed, found->count);
    PyObject *floats = holed == NULL ? NULL : finished(&found->floats, found->count);
    PyObject *tuple = NULL;
    if (floats != NULL) {
        tuple = Py_BuildValue(
            "OOOOOOOdd", found->constant, found->whole.names, whole, found->holed.names, holed, found->floats.names,
            floats, found->all.low, found->all.high
        );
    }
    Py_XDECREF(whole);
    Py_XDECREF(holed);
    Py_XDECREF(floats);
    return tuple;
}

static PyObject *
read_columns(PyObject *module, PyObject *arguments)
{
    Py_buffer text;
    batch found = {.state = PyModule_GetState(module)};
    if (!PyArg_ParseTuple(arguments, "y*nn:read_columns", &text, &found.count, &found.count_of_constant)) {
        return NULL;
    }
    PyObject *answer = NULL;
    found.constant = PyDict_New();
    found.others = PySet_New(NULL);
    found.whole.names = PyList_New(0);
    found.holed.names = PyList_New(0);
    found.floats.names = PyList_New(0);
    if (found.constant != NULL && found.others != NULL && found.whole.names != NULL && found.holed.names != NULL &&
        found.floats.names != NULL) {
        /* From here to the end of the text nothing is made that the collector knows: a collection could run code of
           others, and that this function, which takes names from their places. */
        found.state->calls++;
        outcome all = read_all(&found, text.buf, text.len);
        if (all == FOUND) {
            answer = as_tuple(&found);
        } else if (all != ERROR) {
            answer = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&text);
    Py_XDECREF(found.constant);
    Py_XDECREF(found.others);
    group *groups[] = {&found.whole, &found.holed, &found.floats};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(groups); i++) {
        Py_XDECREF(groups[i]->names);
        Py_XDECREF(groups[i]->table);
    }
    return answer;
}

/* -- the module */

static int
execute(PyObject *module)
{
    native_state *state = PyModule_GetState(module);
    state->names = PyMem_Calloc((size_t)1 << NAMES_KEPT_BITS, sizeof(kept_name));
    if (state->names == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    /* To be raised with every change that the Python side must know of: it may find a module built before. */
    return PyModule_AddIntConstant(module, "interface", 2);
}

static void
forget(void *module)
{
    native_state *state = PyModule_GetState(module);
    if (state == NULL || state->names == NULL) {
        return;
    }
    for (size_t i = 0; i < (size_t)1 << NAMES_KEPT_BITS; i++) {
        Py_XDECREF(state->names[i].name);
    }
    PyMem_Free(state->names);
    state->names = NULL;
}

static PyMethodDef methods[] = {
    {"read_columns", read_columns, METH_VARARGS,
     "(constant, names and int64 table of whole rows, of rows with holes, names and float64 table of floats, a number "
     "that none is below, one that none is above) of a JSON object of lists of `count` numbers, or None where it is "
     "not plain. Integers that stand still are `constant` from so many on as the third argument says."},
    {"fill_table", fill_table, METH_VARARGS,
     "Of a table of rows of eight bytes an entry, with the ascending numbers of its series, from an entry on, so many of "
     "each: series that stand still and their values; series, their first values, the width of their differences and "
     "these; series and all their entries. What the table has no row for is left out."},
    {"encode_table", encode_table, METH_VARARGS,
     "(first, last, min, max, width, payload, records of the pieces) of every row of an int64 table with rows of so many "
     "entries, whose pieces begin at these int64 positions; None of one in which an entry is not there."},
    {"scaled_floats", scaled_floats, METH_VARARGS,
     "The fewest decimals that all these floats have to the bit, and without their point they are in the second "
     "argument then; -1 where they have more."},
    {"number_texts", number_texts, METH_VARARGS,
     "The number of each text of a list, -1 for None, as int32 in the third argument; new ones are numbered in the "
     "second, a dict of them alone."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)execute},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "leakline_server._native",
    .m_doc = "Reads the numbers of batches, and seals them, where it is compiled.",
    .m_size = sizeof(native_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_free = forget,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
