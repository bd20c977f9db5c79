/* Referrers of objects, and instances of types.

   `ReferrerPass` visits every tracked object once, in slices, and finds out which targets it refers to;
   `referrers_among` does so for a few objects in one call. `InstancePass` counts the instances of some types and keeps
   a few of each, spread over their age; `newest_instances` takes the newest, from the young end of the heap.

   Targets are addresses for comparison and are never followed, so a target may be freed between two slices: the caller
   must know whether it is still the same object. Objects found are held, after a slice by weak references if their type
   supports them. Tuples and dicts that the collector does not track are searched on request, because no list contains
   them. A tuple that may still be being built is taken where something refers to it, not from the list. No code of the
   program runs except `tp_traverse`, which the collector calls as well. */

#include "native.h"

#include <stdlib.h>
#include <string.h>

/* Maximum nesting of containers that the collector does not track. */
#define UNTRACKED_DEPTH 4
#define LARGEST_SAMPLE 4096
#define MOST_TARGETS 16384
/* Memory for distinguishing instances of untracked types; when it is full, the count is a lower bound. */
#define DISTINCT_BYTES ((size_t)4 << 20)

/* -- addresses to search for: open addressing, behind a bitmap that rejects most other addresses. */

#define SIEVE_BITS 14
#define SIEVE_WORDS ((1u << SIEVE_BITS) / 64)

typedef struct {
    const void *address;
    int32_t position;
} place;

typedef struct {
    uint64_t sieve[SIEVE_WORDS];
    place *places;
    uint64_t mask;
} addresses;

static inline uint64_t
mixed(const void *address)
{
    return ((uint64_t)(uintptr_t)address >> 4) * UINT64_C(0x9E3779B97F4A7C15);
}

static void
addresses_free(addresses *set)
{
    free(set->places);
    set->places = NULL;
}

static inline int32_t
position_of(const addresses *set, const void *address)
{
    uint64_t hash = mixed(address);
    uint64_t bit = hash >> (64 - SIEVE_BITS);
    if (ll_likely(!(set->sieve[bit >> 6] >> (bit & 63) & 1))) {
        return -1;
    }
    for (uint64_t at = hash >> 20 & set->mask;; at = (at + 1) & set->mask) {
        if (set->places[at].address == address) {
            return set->places[at].position;
        }
        if (set->places[at].address == NULL) {
            return -1;
        }
    }
}

/* Fill the set from a list or tuple; an object that occurs twice gets its first position. Return -1 with an exception
   set. */
static int
addresses_fill(addresses *set, PyObject *sequence)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
    if (count > MOST_TARGETS) {
        PyErr_Format(PyExc_ValueError, "%zd targets are too many: at most %d", count, MOST_TARGETS);
        return -1;
    }
    uint64_t size = 16;
    while (size < 4 * (uint64_t)count) {
        size *= 2;
    }
    memset(set->sieve, 0, sizeof set->sieve);
    set->places = calloc(size, sizeof *set->places);
    if (set->places == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    set->mask = size - 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *one = PySequence_Fast_GET_ITEM(sequence, i);
        if (position_of(set, one) >= 0) {
            continue;
        }
        uint64_t hash = mixed(one), bit = hash >> (64 - SIEVE_BITS);
        set->sieve[bit >> 6] |= UINT64_C(1) << (bit & 63);
        uint64_t at = hash >> 20 & set->mask;
        while (set->places[at].address != NULL) {
            at = (at + 1) & set->mask;
        }
        set->places[at] = (place){one, (int32_t)i};
    }
    return 0;
}

/* -- pairs of (target, referrer) */

typedef struct {
    PyObject *referrer; /* or a weak reference to it */
    int32_t target;
    int32_t is_weak;
} pair;

typedef struct {
    addresses targets;
    pair *pairs;
    size_t count, limit;
    size_t strong_from; /* earlier pairs are held weakly, if their type allows it */
    int into_untracked;
    int is_given; /* the caller already holds the objects searched */
    int overflow; /* there were more than `limit`, or no memory for them */
    int depth;
    int is_doubtful; /* this may be a tuple that is being built, and is not taken here */
    PyObject *current;
    size_t current_from; /* the pairs of `current` begin here */
} finder;

static void
note_pair(finder *f, int32_t target)
{
    if (ll_unfinished(f->current) == LL_UNFINISHED) {
        return;
    }
    /* A tuple may have been found below another object before, so all pairs are compared; we hold another reference to
       it since. */
    size_t from = Py_IS_TYPE(f->current, &PyTuple_Type) ? 0 : f->current_from;
    for (size_t i = from; i < f->count; i++) {
        if (f->pairs[i].target == target && f->pairs[i].referrer == f->current) {
            return;
        }
    }
    if (f->count == f->limit) {
        f->overflow = 1;
        return;
    }
    f->pairs[f->count++] = (pair){Py_NewRef(f->current), target, 0};
}

static inline int
is_untracked_container(PyObject *one)
{
    return (Py_IS_TYPE(one, &PyTuple_Type) || Py_IS_TYPE(one, &PyDict_Type)) && !ll_is_tracked(one);
}

static int
note_target(PyObject *one, void *ctx)
{
    finder *f = ctx;
    int32_t target = position_of(&f->targets, one);
    if (ll_unlikely(target >= 0)) {
        note_pair(f, target);
    }
    return 0;
}

/* Search an object that the current one refers to. */
static void
look_below(finder *f, PyObject *one, visitproc note)
{
    PyObject *outer = f->current;
    size_t outer_from = f->current_from;
    f->current = one;
    f->depth++;
    Py_TYPE(one)->tp_traverse(one, note, f);
    f->depth--;
    f->current = outer;
    f->current_from = outer_from;
}

static int
note_reference(PyObject *one, void *ctx)
{
    finder *f = ctx;
    if (!f->is_doubtful || f->depth > 0) {
        note_target(one, f);
    }
    if (f->into_untracked && f->depth < UNTRACKED_DEPTH && is_untracked_container(one)) {
        look_below(f, one, note_reference);
    }
    else if (f->depth == 0 && !f->is_given && ll_unfinished(one) == LL_DOUBTFUL) {
        look_below(f, one, note_target);
    }
    return 0;
}

static int
look_into(PyObject *one, void *ctx)
{
    finder *f = ctx;
    traverseproc traverse = Py_TYPE(one)->tp_traverse;
    if (traverse != NULL) {
        f->current = one;
        f->current_from = f->count;
        /* The referrer of such a tuple is searched too, and the tuple with it. */
        f->is_doubtful = !f->is_given && ll_unfinished(one) != LL_FINISHED;
        traverse(one, note_reference, f);
    }
    return 0;
}

static int
finder_init(finder *f, PyObject *targets, Py_ssize_t limit, int into_untracked)
{
    f->limit = limit < 1 ? 1 : (size_t)limit;
    f->into_untracked = into_untracked;
    f->pairs = calloc(f->limit, sizeof *f->pairs);
    if (f->pairs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return addresses_fill(&f->targets, targets);
}

static void
finder_clear(finder *f)
{
    pair *pairs = f->pairs;
    size_t count = f->count;
    f->pairs = NULL;
    f->count = 0;
    addresses_free(&f->targets);
    /* Released last, because this may run code of the program. */
    for (size_t i = 0; i < count; i++) {
        Py_DECREF(pairs[i].referrer);
    }
    free(pairs);
}

/* Return a new reference to the object of a weak reference, or NULL without an exception if the object is gone. */
static PyObject *
still_there(PyObject *weak)
{
    PyObject *one = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    if (PyWeakref_GetRef(weak, &one) < 0) {
        PyErr_Clear();
    }
#else
    one = PyWeakref_GetObject(weak);
    one = one == NULL || one == Py_None ? NULL : Py_NewRef(one);
#endif
    return one;
}

/* Hold objects weakly after a slice, so that none lives longer because it was found. Return -1 with an exception
   set. */
static int
hold_weakly(finder *f)
{
    for (; f->strong_from < f->count; f->strong_from++) {
        pair *found = &f->pairs[f->strong_from];
        PyObject *one = found->referrer;
        if (!PyType_SUPPORTS_WEAKREFS(Py_TYPE(one))) {
            continue;
        }
        PyObject *weak = PyWeakref_NewRef(one, NULL);
        if (weak == NULL) {
            return -1;
        }
        found->referrer = weak;
        found->is_weak = 1;
        Py_DECREF(one);
    }
    return 0;
}

static PyObject *
pairs_as_list(finder *f)
{
    PyObject *list = PyList_New(0);
    if (list == NULL) {
        return NULL;
    }
    /* The list is not allocated at full length, because a collection in between could expose it half filled. */
    for (size_t i = 0; i < f->count; i++) {
        PyObject *held = f->pairs[i].referrer;
        PyObject *one = f->pairs[i].is_weak ? still_there(held) : Py_NewRef(held);
        if (one == NULL) {
            continue;
        }
        PyObject *row = Py_BuildValue("iN", (int)f->pairs[i].target, one);
        if (row == NULL || PyList_Append(list, row) < 0) {
            Py_XDECREF(row);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(row);
    }
    return list;
}

static int64_t
as_nanoseconds(double seconds)
{
    return seconds < 0 ? -1 : seconds > 1e6 ? (int64_t)1e15 : (int64_t)(seconds * 1e9);
}

static PyObject *
as_sequence(PyObject *given)
{
    if (!PyList_CheckExact(given) && !PyTuple_CheckExact(given)) {
        PyErr_SetString(PyExc_TypeError, "expected a list or a tuple");
        return NULL;
    }
    return given;
}

PyDoc_STRVAR(referrers_among_doc,
"referrers_among(objects, targets, into_untracked=True)\n--\n\n"
"Return which objects refer to which targets: (pairs of (position of the target, referrer), True if complete).\n"
"A referrer is one of the objects, or an untracked container inside one.");

static PyObject *
referrers_among(PyObject *module, PyObject *args)
{
    PyObject *objects, *targets;
    int into_untracked = 1;
    Py_ssize_t limit = 8192;
    if (!PyArg_ParseTuple(args, "OO|pn", &objects, &targets, &into_untracked, &limit)
        || as_sequence(objects) == NULL || as_sequence(targets) == NULL) {
        return NULL;
    }
    finder f = {.is_given = 1};
    PyObject *answer = NULL;
    if (finder_init(&f, targets, limit, into_untracked) == 0) {
        Py_ssize_t count = PySequence_Fast_GET_SIZE(objects);
        for (Py_ssize_t i = 0; i < count; i++) {
            PyObject *one = PySequence_Fast_GET_ITEM(objects, i);
            /* The tp_traverse of an object without a collector header cannot be trusted. */
            if (PyObject_IS_GC(one)) {
                look_into(one, &f);
            }
        }
        PyObject *list = pairs_as_list(&f);
        if (list != NULL) {
            answer = Py_BuildValue("NO", list, f.overflow ? Py_False : Py_True);
        }
    }
    finder_clear(&f);
    return answer;
}

/* -- ReferrerPass */

typedef struct {
    PyObject_HEAD
    ll_walk *walk;
    int is_over;
    int is_whole;
    Py_ssize_t visited;
    finder found;
} referrer_pass;

static PyObject *
referrer_pass_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *targets;
    Py_ssize_t limit = 8192;
    int into_untracked = 1;
    static char *names[] = {"targets", "limit", "into_untracked", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|np", names, &targets, &limit, &into_untracked)
        || as_sequence(targets) == NULL) {
        return NULL;
    }
    referrer_pass *self = (referrer_pass *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (finder_init(&self->found, targets, limit, into_untracked) < 0
        || (self->walk = ll_walk_new()) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
referrer_pass_dealloc(referrer_pass *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->walk != NULL) {
        ll_walk_free(self->walk);
    }
    finder_clear(&self->found);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* Walk one slice; return 1 at the end, 0 if there is more, -1 on error. */
static int
walk_on(ll_walk **walk, double seconds, ll_visit visit, void *ctx, int *is_whole, Py_ssize_t *visited)
{
    int over = ll_walk_slice(*walk, as_nanoseconds(seconds), visit, ctx);
    if (over == 1) {
        *is_whole = ll_walk_is_whole(*walk);
        *visited = ll_walk_visited(*walk);
        ll_walk *done = *walk;
        *walk = NULL;
        ll_walk_free(done);
    }
    return over;
}

static PyObject *
referrer_pass_step(referrer_pass *self, PyObject *argument)
{
    double seconds = PyFloat_AsDouble(argument);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    if (!self->is_over) {
        int over = walk_on(&self->walk, seconds, look_into, &self->found, &self->is_whole, &self->visited);
        /* Set this first: the walk is already freed, whatever happens next. */
        self->is_over = over == 1;
        if (over < 0 || hold_weakly(&self->found) < 0) {
            return NULL;
        }
    }
    return PyBool_FromLong(self->is_over);
}

static PyObject *
referrer_pass_result(referrer_pass *self, PyObject *unused)
{
    PyObject *list = pairs_as_list(&self->found);
    if (list == NULL) {
        return NULL;
    }
    int is_whole = self->is_over && self->is_whole && !self->found.overflow;
    /* The list holds the referrers now. */
    finder_clear(&self->found);
    self->is_over = 1;
    return Py_BuildValue("NO", list, is_whole ? Py_True : Py_False);
}

static PyMethodDef referrer_pass_methods[] = {
    {"step", (PyCFunction)referrer_pass_step, METH_O,
     "step(seconds)\n--\n\nContinue for about this long (to the end if negative). Return True when done."},
    {"result", (PyCFunction)referrer_pass_result, METH_NOARGS,
     "result()\n--\n\nReturn (pairs of (position of the target, referrer), True if complete). Call it once."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot referrer_pass_slots[] = {
    {Py_tp_new, referrer_pass_new},
    {Py_tp_dealloc, referrer_pass_dealloc},
    {Py_tp_methods, referrer_pass_methods},
    {Py_tp_doc, "ReferrerPass(targets, limit=8192, into_untracked=True)\n--\n\n"
                "Find the referrers of the targets among all tracked objects. Holds them until `result` is called."},
    {0, NULL},
};

static PyType_Spec referrer_pass_spec = {
    .name = "leakline._native.ReferrerPass",
    .basicsize = sizeof(referrer_pass),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = referrer_pass_slots,
};

/* -- instances of some types, a few of each, spread over the order in which they are visited */

typedef struct {
    PyObject **kept; /* instances, or weak references to them */
    unsigned char *is_weak;
    size_t count, limit;
    uint64_t seen;
    uint64_t stride; /* one of this many in a row is kept, at random, because instances may come in a pattern */
    uint64_t next;   /* the number of the next instance to keep */
    uint64_t chance;
} sample;

typedef struct {
    addresses types;
    sample *samples;
    size_t types_count;
    int any_untracked;      /* at least one of the types is not tracked by the collector */
    int any_tuples;
    ll_seen *distinct;      /* instances of untracked types seen so far */
    PyObject **released;    /* removed during a slice, released after it */
    size_t released_count, released_room;
    int newest_only;        /* keep the first of each type, and stop when all have enough */
    size_t waiting;         /* types that do not have enough yet */
    int depth;
} picker;

static void
picker_clear(picker *p)
{
    addresses_free(&p->types);
    if (p->distinct != NULL) {
        ll_seen_free(p->distinct);
        p->distinct = NULL;
    }
    sample *samples = p->samples;
    size_t count = p->types_count;
    p->samples = NULL;
    p->types_count = 0;
    for (size_t i = 0; samples != NULL && i < count; i++) {
        for (size_t k = 0; k < samples[i].count; k++) {
            Py_XDECREF(samples[i].kept[k]);
        }
        free(samples[i].kept);
        free(samples[i].is_weak);
    }
    free(samples);
    PyObject **released = p->released;
    size_t released_count = p->released_count;
    p->released = NULL;
    p->released_count = p->released_room = 0;
    for (size_t i = 0; i < released_count; i++) {
        Py_DECREF(released[i]);
    }
    free(released);
}

static int
picker_init(picker *p, PyObject *types, Py_ssize_t each)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(types);
    if (each < 1 || each > LARGEST_SAMPLE) {
        PyErr_Format(PyExc_ValueError, "a sample must have 1 to %d instances, not %zd", LARGEST_SAMPLE, each);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *type = PySequence_Fast_GET_ITEM(types, i);
        if (!PyType_Check(type)) {
            PyErr_SetString(PyExc_TypeError, "expected types");
            return -1;
        }
        p->any_untracked |= !PyType_IS_GC((PyTypeObject *)type);
        /* Plain tuples and dicts may be tracked or not. */
        p->any_untracked |= type == (PyObject *)&PyTuple_Type || type == (PyObject *)&PyDict_Type;
        p->any_tuples |= type == (PyObject *)&PyTuple_Type;
    }
    if (addresses_fill(&p->types, types) < 0) {
        return -1;
    }
    p->samples = calloc((size_t)count + 1, sizeof *p->samples);
    p->distinct = p->any_untracked ? ll_seen_new(DISTINCT_BYTES) : NULL;
    if (p->samples == NULL || (p->any_untracked && p->distinct == NULL)) {
        PyErr_NoMemory();
        return -1;
    }
    p->types_count = (size_t)count;
    p->waiting = (size_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        sample *s = &p->samples[i];
        /* Twice as many, because every other one is dropped when the sample is full. */
        s->limit = p->newest_only ? (size_t)each : 2 * (size_t)each;
        s->stride = 1;
        s->chance = UINT64_C(0x2545F4914F6CDD1D) + (uint64_t)i;
        s->kept = calloc(s->limit, sizeof *s->kept);
        s->is_weak = calloc(s->limit, 1);
        if (s->kept == NULL || s->is_weak == NULL) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return 0;
}

/* Release an object after the slice: a reference dropped during a walk could be the last. Return 0 if there is no
   memory. */
static int
release_later(picker *p, PyObject *one)
{
    if (p->released_count == p->released_room) {
        size_t room = p->released_room ? 2 * p->released_room : 256;
        PyObject **moved = realloc(p->released, room * sizeof *moved);
        if (moved == NULL) {
            return 0;
        }
        p->released = moved;
        p->released_room = room;
    }
    p->released[p->released_count++] = one;
    return 1;
}

static uint64_t
by_chance(sample *s)
{
    s->chance ^= s->chance << 13;
    s->chance ^= s->chance >> 7;
    s->chance ^= s->chance << 17;
    return s->chance >> 11;
}

/* Keep one of every two instances; return 0 if there is no memory to release the others later. */
static int
thin_out(picker *p, sample *s)
{
    for (size_t left = 0; left < s->limit / 2; left++) {
        size_t kept = 2 * left + (by_chance(s) & 1), other = 4 * left + 1 - kept;
        PyObject *one = s->kept[kept], *given_up = s->kept[other];
        if (!release_later(p, given_up)) {
            /* The sample ends here and loses only its newest part. */
            return 0;
        }
        unsigned char is_weak = s->is_weak[kept];
        s->kept[kept] = s->kept[other] = NULL;
        s->kept[left] = one;
        s->is_weak[left] = is_weak;
    }
    s->count = s->limit / 2;
    s->stride *= 2;
    return 1;
}

static void
pick(picker *p, PyObject *one, int32_t position)
{
    sample *s = &p->samples[position];
    uint64_t number = s->seen++;
    if (p->newest_only) {
        if (s->count < s->limit) {
            s->kept[s->count++] = Py_NewRef(one);
            p->waiting -= s->count == s->limit;
        }
        return;
    }
    if (number % s->stride == 0) {
        if (s->count == s->limit && !thin_out(p, s)) {
            s->next = UINT64_MAX;
        }
        if (s->next != UINT64_MAX) {
            s->next = number + by_chance(s) % s->stride;
        }
    }
    if (number == s->next && s->count < s->limit) {
        s->is_weak[s->count] = 0;
        s->kept[s->count++] = Py_NewRef(one);
    }
}

static int
pick_untracked(PyObject *one, void *ctx)
{
    picker *p = ctx;
    if (ll_is_tracked(one) && !(p->any_tuples && ll_unfinished(one) == LL_DOUBTFUL)) {
        /* The walk itself visits this object. */
        return 0;
    }
    int32_t position = position_of(&p->types, Py_TYPE(one));
    if (ll_unlikely(position >= 0) && ll_seen_add(p->distinct, one) == 1) {
        pick(p, one, position);
    }
    if (p->depth < UNTRACKED_DEPTH && is_untracked_container(one)) {
        p->depth++;
        Py_TYPE(one)->tp_traverse(one, pick_untracked, p);
        p->depth--;
    }
    return 0;
}

static int
look_at(PyObject *one, void *ctx)
{
    picker *p = ctx;
    PyTypeObject *type = Py_TYPE(one);
    int32_t position = position_of(&p->types, type);
    if (ll_unlikely(position >= 0) && ll_unfinished(one) == LL_FINISHED
        && (type != &PyTuple_Type || ll_seen_add(p->distinct, one) == 1)) {
        pick(p, one, position);
    }
    if (ll_unlikely(p->any_untracked) && type->tp_traverse != NULL) {
        type->tp_traverse(one, pick_untracked, p);
    }
    return p->newest_only && p->waiting == 0;
}

/* After a slice, hold instances by weak references if possible, and release those dropped. Return -1 with an exception
   set. */
static int
settle(picker *p)
{
    for (size_t i = 0; i < p->types_count; i++) {
        sample *s = &p->samples[i];
        for (size_t k = 0; k < s->count; k++) {
            if (s->kept[k] == NULL || s->is_weak[k] || !PyType_SUPPORTS_WEAKREFS(Py_TYPE(s->kept[k]))) {
                continue;
            }
            PyObject *weak = PyWeakref_NewRef(s->kept[k], NULL);
            if (weak == NULL) {
                return -1;
            }
            if (!release_later(p, s->kept[k])) {
                Py_DECREF(weak);
                PyErr_NoMemory();
                return -1;
            }
            s->kept[k] = weak;
            s->is_weak[k] = 1;
        }
    }
    while (p->released_count) {
        PyObject *one = p->released[--p->released_count];
        Py_DECREF(one);
    }
    return 0;
}

/* Return a list of the instances that are alive, in the order in which they were visited. */
static PyObject *
kept_as_list(sample *s)
{
    PyObject *list = PyList_New(0);
    for (size_t k = 0; list != NULL && k < s->count; k++) {
        PyObject *one = NULL;
        if (s->kept[k] == NULL) {
            continue;
        }
        if (!s->is_weak[k]) {
            one = Py_NewRef(s->kept[k]);
        }
        else {
            one = still_there(s->kept[k]);
        }
        if (one != NULL && PyList_Append(list, one) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(one);
    }
    return list;
}

typedef struct {
    PyObject_HEAD
    ll_walk *walk;
    int is_over;
    int is_whole;
    Py_ssize_t visited;
    picker found;
} instance_pass;

static PyObject *
instance_pass_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *types;
    Py_ssize_t each = 10;
    static char *names[] = {"types", "each", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|n", names, &types, &each) || as_sequence(types) == NULL) {
        return NULL;
    }
    instance_pass *self = (instance_pass *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    if (picker_init(&self->found, types, each) < 0 || (self->walk = ll_walk_new()) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void
instance_pass_dealloc(instance_pass *self)
{
    PyTypeObject *type = Py_TYPE(self);
    if (self->walk != NULL) {
        ll_walk_free(self->walk);
    }
    picker_clear(&self->found);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static PyObject *
instance_pass_step(instance_pass *self, PyObject *argument)
{
    double seconds = PyFloat_AsDouble(argument);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    if (!self->is_over) {
        int over = walk_on(&self->walk, seconds, look_at, &self->found, &self->is_whole, &self->visited);
        if (over < 0) {
            return NULL;
        }
        /* Set this first: the walk is already freed, whatever happens next. */
        self->is_over = over;
        if (settle(&self->found) < 0) {
            return NULL;
        }
    }
    return PyBool_FromLong(self->is_over);
}

static PyObject *
instance_pass_result(instance_pass *self, PyObject *unused)
{
    PyObject *rows = PyList_New(0);
    for (size_t i = 0; rows != NULL && i < self->found.types_count; i++) {
        sample *s = &self->found.samples[i];
        PyObject *ones = kept_as_list(s);
        PyObject *row = ones == NULL ? NULL : Py_BuildValue("KN", (unsigned long long)s->seen, ones);
        if (row == NULL || PyList_Append(rows, row) < 0) {
            Py_CLEAR(rows);
        }
        Py_XDECREF(row);
    }
    return rows;
}

static PyMethodDef instance_pass_methods[] = {
    {"step", (PyCFunction)instance_pass_step, METH_O,
     "step(seconds)\n--\n\nContinue for about this long (to the end if negative). Return True when done."},
    {"result", (PyCFunction)instance_pass_result, METH_NOARGS,
     "result()\n--\n\nReturn (count, a sample from oldest to newest, of `each` to 2 * `each` instances) per type."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot instance_pass_slots[] = {
    {Py_tp_new, instance_pass_new},
    {Py_tp_dealloc, instance_pass_dealloc},
    {Py_tp_methods, instance_pass_methods},
    {Py_tp_doc, "InstancePass(types, each=10)\n--\n\n"
                "Counts the instances of exactly these types and keeps a sample of each, by weak references if they "
                "support them. Instances of untracked types are found through the tracked objects that refer to them."},
    {0, NULL},
};

static PyType_Spec instance_pass_spec = {
    .name = "leakline._native.InstancePass",
    .basicsize = sizeof(instance_pass),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = instance_pass_slots,
};

PyDoc_STRVAR(newest_instances_doc,
"newest_instances(types, each, seconds)\n--\n\n"
"Return the newest instances per type, newest first, as a list of lists; fewer if time runs out. Runs in one piece.");

static PyObject *
newest_instances(PyObject *module, PyObject *args)
{
    PyObject *types;
    Py_ssize_t each;
    double seconds;
    if (!PyArg_ParseTuple(args, "Ond", &types, &each, &seconds) || as_sequence(types) == NULL) {
        return NULL;
    }
    picker p = {.newest_only = 1};
    PyObject *rows = NULL;
    if (picker_init(&p, types, each) == 0 && ll_walk_newest(as_nanoseconds(seconds), look_at, &p) >= 0) {
        rows = PyList_New(0);
        for (size_t i = 0; rows != NULL && i < p.types_count; i++) {
            PyObject *ones = kept_as_list(&p.samples[i]);
            if (ones == NULL || PyList_Append(rows, ones) < 0) {
                Py_CLEAR(rows);
            }
            Py_XDECREF(ones);
        }
    }
    picker_clear(&p);
    return rows;
}

static PyMethodDef functions[] = {
    {"referrers_among", referrers_among, METH_VARARGS, referrers_among_doc},
    {"newest_instances", newest_instances, METH_VARARGS, newest_instances_doc},
    {NULL, NULL, 0, NULL},
};

static int
add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

int
ll_add_referrers(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0 || add_type(module, &referrer_pass_spec) < 0) {
        return -1;
    }
    return add_type(module, &instance_pass_spec);
}
