/* Cyclic garbage: tracked objects that are kept alive only by each other, counted without collecting them.

   The scan begins like a collection but frees nothing. Reference counts are copied into a table of our own, and the
   references among the scanned objects are subtracted there. Objects with references left are reachable, and so is
   everything that they lead to. The rest is what a collection would free.

   1. Take the newest tracked objects, as many as requested or as time allows.
   2. Subtract the references among them.
   3. Spread from those that something else refers to.
   4. Add up the objects that were not reached, by exact type.

   All other objects count as alive, as in a collection of the young generation: cycles entirely among the newest
   objects are found exactly, others are missed, and no live object is ever counted as garbage. The scan runs in one
   piece under the interpreter lock, and gives up when its CPU time runs out. It changes no object, takes no reference,
   and runs no code except tp_traverse, which the collector calls as well. */

#define Py_BUILD_CORE 1
#include "native.h"

#include "internal/pycore_dict.h"

#include <stdlib.h>
#include <time.h>

/* Memory of one scan, all of it released at the end. */
#define MEMORY_LIMIT ((size_t)16 << 20)
/* Objects start at multiples of 16 bytes, so a page of 4 KiB holds at most 256. */
#define GRAIN_BITS 4
#define PAGE_BITS 12
#define CELLS (1u << (PAGE_BITS - GRAIN_BITS))
#define SLOTS (1u << 15) /* slots of the page table: twice the maximum number of pages */
#define TYPES 1024
#define TAKING_SHARE 0.35 /* share of the time for taking objects; following references costs more */
#define LOOK_AT_THE_CLOCK 512
#define DISTINCT 128 /* limit on the objects that one suspended generator refers to */
#define DEPTH 4 /* maximum nesting of untracked containers in a dead object */

/* The value of a cell: 0 if not taken, 1 if reached, otherwise 2 plus the references not yet accounted for. */
#define ABSENT 0
#define REACHED 1
#define ZERO 2
#define ROOT (1 << 29) /* far from ZERO, however much is subtracted */

typedef struct {
    uint64_t page; /* 0: free */
    uint32_t chunk;
} page_slot;

typedef struct {
    PyTypeObject *type;
    int64_t count, bytes;
} type_row;

typedef struct {
    PyObject **objects, **stack;
    size_t taken, limit, depth;
    page_slot *slots;
    int32_t *cells;
    uint32_t chunks, chunk_limit;
    uint64_t last_page;
    int32_t *last_cells;
    int64_t started, taking_until, deadline;
    uint32_t ticks;
    int full, late;
    PyTypeObject *array;
    type_row types[TYPES];
    int64_t garbage, bytes;
    int nested;
} look;

/* CPU time of this thread: on a busy machine the wall clock advances while other programs run, and every scan would
   give up. */
static int64_t
cpu_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int
is_late(look *l)
{
    if (++l->ticks % LOOK_AT_THE_CLOCK == 0 && cpu_now() > l->deadline) {
        l->late = 1;
    }
    return l->late;
}

static int32_t *
cells_of(look *l, uint64_t page, int make)
{
    uint32_t at = (uint32_t)((page * 0x9E3779B97F4A7C15u) >> 49); /* 15 bits */
    while (l->slots[at].page) {
        if (l->slots[at].page == page) {
            return l->cells + (size_t)l->slots[at].chunk * CELLS;
        }
        at = (at + 1) & (SLOTS - 1);
    }
    if (!make || l->chunks == l->chunk_limit) {
        return NULL;
    }
    l->slots[at].page = page;
    l->slots[at].chunk = l->chunks;
    return l->cells + (size_t)l->chunks++ * CELLS;
}

/* Return the cell of an address, or NULL if no object near it was taken. */
static inline int32_t *
cell_of(look *l, PyObject *op, int make)
{
    uintptr_t address = (uintptr_t)op;
    uint64_t page = address >> PAGE_BITS;
    if (address & ((1u << GRAIN_BITS) - 1)) {
        return NULL;
    }
    if (page != l->last_page) {
        int32_t *found = cells_of(l, page, make);
        if (found == NULL) {
            return NULL;
        }
        l->last_page = page;
        l->last_cells = found;
    }
    return l->last_cells + ((address >> GRAIN_BITS) & (CELLS - 1));
}

/* Since 3.14 the stack of a suspended generator may borrow an object that one of its locals holds: it is visited twice
   and owned once. A frame object owns everything it refers to. */
static inline int
borrows(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030E0000
    return type == &PyGen_Type || type == &PyCoro_Type || type == &PyAsyncGen_Type;
#else
    (void)type;
    return 0;
#endif
}

static int
take(PyObject *op, void *ctx)
{
    look *l = ctx;
    if (l->taken == l->limit) {
        l->full = 1;
        return 1;
    }
    if (++l->ticks % LOOK_AT_THE_CLOCK == 0 && cpu_now() > l->taking_until) {
        l->full = 1;
        return 1;
    }
    int32_t *cell = cell_of(l, op, 1);
    if (cell == NULL) {
        l->full = 1;
        return 1;
    }
    Py_ssize_t references = Py_REFCNT(op);
    *cell = references <= 0 || references >= ROOT - ZERO ? ROOT : (int32_t)references + ZERO;
    l->objects[l->taken++] = op;
    return 0;
}

static int
take_off(PyObject *op, void *ctx)
{
    look *l = ctx;
    int32_t *cell = cell_of(l, op, 0);
    if (cell != NULL && *cell != ABSENT) {
        /* A type that visits more references than it owns is broken, so everything it visits counts as alive. */
        *cell = *cell <= ZERO || *cell >= ROOT / 2 ? ROOT : *cell - 1;
    }
    return is_late(l);
}

static int
reach(PyObject *op, void *ctx)
{
    look *l = ctx;
    int32_t *cell = cell_of(l, op, 0);
    if (cell != NULL && *cell >= ZERO) {
        *cell = REACHED;
        l->stack[l->depth++] = op;
    }
    return is_late(l);
}

static void
follow(look *l, PyObject *op, visitproc visit)
{
    traverseproc traverse = Py_TYPE(op)->tp_traverse;
    if (traverse != NULL) {
        traverse(op, visit, l);
    }
}

/* Objects already subtracted: each is subtracted once, however often it is visited. Objects without room here are not
   subtracted and count as alive. */
typedef struct {
    look *l;
    PyObject *seen[DISTINCT];
    int count;
} distinct;

static int
take_off_once(PyObject *op, void *ctx)
{
    distinct *d = ctx;
    for (int i = 0; i < d->count; i++) {
        if (d->seen[i] == op) {
            return 0;
        }
    }
    if (d->count == DISTINCT) {
        return is_late(d->l);
    }
    d->seen[d->count++] = op;
    return take_off(op, d->l);
}

static void
take_off_all(look *l)
{
    for (size_t i = 0; i < l->taken && !is_late(l); i++) {
        PyTypeObject *type = Py_TYPE(l->objects[i]);
        if (borrows(type)) {
            distinct d = {.l = l, .count = 0};
            type->tp_traverse(l->objects[i], take_off_once, &d);
        } else {
            follow(l, l->objects[i], take_off);
        }
    }
}

static void
reach_all(look *l)
{
    for (size_t i = 0; i < l->taken && !is_late(l); i++) {
        if (*cell_of(l, l->objects[i], 0) > ZERO) {
            reach(l->objects[i], l);
        }
        while (l->depth && !l->late) {
            follow(l, l->stack[--l->depth], reach);
        }
    }
}

static int64_t
keys_bytes(PyDictKeysObject *keys)
{
    if (keys == NULL || keys->dk_log2_size > 40) {
        return 0;
    }
    int64_t places = ((int64_t)1 << keys->dk_log2_size) * 2 / 3;
    int64_t entry = keys->dk_kind == DICT_KEYS_GENERAL ? sizeof(void *) * 3 : sizeof(void *) * 2;
    return (int64_t)sizeof(PyDictKeysObject) + ((int64_t)1 << keys->dk_log2_index_bytes) + places * entry;
}

/* Return the bytes of one object by the layout of its type, including its header and tables, without running its
   code. */
static int64_t
shallow_bytes(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    int64_t size = type->tp_basicsize;
    if (type == &PyUnicode_Type) {
        return size + (int64_t)(PyUnicode_GET_LENGTH(op) + 1) * PyUnicode_KIND(op);
    }
    if (PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC)) {
        size += 2 * sizeof(void *);
    }
    if (type == &PyList_Type) {
        size += (int64_t)((PyListObject *)op)->allocated * sizeof(void *);
    } else if (type == &PyDict_Type) {
        PyDictObject *dict = (PyDictObject *)op;
        if (dict->ma_values == NULL) {
            size += keys_bytes(dict->ma_keys);
        }
    } else if (type == &PySet_Type || type == &PyFrozenSet_Type) {
        PySetObject *set = (PySetObject *)op;
        if (set->table != set->smalltable) {
            size += (int64_t)(set->mask + 1) * sizeof(setentry);
        }
    } else if (type == &PyByteArray_Type) {
        size += ((PyByteArrayObject *)op)->ob_alloc;
    } else if (type == &PyTuple_Type || type == &PyBytes_Type) {
        size += (int64_t)Py_SIZE(op) * type->tp_itemsize;
    } else if (PyType_HasFeature(type, Py_TPFLAGS_MANAGED_DICT) && PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
        /* Two pointers precede the object. It has as many attributes as other instances of its class, one pointer
           each. */
        size += 2 * sizeof(void *);
        if (keys != NULL) {
            size += (int64_t)(keys->dk_usable + keys->dk_nentries + 1) * sizeof(void *);
        }
    }
    return size;
}

/* The first fields of every numpy.ndarray, unchanged since numpy 1.7. */
typedef struct {
    PyObject_HEAD
    char *data;
    int nd;
    Py_ssize_t *dimensions, *strides;
    PyObject *base, *descr;
    int flags;
} array_fields;

static int64_t
array_bytes(PyObject *op)
{
    array_fields *array = (array_fields *)op;
    int64_t size = Py_TYPE(op)->tp_basicsize;
    int contiguous = array->flags & 3, owns = array->flags & 4;
    if (!owns || array->nd < 1 || array->nd > 64 || array->dimensions == NULL || array->strides == NULL) {
        return size;
    }
    int longest = contiguous & 1 ? 0 : array->nd - 1;
    int64_t buffer = contiguous ? (int64_t)array->dimensions[longest] * array->strides[longest] : 0;
    return size + (buffer > 0 ? buffer : 0);
}

/* Add the bytes of what only a dead object keeps: strings, numbers and arrays that the collector does not track. */
static int
add_owned(PyObject *op, void *ctx)
{
    look *l = ctx;
    if (Py_REFCNT(op) == 1 && !ll_is_tracked(op)) {
        PyTypeObject *type = Py_TYPE(op);
        if (type == l->array) {
            l->bytes += array_bytes(op);
        } else {
            l->bytes += shallow_bytes(op);
            if ((type == &PyTuple_Type || type == &PyDict_Type) && l->nested < DEPTH) {
                l->nested++;
                follow(l, op, add_owned);
                l->nested--;
            }
        }
    }
    return is_late(l);
}

static void
add_row(look *l, PyTypeObject *type, int64_t bytes)
{
    uint32_t at = (uint32_t)(((uintptr_t)type * 0x9E3779B97F4A7C15u) >> 54); /* 10 bits */
    for (int tries = 0; tries < TYPES; tries++, at = (at + 1) % TYPES) {
        type_row *row = &l->types[at];
        if (row->type == NULL) {
            row->type = type;
        }
        if (row->type == type) {
            row->count++;
            row->bytes += bytes;
            return;
        }
    }
}

static void
add_up(look *l)
{
    for (size_t i = 0; i < l->taken && !is_late(l); i++) {
        PyObject *op = l->objects[i];
        if (*cell_of(l, op, 0) != REACHED) {
            int64_t before = l->bytes;
            l->bytes += shallow_bytes(op);
            follow(l, op, add_owned);
            l->garbage++;
            add_row(l, Py_TYPE(op), l->bytes - before);
        }
    }
}

static int
by_count(const void *a, const void *b)
{
    int64_t x = ((const type_row *)a)->count, y = ((const type_row *)b)->count;
    return (x < y) - (x > y);
}

static PyObject *
result_of(look *l, int listed)
{
    qsort(l->types, TYPES, sizeof(type_row), by_count);
    int rows = 0;
    while (rows < listed && rows < TYPES && l->types[rows].count) {
        /* Hold the types first: a collection while the answer is built may free a class. */
        Py_INCREF(l->types[rows++].type);
    }
    PyObject *types = PyList_New(rows);
    for (int i = 0; i < rows; i++) {
        type_row *row = &l->types[i];
        PyObject *item =
            types == NULL ? NULL : Py_BuildValue("(OLL)", row->type, (long long)row->count, (long long)row->bytes);
        Py_DECREF(row->type);
        if (item == NULL) {
            Py_CLEAR(types);
        } else {
            PyList_SET_ITEM(types, i, item);
        }
    }
    if (types == NULL) {
        return NULL;
    }
    return Py_BuildValue("(nOLLLN)", (Py_ssize_t)l->taken, l->full ? Py_False : Py_True, (long long)l->garbage,
                         (long long)l->bytes, (long long)(cpu_now() - l->started), types);
}

/* Map one block of memory for the scan itself, the objects, the stack, the page table, and cells up to the memory
   limit. */
static look *
open_look(size_t objects, size_t *size)
{
    size_t fixed = sizeof(look) + 64 + SLOTS * sizeof(page_slot);
    /* Each object needs a place in both lists, and the smallest object with its header covers two cells. */
    size_t most = (MEMORY_LIMIT - fixed) / (2 * sizeof(PyObject *) + 2 * sizeof(int32_t));
    objects = objects < most ? objects : most;
    *size = MEMORY_LIMIT;
    char *memory = ll_map(*size);
    if (memory == NULL) {
        return NULL;
    }
    look *l = (look *)memory;
    memory += (sizeof(look) + 63) & ~(size_t)63;
    l->slots = (page_slot *)memory;
    memory += SLOTS * sizeof(page_slot);
    l->objects = (PyObject **)memory;
    l->stack = l->objects + objects;
    l->limit = objects;
    l->cells = (int32_t *)(l->stack + objects);
    l->chunk_limit = (uint32_t)(((char *)l + *size - (char *)l->cells) / (CELLS * sizeof(int32_t)));
    return l;
}

PyDoc_STRVAR(garbage_doc,
"garbage(objects, nanoseconds, types=16, array=None) -> tuple | None\n\n"
"Find cyclic garbage among the newest tracked objects, at most `objects` of them, in about `nanoseconds` of CPU time.\n"
"Return (objects visited, True if those were all, garbage objects, bytes they keep, nanoseconds taken,\n"
"[(type, objects, bytes)] of the `types` most frequent), or None if the time was too short. `array` is numpy.ndarray\n"
"to count the buffers of arrays.");

static PyObject *
garbage(PyObject *module, PyObject *args)
{
    Py_ssize_t objects;
    long long nanoseconds;
    int types = 16;
    PyObject *array = Py_None;
    if (!PyArg_ParseTuple(args, "nL|iO:garbage", &objects, &nanoseconds, &types, &array)) {
        return NULL;
    }
    if (objects < 0 || nanoseconds < 0 || types < 0) {
        PyErr_SetString(PyExc_ValueError, "garbage() does not accept negative numbers");
        return NULL;
    }
    size_t size;
    int64_t started = cpu_now();
    look *l = open_look((size_t)objects, &size);
    if (l == NULL) {
        return PyErr_NoMemory();
    }
    l->started = started;
    l->taking_until = started + (int64_t)((double)nanoseconds * TAKING_SHARE);
    l->deadline = started + nanoseconds;
    l->array = PyType_Check(array) ? (PyTypeObject *)array : NULL;
    int failed = ll_walk_newest(-1, take, l) < 0;
    if (!failed) {
        take_off_all(l);
        reach_all(l);
        add_up(l);
    }
    PyObject *result = failed ? NULL : l->late ? Py_NewRef(Py_None) : result_of(l, types);
    ll_unmap(l, size);
    return result;
}

static PyMethodDef methods[] = {
    {"garbage", garbage, METH_VARARGS, garbage_doc},
    {NULL, NULL, 0, NULL},
};

int
ll_add_garbage(PyObject *module)
{
    return PyModule_AddFunctions(module, methods);
}
