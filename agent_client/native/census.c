/* The census: every live object once, by exact type, with shallow bytes and the buffers of arrays.

   It is one pass over the collector's lists. The walk counts the objects on them; all others (tuples and dictionaries
   of plain values, arrays, byte strings, numbers) are found as referents of those. A referent with one reference is
   found once; only those with more are remembered, by address, in bounded memory. When that is full, a referent with n
   references counts as 1/n each time it is found, which is an estimate and reported as one.

   Types are keyed by address, and no reference to them is taken: one more reference to a class looks like one more
   instance. */

#define Py_BUILD_CORE 1
#include "native.h"

#include "internal/pycore_dict.h"
#if PY_VERSION_HEX < 0x030C0000
#include "internal/pycore_long.h"
#endif

#include <string.h>

/* How the bytes of an object are read from its struct; `roles` contains the names for Python. */
typedef enum {
    PLAIN, LIST, TUPLE, DICT, ODICT, SET, DEQUE, BYTES, BYTEARRAY, INT, STR, ARRAY, ROLES
} role;

/* How a referent of a type is handled. */
typedef enum { NOTHING, COUNTED, FOLLOWED } meaning;

typedef struct {
    PyTypeObject *type; /* an address: the type may have been freed */
    int64_t count;      /* tracked objects and referents */
    int64_t bytes;
    double estimated;   /* further ones, counted as fractions */
    int32_t picked, limit; /* objects handed over, and their maximum */
    uint8_t role, as_referent, is_entered, is_elsewhere;
} kind;

enum { WAITING = 1 << 10, AHEAD = 12, ENTERING = 16, LARGE = 200, BIG_ITEMS = 4096, STACKED = 4096, NESTING = 8 };
/* In a census in slices, at most this many items of an untracked container are followed, all in one piece. */
#define ITEMS_AT_ONCE ((Py_ssize_t)200000)
#define BUFFERS_BYTES ((size_t)4 << 20)

/* The data reported of a large object. The object itself is not held: code that resizes an array or a tuple needs the
   only reference to it. */
enum { SHAPE_TOLD = 8 };
typedef struct {
    int64_t bytes;
    PyTypeObject *type; /* a type with a role, which is never freed */
    Py_ssize_t length;
    int dimensions;
    Py_ssize_t shape[SHAPE_TOLD];
    PyObject *dtype; /* of an array; we hold a reference to it */
} large_object;

typedef struct {
    PyObject_HEAD
    ll_walk *walk;
    ll_seen *seen;
    kind *kinds;
    size_t kind_bits, kind_count;

    /* Referents to be processed together, each while the following ones are loaded into the cache. */
    PyObject *waiting[WAITING];
    size_t waiting_count;
    /* Tracked objects whose contents are being loaded into the cache. */
    PyObject *entering[ENTERING];
    uint8_t entering_as[ENTERING];
    unsigned entering_at;
    /* Untracked containers that are still to be entered. */
    PyObject **stack;
    size_t depth, stack_room;
    int nesting;
    Py_ssize_t followed, skipped;
    uint64_t random;

    /* A long container that is visited in several slices: an address for comparison. */
    PyObject *big;
    Py_ssize_t big_position;
    int64_t deadline;
    int in_slices;

    PyTypeObject *array_type;
    int array_layout; /* 1: NumPy 1.x, 2: 2.x */
    int64_t array_bytes;
    double array_bytes_estimated;
    ll_table *owners;  /* data address -> bytes, of arrays that have other references */
    ll_table *foreign; /* address of an object that owns the memory of arrays -> bytes of the largest */

    int64_t floor;
    large_object large[LARGE];
    int large_count;

    PyObject *picked; /* an untracked list, so that no walk visits it */
    Py_ssize_t found, found_most;
    Py_ssize_t visited;
    int enters;
    int failed; /* no memory */
} census;

/* -- types */

static kind *
kind_at(const census *self, const void *type)
{
    size_t mask = ((size_t)1 << self->kind_bits) - 1;
    size_t i = (size_t)(((uint64_t)(uintptr_t)type * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - self->kind_bits));
    while (self->kinds[i].type != NULL && self->kinds[i].type != type) {
        i = (i + 1) & mask;
    }
    return &self->kinds[i];
}

static void
learn(kind *one, PyTypeObject *type)
{
    one->type = type;
    one->is_entered = 1;
    if (type == &_PyNone_Type || type == &_PyNotImplemented_Type || type == &PyEllipsis_Type || type == &PyBool_Type
        || type == &PyRange_Type || type == &PySlice_Type || type == &PyCode_Type) {
        one->as_referent = NOTHING;
    }
    else if (type == &PyTuple_Type || type == &PyDict_Type) {
        one->as_referent = FOLLOWED;
    }
    else {
        /* The collector tracks every object that it can, except for these two types. */
        one->as_referent = PyType_IS_GC(type) ? NOTHING : COUNTED;
    }
}

static int
more_kinds(census *self)
{
    size_t room = (size_t)1 << self->kind_bits;
    kind *old = self->kinds;
    kind *larger = ll_map(2 * room * sizeof(kind));
    if (larger == NULL) {
        return -1;
    }
    self->kinds = larger;
    self->kind_bits++;
    for (size_t i = 0; i < room; i++) {
        if (old[i].type != NULL) {
            *kind_at(self, old[i].type) = old[i];
        }
    }
    ll_unmap(old, room * sizeof(kind));
    return 0;
}

/* The result is valid until the next call. */
static inline kind *
kind_of(census *self, PyTypeObject *type)
{
    kind *one = kind_at(self, type);
    if (ll_likely(one->type != NULL)) {
        return one;
    }
    if (self->kind_count >= (size_t)1 << (self->kind_bits - 1)) {
        if (more_kinds(self) < 0) {
            self->failed = 1;
        }
        one = kind_at(self, type);
    }
    self->kind_count++;
    learn(one, type);
    return one;
}

/* -- bytes */

static Py_ssize_t
dict_bytes(PyObject *op)
{
    PyDictObject *dict = (PyDictObject *)op;
    PyDictKeysObject *keys = dict->ma_keys;
    size_t bytes = 0;
    if (dict->ma_values != NULL) {
        bytes += (size_t)(keys->dk_usable + keys->dk_nentries) * sizeof(PyObject *);
    }
    /* Keys shared by several dictionaries count for none of them. */
    if (keys->dk_refcnt == 1) {
        size_t entry = keys->dk_kind == DICT_KEYS_GENERAL ? sizeof(PyDictKeyEntry) : sizeof(PyDictUnicodeEntry);
        size_t usable = ((size_t)DK_SIZE(keys) << 1) / 3;
        bytes += sizeof(PyDictKeysObject) + ((size_t)1 << keys->dk_log2_index_bytes) + usable * entry;
    }
    return (Py_ssize_t)bytes;
}

/* The struct of `collections.deque`, as far as it is read. */
typedef struct deque_block {
    struct deque_block *left;
    PyObject *items[64];
    struct deque_block *right;
} deque_block;

typedef struct {
    PyObject_VAR_HEAD
    deque_block *left_block, *right_block;
    Py_ssize_t left_index, right_index;
} deque;

static Py_ssize_t
str_bytes(PyObject *op)
{
    if (PyUnicode_IS_COMPACT_ASCII(op)) {
        return (Py_ssize_t)sizeof(PyASCIIObject) + PyUnicode_GET_LENGTH(op) + 1;
    }
    if (PyUnicode_IS_COMPACT(op)) {
        return (Py_ssize_t)sizeof(PyCompactUnicodeObject) + (PyUnicode_GET_LENGTH(op) + 1) * (Py_ssize_t)PyUnicode_KIND(op);
    }
    return (Py_ssize_t)sizeof(PyUnicodeObject);
}

static Py_ssize_t
int_bytes(PyObject *op)
{
#if PY_VERSION_HEX >= 0x030C0000
    Py_ssize_t digits = (Py_ssize_t)(((PyLongObject *)op)->long_value.lv_tag >> 3);
    size_t header = offsetof(PyLongObject, long_value.ob_digit);
#else
    Py_ssize_t digits = Py_ABS(Py_SIZE(op));
    size_t header = offsetof(PyLongObject, ob_digit);
#endif
    return (Py_ssize_t)(header + (size_t)(digits ? digits : 1) * sizeof(digit));
}

/* Return the shallow bytes beyond those that every object of the type has; set `*length` to the items of a
   container. */
static inline Py_ssize_t
variable_bytes(PyObject *op, role as, Py_ssize_t *length)
{
    switch (as) {
    case LIST:
        *length = Py_SIZE(op);
        return ((PyListObject *)op)->allocated * (Py_ssize_t)sizeof(PyObject *);
    case TUPLE:
        *length = Py_SIZE(op);
        return Py_SIZE(op) * (Py_ssize_t)sizeof(PyObject *);
    case ODICT: {
        PyDictObject *dict = (PyDictObject *)op;
        *length = dict->ma_used;
        /* A node of four words for each entry, and a table of nodes as long as that of the keys. */
        return dict_bytes(op) + (Py_ssize_t)DK_SIZE(dict->ma_keys) * (dict->ma_used ? 8 : 0) + dict->ma_used * 32;
    }
    case DICT:
        *length = ((PyDictObject *)op)->ma_used;
        return dict_bytes(op);
    case SET: {
        PySetObject *set = (PySetObject *)op;
        *length = set->used;
        return set->table == set->smalltable ? 0 : (set->mask + 1) * (Py_ssize_t)sizeof(setentry);
    }
    case DEQUE: {
        deque *one = (deque *)op;
        *length = Py_SIZE(op);
        return (one->left_index + Py_SIZE(op) + 63) / 64 * (Py_ssize_t)sizeof(deque_block);
    }
    case BYTES:
        *length = Py_SIZE(op);
        return Py_SIZE(op);
    case BYTEARRAY:
        *length = Py_SIZE(op);
        return ((PyByteArrayObject *)op)->ob_alloc;
    case INT:
        return int_bytes(op) - Py_TYPE(op)->tp_basicsize;
    case STR:
        *length = PyUnicode_GET_LENGTH(op);
        return str_bytes(op) - Py_TYPE(op)->tp_basicsize;
    default:
        return 0;
    }
}

static inline Py_ssize_t
fixed_bytes(PyTypeObject *type)
{
    return type->tp_basicsize + (PyType_IS_GC(type) ? (Py_ssize_t)sizeof(PyGC_Head) : 0);
}

/* -- objects handed over */

static void
sift_down(large_object *heap, int count)
{
    for (int i = 0, child; (child = 2 * i + 1) < count; i = child) {
        if (child + 1 < count && heap[child + 1].bytes < heap[child].bytes) {
            child++;
        }
        if (heap[i].bytes <= heap[child].bytes) {
            break;
        }
        large_object lower = heap[i];
        heap[i] = heap[child];
        heap[child] = lower;
    }
}

/* Keep the largest objects in a heap whose first element is the smallest. */
static void
keep_large(census *self, large_object new)
{
    large_object *heap = self->large;
    if (self->large_count == LARGE) {
        /* Never drop the last reference: nothing may be freed during a walk. */
        PyObject *dtype = heap[0].dtype;
        if (new.bytes <= heap[0].bytes || (dtype != NULL && Py_REFCNT(dtype) == 1)) {
            return;
        }
        Py_XINCREF(new.dtype);
        Py_XDECREF(dtype);
        heap[0] = new;
        sift_down(heap, LARGE);
        return;
    }
    Py_XINCREF(new.dtype);
    int i = self->large_count++;
    heap[i] = new;
    for (int parent; i > 0 && heap[parent = (i - 1) / 2].bytes > heap[i].bytes; i = parent) {
        large_object upper = heap[parent];
        heap[parent] = heap[i];
        heap[i] = upper;
    }
}

static void
pick(census *self, kind *one, PyObject *op)
{
    if (one->picked >= one->limit || ll_unfinished(op) != LL_FINISHED) {
        return;
    }
    one->picked++;
    self->found++;
    if (PyList_Append(self->picked, op) < 0) {
        PyErr_Clear();
        self->failed = 1;
    }
}

/* -- arrays: the struct that NumPy has exposed to extensions since 1.7, checked on arrays made for the purpose */

typedef struct {
    PyObject_HEAD
    char *data;
    int dimensions;
    Py_ssize_t *shape, *strides;
    PyObject *base;
    PyObject *dtype;
} array;

typedef struct {
    PyObject_HEAD
    PyTypeObject *scalar;
    char kind, type, byteorder, flags;
    int number;
    int item_bytes;
} dtype_1;

typedef struct {
    PyObject_HEAD
    PyTypeObject *scalar;
    char kind, type, byteorder, unused;
    int number;
    uint64_t flags;
    Py_ssize_t item_bytes;
} dtype_2;

enum { OBJECTS_NUMBER = 17 };

static inline int64_t
array_bytes(const array *one, int layout)
{
    int64_t bytes = layout == 2 ? ((dtype_2 *)one->dtype)->item_bytes : ((dtype_1 *)one->dtype)->item_bytes;
    for (int i = 0; i < one->dimensions; i++) {
        bytes *= one->shape[i];
    }
    return bytes;
}

static inline int
holds_objects(const array *one)
{
    /* The number of a dtype is at the same place in both structs. */
    return ((dtype_1 *)one->dtype)->number == OBJECTS_NUMBER;
}

static void
keep_large_array(census *self, array *one, int64_t bytes)
{
    large_object large = {
        .bytes = bytes, .type = Py_TYPE(one), .dimensions = one->dimensions, .dtype = one->dtype};
    if (one->dimensions <= SHAPE_TOLD) {
        memcpy(large.shape, one->shape, (size_t)one->dimensions * sizeof *one->shape);
    }
    keep_large(self, large);
}

/* Defer a container to `follow_stack`: its referents are not entered while it is being counted. */
static void
stack_up(census *self, PyObject *container)
{
    if (self->depth == self->stack_room) {
        size_t room = self->stack_room ? 2 * self->stack_room : 1024;
        PyObject **larger = ll_map(room * sizeof(PyObject *));
        if (larger == NULL) {
            self->skipped++;
            self->failed = 1;
            return;
        }
        if (self->depth) {
            memcpy(larger, self->stack, self->depth * sizeof(PyObject *));
        }
        ll_unmap(self->stack, self->stack_room * sizeof(PyObject *));
        self->stack = larger;
        self->stack_room = room;
    }
    self->stack[self->depth++] = container;
}

static void
note_foreign(census *self, PyObject *owner, int64_t bytes)
{
    if (PyMemoryView_Check(owner) && PyMemoryView_GET_BASE(owner) != NULL) {
        owner = PyMemoryView_GET_BASE(owner);
        if (PyBytes_CheckExact(owner) || PyByteArray_CheckExact(owner)) {
            /* The view is on the collector's lists, so the owner was found through it and has its own row. */
            return;
        }
    }
    int64_t *largest = ll_table_at(self->foreign, owner);
    if (largest != NULL && *largest < bytes) {
        *largest = bytes;
    }
}

static void
enter_array(census *self, PyObject *op, double part)
{
    array *one = (array *)op;
    int64_t bytes = array_bytes(one, self->array_layout);
    if (one->base != NULL) {
        if (Py_TYPE(one->base) == self->array_type) {
            /* This view may be the only reference to its owner. */
            stack_up(self, op);
        }
        else if (!kind_of(self, Py_TYPE(one->base))->is_elsewhere) {
            note_foreign(self, one->base, bytes);
        }
        return;
    }
    if (part < 1) {
        self->array_bytes_estimated += part * (double)bytes;
        return;
    }
    self->array_bytes += bytes;
    if (bytes >= self->floor) {
        keep_large_array(self, one, bytes);
    }
    if (Py_REFCNT(op) > 1 && bytes > 0) {
        int64_t *known = ll_table_at(self->owners, one->data);
        if (known != NULL) {
            *known = bytes;
        }
    }
    if (holds_objects(one)) {
        stack_up(self, op);
    }
}

/* -- referents */

static double
chance(census *self)
{
    self->random = self->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(self->random >> 11) / (double)(UINT64_C(1) << 53);
}

static void
meet(census *self, PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    kind *one = kind_of(self, type);
    if (one->as_referent == NOTHING) {
        return;
    }
#if PY_VERSION_HEX >= 0x030C0000
    if (_Py_IsImmortal(op)) {
        return;
    }
#endif
    double part = 1;
    if (one->as_referent == FOLLOWED) {
        if (((PyGC_Head *)op - 1)->_gc_next != 0) {
            return;
        }
        /* Between two slices the collector may have untracked an object that the walk has already counted. */
        if (self->in_slices && ll_walk_has_visited(self->walk, op)) {
            return;
        }
    }
    if (Py_REFCNT(op) > 1) {
        int is_new = ll_seen_add(self->seen, op);
        if (is_new == 0) {
            return;
        }
        if (is_new < 0) {
            part = 1.0 / (double)Py_REFCNT(op);
        }
    }
    if (ll_likely(part == 1)) {
        one->count++;
    }
    else {
        one->estimated += part;
    }
    if (one->limit) {
        pick(self, one, op);
    }
    if (one->role == PLAIN) {
        return;
    }
    if (one->role == ARRAY) {
        enter_array(self, op, part);
        return;
    }
    Py_ssize_t length = 0;
    Py_ssize_t bytes = variable_bytes(op, one->role, &length);
    one->bytes += part == 1 ? bytes : (Py_ssize_t)((double)bytes * part);
    if (bytes >= self->floor && one->role != INT) {
        keep_large(self, (large_object){.bytes = bytes + fixed_bytes(type), .type = type, .length = length});
    }
    /* Follow it once on average, however often it is found: otherwise nested containers would be followed forever. */
    if (one->as_referent == FOLLOWED && (part == 1 || chance(self) < part)) {
        stack_up(self, op);
    }
}

static void
meet_waiting(census *self)
{
    PyObject **waiting = self->waiting;
    size_t count = self->waiting_count;
    for (size_t i = 0; i < count; i++) {
        if (i + AHEAD < count) {
            ll_prefetch(waiting[i + AHEAD]);
        }
        meet(self, waiting[i]);
    }
    self->waiting_count = 0;
}

static void follow_stack(census *self);

/* Queue a referent; also used as a visitproc. */
static int
push(PyObject *op, void *ctx)
{
    census *self = ctx;
    self->waiting[self->waiting_count++] = op;
    if (ll_unlikely(self->waiting_count == WAITING)) {
        meet_waiting(self);
        if (self->depth > STACKED && self->nesting < NESTING) {
            self->nesting++;
            follow_stack(self);
            self->nesting--;
        }
    }
    return 0;
}

static inline void
push_items(census *self, PyObject **items, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        if (items[i] != NULL) {
            push(items[i], self);
        }
    }
}

/* Queue the owner of a view, or the items of an array of objects. */
static void
enter_items(census *self, array *one)
{
    if (one->base != NULL) {
        push(one->base, self);
        return;
    }
    Py_ssize_t count = (Py_ssize_t)(array_bytes(one, self->array_layout) / (int64_t)sizeof(PyObject *));
    if (self->in_slices && count > ITEMS_AT_ONCE) {
        self->skipped += count - ITEMS_AT_ONCE;
        count = ITEMS_AT_ONCE;
    }
    self->followed += count;
    push_items(self, (PyObject **)one->data, count);
}

static void
push_entries(census *self, PyObject *dict, Py_ssize_t *position, Py_ssize_t most)
{
    PyObject *key, *value;
    while (most-- > 0 && PyDict_Next(dict, position, &key, &value)) {
        push(key, self);
        push(value, self);
    }
}

/* Queue the referents of an untracked container. */
static void
enter_untracked(census *self, PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    if (type == self->array_type) {
        enter_items(self, (array *)op);
        return;
    }
    Py_ssize_t length = type == &PyTuple_Type ? Py_SIZE(op) : ((PyDictObject *)op)->ma_used;
    self->followed++;
    if (self->in_slices && length > ITEMS_AT_ONCE) {
        self->skipped += length - ITEMS_AT_ONCE;
        self->followed += ITEMS_AT_ONCE;
        length = ITEMS_AT_ONCE;
    }
    if (type == &PyTuple_Type) {
        push_items(self, ((PyTupleObject *)op)->ob_item, length);
    }
    else if (length == ITEMS_AT_ONCE) {
        Py_ssize_t position = 0;
        push_entries(self, op, &position, length);
    }
    else {
        type->tp_traverse(op, push, self);
    }
}

/* Enter containers until both the stack and the queue are empty. */
static void
follow_stack(census *self)
{
    do {
        while (self->depth) {
            enter_untracked(self, self->stack[--self->depth]);
        }
        meet_waiting(self);
    } while (self->depth);
}

/* -- tracked objects */

static Py_ssize_t
push_set(census *self, PySetObject *set, Py_ssize_t position, Py_ssize_t most)
{
    Py_ssize_t end = position + most;
    if (end > set->mask + 1) {
        end = set->mask + 1;
    }
    for (; position < end; position++) {
        setentry *entry = &set->table[position];
        /* A removed entry has the hash -1 and a constant as its key. */
        if (entry->key != NULL && entry->hash != -1) {
            push(entry->key, self);
        }
    }
    return position <= set->mask ? position : -1;
}

static Py_ssize_t
push_deque(census *self, deque *one, Py_ssize_t position, Py_ssize_t most)
{
    if (position >= Py_SIZE(one)) {
        /* The deque got shorter between two slices, so the blocks after its end do not exist. */
        return -1;
    }
    Py_ssize_t end = position + most < Py_SIZE(one) ? position + most : Py_SIZE(one);
    Py_ssize_t at = one->left_index + position;
    deque_block *block = one->left_block;
    for (Py_ssize_t i = 0; i < at / 64; i++) {
        block = block->right;
    }
    for (Py_ssize_t i = position; i < end; i++, at++) {
        if (i > position && at % 64 == 0) {
            block = block->right;
            ll_prefetch(block->right);
        }
        push(block->items[at % 64], self);
    }
    return end < Py_SIZE(one) ? end : -1;
}

/* Queue at most `most` items from a position on; return the position of the rest, or -1 if there is none. */
static Py_ssize_t
push_some(census *self, PyObject *op, role as, Py_ssize_t position, Py_ssize_t most)
{
    switch (as) {
    case LIST:
    case TUPLE: {
        PyObject **items = as == LIST ? ((PyListObject *)op)->ob_item : ((PyTupleObject *)op)->ob_item;
        Py_ssize_t end = position + most < Py_SIZE(op) ? position + most : Py_SIZE(op);
        if (position < end) {
            push_items(self, items + position, end - position);
        }
        return end < Py_SIZE(op) ? end : -1;
    }
    case SET:
        return push_set(self, (PySetObject *)op, position, most);
    case DEQUE:
        return push_deque(self, (deque *)op, position, most);
    default: {
        Py_ssize_t begun = position;
        push_entries(self, op, &position, most);
        return position - begun < most ? -1 : position;
    }
    }
}

static int
visit_big(census *self, PyObject *op, role as)
{
    while (self->big_position >= 0) {
        self->big_position = push_some(self, op, as, self->big_position, BIG_ITEMS);
        follow_stack(self);
        if (self->big_position >= 0 && (ll_now() > self->deadline || self->found >= self->found_most)) {
            return LL_AGAIN;
        }
    }
    self->big = NULL;
    return self->found >= self->found_most;
}

static inline void
note_bytes(census *self, kind *one, PyObject *op, Py_ssize_t *length)
{
    Py_ssize_t bytes = variable_bytes(op, one->role, length);
    one->bytes += bytes;
    if (bytes >= self->floor) {
        keep_large(self, (large_object){.bytes = bytes + fixed_bytes(one->type), .type = one->type, .length = *length});
    }
}

/* Prefetch what is read when the object is entered, a few objects from now. */
static inline void
prefetch_contents(PyObject *op, role as)
{
    switch (as) {
    case LIST:
        ll_prefetch(((PyListObject *)op)->ob_item);
        break;
    case DICT:
    case ODICT:
        ll_prefetch(((PyDictObject *)op)->ma_keys);
        ll_prefetch((char *)((PyDictObject *)op)->ma_keys + 64);
        ll_prefetch(((PyDictObject *)op)->ma_values);
        break;
    case SET:
        ll_prefetch(((PySetObject *)op)->table);
        ll_prefetch((char *)op + 128);
        break;
    case DEQUE:
        ll_prefetch(((deque *)op)->left_block);
        break;
    case PLAIN: {
        PyTypeObject *type = Py_TYPE(op);
#ifdef Py_TPFLAGS_MANAGED_DICT
        if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
            /* This points to the attributes or their dictionary; the lowest bit may be a flag. */
            ll_prefetch((void *)((uintptr_t *)op)[-3]);
#if PY_VERSION_HEX < 0x030C0000
            ll_prefetch((void *)((uintptr_t *)op)[-4]);
#endif
        }
#endif
        ll_prefetch((char *)op + type->tp_basicsize);
        break;
    }
    default:
        break;
    }
}

static void
enter(census *self, PyObject *op, role as)
{
    PyTypeObject *type = Py_TYPE(op);
    Py_ssize_t length = 0;
    if (as == DICT || as == ODICT) {
        /* This is done only now, because the size of a dictionary is read from its keys. */
        note_bytes(self, kind_of(self, type), op, &length);
    }
    if (as == LIST) {
        push_items(self, ((PyListObject *)op)->ob_item, Py_SIZE(op));
    }
    else if (as == TUPLE) {
        push_items(self, ((PyTupleObject *)op)->ob_item, Py_SIZE(op));
    }
    else {
        type->tp_traverse(op, push, self);
    }
}

/* Take the oldest object out of the ring and enter it; put another in its place, NULL for none. */
static inline void
turn(census *self, PyObject *op, role as)
{
    unsigned at = self->entering_at;
    PyObject *oldest = self->entering[at];
    role oldest_as = self->entering_as[at];
    self->entering[at] = op;
    self->entering_as[at] = (uint8_t)as;
    self->entering_at = (at + 1) % ENTERING;
    if (oldest != NULL) {
        enter(self, oldest, oldest_as);
    }
}

static void
finish(census *self)
{
    for (int i = 0; i < ENTERING; i++) {
        turn(self, NULL, PLAIN);
    }
    follow_stack(self);
}

static int
visit(PyObject *op, void *ctx)
{
    census *self = ctx;
    PyTypeObject *type = Py_TYPE(op);
    kind *one = kind_of(self, type);
    role as = one->role;
    if (ll_unlikely(self->big != NULL)) {
        if (op == self->big) {
            return visit_big(self, op, as);
        }
        /* The container was freed or moved between two slices. */
        self->big = NULL;
    }
    one->count++;
    self->visited++;
    if (one->limit) {
        pick(self, one, op);
    }
    if (!self->enters) {
        return self->failed;
    }
    if (as != PLAIN) {
        Py_ssize_t length = as == DICT || as == ODICT ? ((PyDictObject *)op)->ma_used : 0;
        if (as != DICT && as != ODICT) {
            note_bytes(self, one, op, &length);
        }
        if (self->in_slices && length > BIG_ITEMS && one->is_entered) {
            if (as == DICT || as == ODICT) {
                note_bytes(self, one, op, &length);
            }
            self->big = op;
            self->big_position = 0;
            return visit_big(self, op, as);
        }
    }
    if (one->is_entered) {
        prefetch_contents(op, as);
        turn(self, op, as);
    }
    return self->found >= self->found_most || self->failed;
}

/* -- the Python object */

static void
clear_large(census *self)
{
    while (self->large_count) {
        Py_XDECREF(self->large[--self->large_count].dtype);
    }
}

static void
dealloc(PyObject *op)
{
    census *self = (census *)op;
    PyTypeObject *type = Py_TYPE(op);
    ll_walk_free(self->walk);
    ll_seen_free(self->seen);
    ll_table_free(self->owners);
    ll_table_free(self->foreign);
    if (self->kinds != NULL) {
        ll_unmap(self->kinds, ((size_t)1 << self->kind_bits) * sizeof(kind));
    }
    ll_unmap(self->stack, self->stack_room * sizeof(PyObject *));
    clear_large(self);
    if (self->picked != NULL) {
        PyObject_GC_Track(self->picked);
        Py_DECREF(self->picked);
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

static int
read_roles(census *self, PyObject *roles)
{
    PyObject *type, *number;
    Py_ssize_t position = 0;
    while (PyDict_Next(roles, &position, &type, &number)) {
        long as = PyLong_AsLong(number);
        if (as < 0 || as >= ROLES || !PyType_Check(type)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "a role must be a type and one of the numbers of `roles`");
            }
            return -1;
        }
        kind_of(self, (PyTypeObject *)type)->role = (uint8_t)as;
        if (as == ARRAY) {
            self->array_type = (PyTypeObject *)type;
        }
    }
    return 0;
}

static int
read_picks(census *self, PyObject *picks)
{
    PyObject *type, *limit;
    Py_ssize_t position = 0;
    while (PyDict_Next(picks, &position, &type, &limit)) {
        long most = PyLong_AsLong(limit);
        if (most < 0 || most > INT32_MAX || !PyType_Check(type)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_ValueError, "a pick must be a type and a number of objects");
            }
            return -1;
        }
        kind_of(self, (PyTypeObject *)type)->limit = (int32_t)most;
    }
    return 0;
}

/* Return a list that is untracked until it is handed over, so that the walk does not count it. */
static PyObject *
new_picked(void)
{
    PyObject *list = PyList_New(0);
    if (list != NULL) {
        PyObject_GC_UnTrack(list);
    }
    return list;
}

static int
read_types(census *self, PyObject *types, size_t field, uint8_t value)
{
    PyObject *sequence = PySequence_Fast(types, "types must be a sequence");
    if (sequence == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence); i++) {
        kind *one = kind_of(self, (PyTypeObject *)PySequence_Fast_GET_ITEM(sequence, i));
        *((uint8_t *)one + field) = value;
    }
    Py_DECREF(sequence);
    return 0;
}

static PyObject *
new_census(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"roles", "picks", "not_entered", "elsewhere", "array_layout", "floor", "in_slices", "enters", "seen_bytes", NULL};
    PyObject *roles, *picks, *not_entered, *elsewhere;
    int layout, in_slices, enters = 1;
    Py_ssize_t seen_bytes = (Py_ssize_t)LL_SEEN_BYTES;
    long long floor;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!OOiLp|pn", names, &PyDict_Type, &roles, &PyDict_Type, &picks,
                                     &not_entered, &elsewhere, &layout, &floor, &in_slices, &enters, &seen_bytes)) {
        return NULL;
    }
    census *self = (census *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->kind_bits = 12;
    self->kinds = ll_map(((size_t)1 << self->kind_bits) * sizeof(kind));
    self->seen = ll_seen_new((size_t)seen_bytes);
    self->owners = ll_table_new(BUFFERS_BYTES);
    self->foreign = ll_table_new(BUFFERS_BYTES);
    self->array_layout = layout;
    self->floor = floor;
    self->in_slices = in_slices;
    self->enters = enters;
    self->found_most = PY_SSIZE_T_MAX;
    if (self->kinds == NULL || self->seen == NULL || self->owners == NULL || self->foreign == NULL) {
        PyErr_NoMemory();
        Py_DECREF(self);
        return NULL;
    }
    if (read_roles(self, roles) < 0 || read_picks(self, picks) < 0
        || read_types(self, not_entered, offsetof(kind, is_entered), 0) < 0
        || read_types(self, elsewhere, offsetof(kind, is_elsewhere), 1) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    self->picked = new_picked();
    self->walk = self->picked == NULL ? NULL : ll_walk_new();
    if (self->walk == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static PyObject *
step(PyObject *op, PyObject *args)
{
    census *self = (census *)op;
    long long nanoseconds;
    Py_ssize_t most = PY_SSIZE_T_MAX;
    if (!PyArg_ParseTuple(args, "L|n", &nanoseconds, &most)) {
        return NULL;
    }
    self->deadline = nanoseconds < 0 ? INT64_MAX : ll_now() + nanoseconds;
    self->found = 0;
    self->found_most = most;
    int done = ll_walk_slice(self->walk, nanoseconds, visit, self);
    finish(self);
    if (self->failed) {
        return PyErr_NoMemory();
    }
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* Walk in one piece; return the number of objects left out at the deadline. */
static PyObject *
run(PyObject *op, PyObject *args)
{
    census *self = (census *)op;
    long long nanoseconds;
    PyObject *seeds;
    if (!PyArg_ParseTuple(args, "LO!", &nanoseconds, &PyList_Type, &seeds)) {
        return NULL;
    }
    self->found = 0;
    self->found_most = PY_SSIZE_T_MAX;
    Py_ssize_t left_out;
    int done = ll_walk_all(nanoseconds, visit, self, seeds, &left_out);
    finish(self);
    if (self->failed) {
        return PyErr_NoMemory();
    }
    return done < 0 ? NULL : PyLong_FromSsize_t(left_out);
}

static PyObject *
follow(PyObject *op, PyObject *objects)
{
    census *self = (census *)op;
    if (!PyList_CheckExact(objects)) {
        PyErr_SetString(PyExc_TypeError, "follow() takes a list");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects); i++) {
        push(PyList_GET_ITEM(objects, i), self);
    }
    follow_stack(self);
    Py_RETURN_NONE;
}

static PyObject *
take_picked(PyObject *op, PyObject *Py_UNUSED(nothing))
{
    census *self = (census *)op;
    PyObject *taken = self->picked, *fresh = new_picked();
    if (fresh == NULL) {
        return NULL;
    }
    self->picked = fresh;
    PyObject_GC_Track(taken);
    return taken;
}

static PyObject *
shape_of(const large_object *large)
{
    PyObject *shape = PyTuple_New(large->dimensions <= SHAPE_TOLD ? large->dimensions : 0);
    for (Py_ssize_t i = 0; shape != NULL && i < PyTuple_GET_SIZE(shape); i++) {
        PyObject *one = PyLong_FromSsize_t(large->shape[i]);
        if (one == NULL) {
            Py_CLEAR(shape);
            break;
        }
        PyTuple_SET_ITEM(shape, i, one);
    }
    return shape;
}

static PyObject *
row_of_large(const large_object *large)
{
    if (large->dtype == NULL) {
        return Py_BuildValue("(LOn)", (long long)large->bytes, (PyObject *)large->type, large->length);
    }
    return Py_BuildValue("(LO(iNO))", (long long)large->bytes, (PyObject *)large->type, large->dimensions, shape_of(large),
                         large->dtype);
}

static PyObject *
take_large(PyObject *op, PyObject *Py_UNUSED(nothing))
{
    census *self = (census *)op;
    PyObject *taken = PyList_New(0);
    for (int i = 0; taken != NULL && i < self->large_count; i++) {
        PyObject *row = row_of_large(&self->large[i]);
        if (row == NULL || PyList_Append(taken, row) < 0) {
            Py_CLEAR(taken);
        }
        Py_XDECREF(row);
    }
    clear_large(self);
    return taken;
}

static PyObject *
rows(PyObject *op, PyObject *Py_UNUSED(nothing))
{
    census *self = (census *)op;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < (size_t)1 << self->kind_bits; i++) {
        const kind *one = &self->kinds[i];
        long long count = one->count + (long long)(one->estimated + 0.5);
        if (one->type == NULL || count == 0) {
            continue;
        }
        PyObject *row = one->role == PLAIN || one->role == ARRAY
                            ? Py_BuildValue("(KLO)", (unsigned long long)(uintptr_t)one->type, count, Py_None)
                            : Py_BuildValue("(KLL)", (unsigned long long)(uintptr_t)one->type, count, (long long)one->bytes);
        if (row == NULL || PyList_Append(list, row) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    return list;
}

/* Return the bytes of arrays without those that own memory in `shared` (address -> bytes). */
static PyObject *
arrays(PyObject *op, PyObject *shared)
{
    census *self = (census *)op;
    int64_t bytes = self->array_bytes + (int64_t)self->array_bytes_estimated;
    if (!PyDict_CheckExact(shared)) {
        PyErr_SetString(PyExc_TypeError, "arrays() takes a dict");
        return NULL;
    }
    PyObject *address, *size;
    Py_ssize_t position = 0;
    while (PyDict_Next(shared, &position, &address, &size)) {
        uintptr_t at = (uintptr_t)PyLong_AsUnsignedLongLong(address);
        if (PyErr_Occurred()) {
            return NULL;
        }
        int64_t *known = at == 0 ? NULL : ll_table_find(self->owners, (const void *)at);
        if (known != NULL) {
            bytes -= *known;
        }
    }
    const void *owner;
    int64_t largest;
    size_t place = 0;
    while (ll_table_next(self->foreign, &place, &owner, &largest)) {
        /* Byte strings that were found have their own row. */
        if (!ll_seen_has(self->seen, owner)) {
            bytes += largest;
        }
    }
    return PyLong_FromLongLong(bytes);
}

static PyObject *
facts(PyObject *op, PyObject *Py_UNUSED(nothing))
{
    census *self = (census *)op;
    double counted = 0, estimated = 0, whole;
    for (size_t i = 0; i < (size_t)1 << self->kind_bits; i++) {
        counted += (double)self->kinds[i].count;
        estimated += self->kinds[i].estimated;
    }
    whole = counted + estimated > 0 ? counted / (counted + estimated) : 1;
    if (self->skipped > 0) {
        whole *= (double)self->followed / (double)(self->followed + self->skipped);
    }
    return Py_BuildValue("{s:n,s:i,s:N,s:d}",
                         "visited", self->visited,
                         "collections", ll_walk_collections(self->walk),
                         "is_whole", PyBool_FromLong(ll_walk_is_whole(self->walk)),
                         "coverage", whole);
}

static PyObject *
bytes_used(PyObject *op, void *Py_UNUSED(closure))
{
    census *self = (census *)op;
    return PyLong_FromSize_t(sizeof *self + ll_walk_bytes(self->walk) + ll_seen_bytes(self->seen)
                             + ll_table_bytes(self->owners) + ll_table_bytes(self->foreign)
                             + self->stack_room * sizeof(PyObject *)
                             + ((size_t)1 << self->kind_bits) * sizeof(kind));
}

static PyGetSetDef census_values[] = {
    {"bytes", bytes_used, NULL, "Return the bytes that the census allocates for itself.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef census_methods[] = {
    {"step", step, METH_VARARGS, "step(nanoseconds, most=...): continue, to the end if negative. Return True when done."},
    {"run", run, METH_VARARGS, "run(nanoseconds, seeds): run in one piece; return how many objects were skipped at the deadline."},
    {"follow", follow, METH_O, "Count the untracked objects of a list, and what they refer to."},
    {"take_picked", take_picked, METH_NOARGS, "Return the objects of `picks` that were found, and drop them."},
    {"take_large", take_large, METH_NOARGS, "[(bytes, type, length, or (dimensions, shape unless there are too many, dtype) of an array)] of the largest; "
     "forgets them."},
    {"rows", rows, METH_NOARGS, "[(address of the type, count, variable bytes or None)]"},
    {"arrays", arrays, METH_O, "Return the bytes of arrays, each buffer once, except those at the given addresses."},
    {"facts", facts, METH_NOARGS, "Return the statistics of the walk."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot census_slots[] = {
    {Py_tp_doc, "A census in progress. It keeps no reference to a type or an object after its results are taken."},
    {Py_tp_new, new_census},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, census_methods},
    {Py_tp_getset, census_values},
    {0, NULL},
};

static PyType_Spec census_spec = {
    .name = "leakline._native.Census",
    .basicsize = sizeof(census),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = census_slots,
};

/* -- for the self-tests */

static PyObject *
shallow_bytes(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *op;
    int as;
    if (!PyArg_ParseTuple(args, "Oi", &op, &as)) {
        return NULL;
    }
    Py_ssize_t length = 0;
    return PyLong_FromSsize_t(variable_bytes(op, (role)as, &length) + fixed_bytes(Py_TYPE(op)));
}

/* Return (bytes, base, data address, whether it holds objects) as read from the struct; for arrays only. */
static PyObject *
array_facts(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *op;
    int layout;
    if (!PyArg_ParseTuple(args, "Oi", &op, &layout)) {
        return NULL;
    }
    array *one = (array *)op;
    return Py_BuildValue("(LKKO)", (long long)array_bytes(one, layout), (unsigned long long)(uintptr_t)one->base,
                         (unsigned long long)(uintptr_t)one->data, holds_objects(one) ? Py_True : Py_False);
}

static PyMethodDef functions[] = {
    {"shallow_bytes", shallow_bytes, METH_VARARGS, "shallow_bytes(object, role): the size that sys.getsizeof should return."},
    {"array_facts", array_facts, METH_VARARGS, "array_facts(array, layout): (bytes, id of base, data address, objects)."},
    {NULL, NULL, 0, NULL},
};

static const char *const role_names[ROLES] = {
    "plain", "list", "tuple", "dict", "odict", "set", "deque", "bytes", "bytearray", "int", "str", "array",
};

int
ll_add_census(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&census_spec);
    if (type == NULL || PyModule_AddObjectRef(module, "Census", type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    Py_DECREF(type);
    PyObject *roles = PyDict_New();
    for (int i = 0; roles != NULL && i < ROLES; i++) {
        PyObject *number = PyLong_FromLong(i);
        if (number == NULL || PyDict_SetItemString(roles, role_names[i], number) < 0) {
            Py_CLEAR(roles);
        }
        Py_XDECREF(number);
    }
    if (roles == NULL || PyModule_AddObjectRef(module, "roles", roles) < 0) {
        Py_XDECREF(roles);
        return -1;
    }
    Py_DECREF(roles);
    return PyModule_AddFunctions(module, functions);
}
