/* The walk over the collector's lists. This is the only file that depends on their layout.

   Each object that the collector tracks has two words before it: the links of a ring that ends at the head of a
   generation. The lowest two bits of a link are flags of the collector and are preserved. */

#define Py_BUILD_CORE 1
#include "native.h"

#include "internal/pycore_gc.h"
#include "internal/pycore_interp.h"

#include <time.h>

/* The headers of 3.14.0 to 3.14.4 (incremental collector) and from 3.14.5 on (generations again) differ, but modules
   built with either have the same name and are loaded by both. */
#ifdef _PyGC_NEXT_MASK_OLD_SPACE_1
#define INCREMENTAL 1
#else
#define INCREMENTAL 0
#endif

#define FLAGS ((uintptr_t)3)
#define LISTS 3

typedef struct _gc_runtime_state gc_state;

static inline gc_state *
state_of_collector(void)
{
    return &PyInterpreterState_Get()->gc;
}

static inline PyGC_Head *
head_of(gc_state *state, int list)
{
#if INCREMENTAL
    return list == 0 ? &state->young.head : &state->old[list - 1].head;
#else
    return &state->generations[list].head;
#endif
}

static inline PyGC_Head *
next_of(const PyGC_Head *gc)
{
    return (PyGC_Head *)(gc->_gc_next & ~FLAGS);
}

static inline PyGC_Head *
previous_of(const PyGC_Head *gc)
{
    return (PyGC_Head *)(gc->_gc_prev & ~FLAGS);
}

static inline PyGC_Head *
gc_of(PyObject *op)
{
    return (PyGC_Head *)op - 1;
}

static inline PyObject *
object_of(PyGC_Head *gc)
{
    return (PyObject *)(gc + 1);
}

/* Return true for any head, including that of the permanent generation: the collector may have moved the current object
   to another list. */
static inline int
is_head(const gc_state *state, const PyGC_Head *gc)
{
    return (uintptr_t)gc - (uintptr_t)state < sizeof *state;
}

int
ll_is_tracked(PyObject *op)
{
    return PyObject_IS_GC(op) && gc_of(op)->_gc_next != 0;
}

static inline int64_t
nanoseconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t
ll_now(void)
{
    return nanoseconds_of(CLOCK_MONOTONIC);
}

/* -- bookmarks: objects that refer to nothing and that we hold, so that a collection keeps them */

static int
traverse_bookmark(PyObject *Py_UNUSED(self), visitproc Py_UNUSED(visit), void *Py_UNUSED(arg))
{
    return 0;
}

static void
dealloc_bookmark(PyObject *self)
{
    PyObject_GC_Del(self);
}

static PyTypeObject bookmark_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "leakline._native.Bookmark",
    .tp_doc = "The current position of a walk over the collector's lists.",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_traverse = traverse_bookmark,
    .tp_dealloc = dealloc_bookmark,
};

/* Return true for bookmarks, and for objects that are being deallocated by a type that fails to untrack them: taking
   and dropping a reference to such an object would deallocate it twice. */
static inline int
is_left_out(PyObject *op)
{
    return ll_unlikely(Py_TYPE(op) == &bookmark_type || Py_REFCNT(op) <= 0);
}

static PyObject *
new_bookmark(void)
{
    /* The bookmark is not on a list yet. Python may run a collection here. */
    return PyObject_GC_New(PyObject, &bookmark_type);
}

static inline int
is_linked(PyObject *bookmark)
{
    return gc_of(bookmark)->_gc_next != 0;
}

static void
link_before(PyObject *bookmark, PyGC_Head *right, uintptr_t flags)
{
    PyGC_Head *gc = gc_of(bookmark), *left = previous_of(right);
    /* The flags of `_gc_next` identify the old space of an object, which is that of its neighbours. */
    gc->_gc_next = (uintptr_t)right | flags;
    gc->_gc_prev = (uintptr_t)left;
    left->_gc_next = (left->_gc_next & FLAGS) | (uintptr_t)gc;
    right->_gc_prev = (right->_gc_prev & FLAGS) | (uintptr_t)gc;
}

static void
unlink_bookmark(PyObject *bookmark)
{
    if (bookmark == NULL || !is_linked(bookmark)) {
        return;
    }
    PyGC_Head *gc = gc_of(bookmark), *left = previous_of(gc), *right = next_of(gc);
    left->_gc_next = (left->_gc_next & FLAGS) | (uintptr_t)right;
    right->_gc_prev = (right->_gc_prev & FLAGS) | (uintptr_t)left;
    gc->_gc_next = 0;
    gc->_gc_prev = 0;
}

/* -- the walk */

/* A collection of the oldest generation may reorder its list, which is then walked once more. */
enum { PASSES = 3 };

struct ll_walk {
    PyObject *place; /* before the object to visit next, while the program runs */
    PyObject *end;   /* after the last object of the list to visit: newer ones do not prolong the walk */
    PyObject *again; /* an address for comparison, never followed */
    ll_seen *seen;
    int order[LISTS];
    int list; /* index into `order`; -1: not begun */
    int pass;
    int is_done, is_lost, is_full;
    Py_ssize_t collections, full_collections;
    PyGC_Head *last_frozen; /* an address for comparison */
    int visited_space;
    Py_ssize_t visited;
};

static Py_ssize_t
collections_of(const gc_state *state)
{
    Py_ssize_t sum = 0;
    for (int i = 0; i < LISTS; i++) {
        sum += state->generation_stats[i].collections;
    }
    return sum;
}

ll_walk *
ll_walk_new(void)
{
    ll_walk *walk = PyMem_RawCalloc(1, sizeof *walk);
    if (walk == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    walk->place = new_bookmark();
    walk->end = walk->place == NULL ? NULL : new_bookmark();
    if (walk->end == NULL) {
        ll_walk_free(walk);
        return NULL;
    }
    walk->collections = collections_of(state_of_collector());
    walk->last_frozen = previous_of(&state_of_collector()->permanent_generation.head);
    walk->list = -1;
    return walk;
}

void
ll_walk_free(ll_walk *walk)
{
    if (walk == NULL) {
        return;
    }
    unlink_bookmark(walk->place);
    unlink_bookmark(walk->end);
    Py_XDECREF(walk->place);
    Py_XDECREF(walk->end);
    ll_seen_free(walk->seen);
    PyMem_RawFree(walk);
}

int
ll_walk_collections(const ll_walk *walk)
{
    return (int)(collections_of(state_of_collector()) - walk->collections);
}

int
ll_walk_is_whole(const ll_walk *walk)
{
    return walk->is_done && !walk->is_lost && !walk->is_full;
}

Py_ssize_t
ll_walk_visited(const ll_walk *walk)
{
    return walk->visited;
}

int
ll_walk_has_visited(const ll_walk *walk, PyObject *op)
{
    return walk->seen != NULL && ll_seen_has(walk->seen, op);
}

size_t
ll_walk_bytes(const ll_walk *walk)
{
    return walk->seen == NULL ? 0 : ll_seen_bytes(walk->seen);
}

/* Start a pass in the direction in which the collector moves objects, so that those it moves meanwhile are still
   ahead. */
static void
begin_pass(ll_walk *walk, gc_state *state)
{
#if INCREMENTAL
    int visited = state->visited_space & 1;
    walk->order[0] = 1 + (visited ^ 1);
    walk->order[1] = 0;
    walk->order[2] = 1 + visited;
    walk->visited_space = visited;
#else
    for (int i = 0; i < LISTS; i++) {
        walk->order[i] = i;
    }
#endif
    walk->full_collections = state->generation_stats[LISTS - 1].collections;
    walk->list = -1;
    walk->pass++;
}

static int
order_changed(const ll_walk *walk, const gc_state *state)
{
#if INCREMENTAL
    if (walk->visited_space != (state->visited_space & 1)) {
        return 1;
    }
#endif
    return walk->full_collections != state->generation_stats[LISTS - 1].collections;
}

/* Return the first object of the next list that is not empty, or NULL at the end of the walk. */
static PyGC_Head *
next_list(ll_walk *walk, gc_state *state, int in_slices)
{
    unlink_bookmark(walk->end);
    for (;;) {
        if (walk->pass == 0) {
            begin_pass(walk, state);
        }
        while (++walk->list < LISTS) {
            PyGC_Head *head = head_of(state, walk->order[walk->list]);
            PyGC_Head *first = next_of(head);
            if (first == head) {
                continue;
            }
            if (in_slices) {
                link_before(walk->end, head, previous_of(head)->_gc_next & FLAGS);
            }
            return first;
        }
        if (!in_slices || !order_changed(walk, state)) {
            return NULL;
        }
        if (walk->pass == PASSES || walk->is_full) {
            walk->is_lost = 1;
            return NULL;
        }
        begin_pass(walk, state);
    }
}

int
ll_walk_slice(ll_walk *walk, int64_t nanoseconds, ll_visit visit, void *ctx)
{
    gc_state *state = state_of_collector();
    int64_t deadline = nanoseconds < 0 ? INT64_MAX : ll_now() + nanoseconds;
    if (walk->is_done) {
        return 1;
    }
    if (nanoseconds >= 0) {
        if (state->collecting) {
            return 0;
        }
        if (walk->pass == 0 && walk->seen == NULL) {
            walk->seen = ll_seen_new(LL_SEEN_BYTES);
            if (walk->seen == NULL) {
                PyErr_NoMemory();
                return -1;
            }
        }
    }
    int in_slices = walk->seen != NULL;
    PyGC_Head *gc = NULL;
    if (is_linked(walk->place)) {
        gc = next_of(gc_of(walk->place));
        unlink_bookmark(walk->place);
    }
    if (gc == NULL || object_of(gc) != walk->again) {
        walk->again = NULL;
    }
    PyGC_Head *end = gc_of(walk->end);
    int stopped = 0;
    for (unsigned steps = 0;; steps++) {
        if (gc == NULL || gc == end || is_head(state, gc)) {
            gc = next_list(walk, state, in_slices);
            if (gc == NULL) {
                /* `gc.freeze` may have emptied the lists before the walk was complete. */
                walk->is_lost |= previous_of(&state->permanent_generation.head) != walk->last_frozen;
                walk->is_done = 1;
                return 1;
            }
        }
        if (stopped || ((steps & 63) == 63 && deadline != INT64_MAX && ll_now() > deadline)) {
            link_before(walk->place, gc, gc->_gc_next & FLAGS);
            return 0;
        }
        PyGC_Head *next = next_of(gc);
        PyObject *op = object_of(gc);
        ll_prefetch(next);
        gc = next;
        if (is_left_out(op)) {
            continue;
        }
        if (op == walk->again) {
            walk->again = NULL;
        }
        else {
            if (in_slices) {
                int is_new = ll_seen_add(walk->seen, op);
                if (is_new == 0) {
                    continue;
                }
                walk->is_full |= is_new < 0;
            }
            walk->visited++;
        }
        stopped = visit(op, ctx);
        if (stopped == LL_AGAIN) {
            walk->again = op;
            gc = gc_of(op);
        }
    }
}

/* -- the walk in one piece

   Following one link after the other would wait for memory at each. The lists are therefore cut at objects that are
   known to be on them, and the parts are walked in turns while the next objects of all parts are loaded into the
   cache. */

enum { LANES = 32, CUTS = 512, CUT_SLOTS = 2048, HOPS = 6, ITEMS_LOOKED_AT = 4096 };

typedef struct {
    PyGC_Head *slots[CUT_SLOTS]; /* open addressing */
    PyGC_Head *starts[CUTS];
    unsigned count, taken;
    uint64_t random;
} cuts;

static inline unsigned
slot_of(const PyGC_Head *gc)
{
    return (unsigned)(((uint64_t)(uintptr_t)gc * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - 11));
}

static inline int
is_cut(const cuts *at, const PyGC_Head *gc)
{
    for (unsigned i = slot_of(gc); at->slots[i] != NULL; i = (i + 1) % CUT_SLOTS) {
        if (at->slots[i] == gc) {
            return 1;
        }
    }
    return 0;
}

static void
cut_at(cuts *at, PyGC_Head *gc)
{
    if (at->count < CUTS && !is_cut(at, gc)) {
        unsigned i = slot_of(gc);
        while (at->slots[i] != NULL) {
            i = (i + 1) % CUT_SLOTS;
        }
        at->slots[i] = at->starts[at->count++] = gc;
    }
}

static inline uint64_t
any_number(cuts *at)
{
    at->random ^= at->random << 13;
    at->random ^= at->random >> 7;
    at->random ^= at->random << 17;
    return at->random;
}

typedef struct {
    cuts *at;
    PyObject *chosen;
    unsigned met;
} choice;

static int
choose(PyObject *op, void *arg)
{
    choice *of = arg;
    if (any_number(of->at) % ++of->met == 0) {
        of->chosen = op;
    }
    return of->met == ITEMS_LOOKED_AT;
}

/* Return a random referent of an object, or NULL if it has none. */
static PyObject *
any_referent(cuts *at, PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    if (type == &PyList_Type || type == &PyTuple_Type) {
        PyObject **items = type == &PyList_Type ? ((PyListObject *)op)->ob_item : ((PyTupleObject *)op)->ob_item;
        return Py_SIZE(op) > 0 ? items[any_number(at) % (uint64_t)Py_SIZE(op)] : NULL;
    }
    if (type == &PyDict_Type && ((PyDictObject *)op)->ma_used > 0) {
        Py_ssize_t position = (Py_ssize_t)(any_number(at) % (uint64_t)((PyDictObject *)op)->ma_used);
        PyObject *key, *value;
        return PyDict_Next(op, &position, &key, &value) ? value : NULL;
    }
    if (!PyObject_IS_GC(op)) {
        return NULL;
    }
    choice made = {.at = at};
    type->tp_traverse(op, choose, &made);
    return made.chosen;
}

/* Follow random references down from an object, and cut at the objects on the way: long containers lead everywhere. */
static void
cut_below(cuts *at, PyObject *from, int times)
{
    for (int i = 0; i < times; i++) {
        PyObject *op = from;
        for (int hop = 0; hop < HOPS && op != NULL; hop++) {
            if (ll_is_tracked(op) && Py_TYPE(op) != &bookmark_type && !PyType_Check(op)) {
                cut_at(at, gc_of(op));
            }
            op = any_referent(at, op);
        }
    }
}

static void
cut_lists(cuts *at, gc_state *state, PyObject *seeds)
{
    for (int i = 0; i < LISTS; i++) {
        PyGC_Head *head = head_of(state, i);
        if (next_of(head) != head) {
            cut_at(at, next_of(head));
        }
    }
    /* In these cases there may be tracked objects that are on none of the three lists. */
    PyGC_Head *permanent = &state->permanent_generation.head;
    if (seeds == NULL || state->collecting || next_of(permanent) != permanent) {
        return;
    }
    Py_ssize_t count = PyList_GET_SIZE(seeds);
    for (Py_ssize_t i = 0; i < count; i++) {
        cut_below(at, PyList_GET_ITEM(seeds, i), (int)(1 + 4 * CUTS / (HOPS * count)));
    }
}

int
ll_walk_all(int64_t nanoseconds, ll_visit visit, void *ctx, PyObject *seeds, Py_ssize_t *left_out)
{
    gc_state *state = state_of_collector();
    int64_t deadline = nanoseconds < 0 ? INT64_MAX : nanoseconds_of(CLOCK_THREAD_CPUTIME_ID) + nanoseconds;
    cuts *at = PyMem_RawCalloc(1, sizeof *at);
    if (at == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    at->random = UINT64_C(88172645463325252);
    cut_lists(at, state, seeds);
    PyGC_Head *lanes[LANES];
    int open = 0, is_over = 0;
    for (; open < LANES && at->taken < at->count; open++) {
        lanes[open] = at->starts[at->taken++];
    }
    *left_out = 0;
    for (unsigned rounds = 0; open > 0; rounds++) {
        for (int i = 0; i < open; i++) {
            PyGC_Head *gc = lanes[i], *next = next_of(gc);
            ll_prefetch(next);
            ll_prefetch((char *)next + 16);
            PyObject *op = object_of(gc);
            if (!is_left_out(op)) {
                if (is_over) {
                    ++*left_out;
                }
                else if (visit(op, ctx)) {
                    is_over = 1;
                }
            }
            if (is_head(state, next) || is_cut(at, next)) {
                if (at->taken < at->count) {
                    next = at->starts[at->taken++];
                }
                else {
                    next = lanes[--open];
                    if (i == open) {
                        break;
                    }
                    lanes[i--] = next;
                    continue;
                }
            }
            lanes[i] = next;
        }
        if ((rounds & 31) == 31 && !is_over && deadline != INT64_MAX && nanoseconds_of(CLOCK_THREAD_CPUTIME_ID) > deadline) {
            is_over = 1;
        }
    }
    PyMem_RawFree(at);
    return !is_over;
}

int
ll_walk_newest(int64_t nanoseconds, ll_visit visit, void *ctx)
{
    gc_state *state = state_of_collector();
    int64_t deadline = nanoseconds < 0 ? INT64_MAX : ll_now() + nanoseconds;
    int order[LISTS] = {0, 1, 2};
#if INCREMENTAL
    order[1] = 1 + (state->visited_space & 1);
    order[2] = 1 + (state->visited_space & 1 ^ 1);
#endif
    for (int i = 0; i < LISTS; i++) {
        PyGC_Head *head = head_of(state, order[i]);
        unsigned steps = 0;
        for (PyGC_Head *gc = previous_of(head); gc != head; gc = previous_of(gc), steps++) {
            ll_prefetch(previous_of(gc));
            PyObject *op = object_of(gc);
            if (is_left_out(op)) {
                continue;
            }
            if (visit(op, ctx)) {
                return 0;
            }
            if ((steps & 63) == 63 && deadline != INT64_MAX && ll_now() > deadline) {
                return 0;
            }
        }
    }
    return 1;
}

/* -- check that the lists are where the headers say */

static PyObject *
layout_is_known(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(nothing))
{
    gc_state *state = state_of_collector();
    /* The newest object is followed by the head of the youngest list; the interpreter links it without our headers. */
    PyObject *newest = new_bookmark();
    if (newest == NULL) {
        return NULL;
    }
    PyObject_GC_Track(newest);
    int is_known = next_of(gc_of(newest)) == head_of(state, 0) && previous_of(head_of(state, 0)) == gc_of(newest);
    PyObject_GC_UnTrack(newest);
    Py_DECREF(newest);
    for (int i = 0; i < LISTS && is_known; i++) {
        PyGC_Head *head = head_of(state, i);
        is_known = previous_of(next_of(head)) == head && next_of(previous_of(head)) == head;
    }
    return PyBool_FromLong(is_known);
}

static PyObject *
list_sizes(PyObject *Py_UNUSED(module), PyObject *limit)
{
    Py_ssize_t most = PyLong_AsSsize_t(limit);
    if (most == -1 && PyErr_Occurred()) {
        return NULL;
    }
    gc_state *state = state_of_collector();
    Py_ssize_t sizes[LISTS] = {0};
    for (int i = 0; i < LISTS; i++) {
        PyGC_Head *head = head_of(state, i);
        for (PyGC_Head *gc = next_of(head); gc != head && sizes[i] < most; gc = next_of(gc)) {
            sizes[i]++;
        }
    }
    return Py_BuildValue("(nnn)", sizes[0], sizes[1], sizes[2]);
}

static PyMethodDef methods[] = {
    {"layout_is_known", layout_is_known, METH_NOARGS,
     "Return True if the collector's lists are where the headers of the build place them."},
    {"list_sizes", list_sizes, METH_O,
     "Return the number of objects on each of the collector's three lists, counted up to a limit (3.14: young, old 0, old 1)."},
    {NULL, NULL, 0, NULL},
};

int
ll_add_walk(PyObject *module)
{
#if PY_MINOR_VERSION == 14
    if ((Py_Version >= 0x030E0500) != (PY_VERSION_HEX >= 0x030E0500)) {
        PyErr_SetString(PyExc_ImportError,
                        "leakline._native was compiled for the collector of another 3.14 release: rebuild it");
        return -1;
    }
#endif
    if (PyType_Ready(&bookmark_type) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, methods);
}
