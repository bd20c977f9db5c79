/* The native part of leakline: what all files of `leakline._native` share.

   CPython 3.11 to 3.14 with the interpreter lock, on its main interpreter. Everything here is called with the lock
   held, and nothing here runs code of the program. */

#ifndef LEAKLINE_NATIVE_H
#define LEAKLINE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "leakline._native is made for CPython 3.11 to 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "leakline._native needs the interpreter lock"
#endif
#if defined(PYPY_VERSION) || defined(GRAALVM_PYTHON)
#error "leakline._native is made for CPython"
#endif

#if defined(__GNUC__) || defined(__clang__)
#define ll_likely(x) __builtin_expect(!!(x), 1)
#define ll_unlikely(x) __builtin_expect(!!(x), 0)
#define ll_prefetch(address) __builtin_prefetch(address)
#else
#define ll_likely(x) (x)
#define ll_unlikely(x) (x)
#define ll_prefetch(address) ((void)(address))
#endif

/* -- module.c: every part registers its functions and types with the module; 0, or -1 with an exception set. */
int ll_add_walk(PyObject *module);
int ll_add_classes(PyObject *module);
int ll_add_errands(PyObject *module);
int ll_add_census(PyObject *module);
int ll_add_referrers(PyObject *module);
int ll_add_garbage(PyObject *module);

/* -- walk.c: a walk over the collector's lists in slices.

   Between slices the interpreter lock may be released and the program runs; the walk keeps its place by a bookmark
   object of its own in the list. What the program does meanwhile (allocate, free, collect, freeze) cannot break it.
   An object that lives from the first slice to the last is visited exactly once: the walk goes in the direction in
   which the collector moves objects, remembers whom it has visited (never more than LL_SEEN_BYTES), and goes once
   more over lists that a full collection has put into another order. Objects made meanwhile are visited or not. The
   permanent generation (`gc.freeze`) is not walked. */
typedef struct ll_walk ll_walk;
/* Must not run Python code, allocate objects that the collector tracks, or drop the last reference to anything.
   0 goes on, LL_AGAIN ends the slice and comes to this object once more first thing in the next (if it lives and has
   not been moved), anything else ends the slice after this object. */
typedef int (*ll_visit)(PyObject *op, void *ctx);
#define LL_AGAIN 2

ll_walk *ll_walk_new(void); /* NULL with an exception set */
/* 1 finished, 0 more, -1 error with an exception set; with `nanoseconds` below zero to the end, in one piece.
   While a collection runs (we may be called by a finalizer's thread) a slice does nothing and returns 0. */
int ll_walk_slice(ll_walk *walk, int64_t nanoseconds, ll_visit visit, void *ctx);
int ll_walk_collections(const ll_walk *walk); /* collections that ran since the walk began */
int ll_walk_is_whole(const ll_walk *walk);    /* after the end: 0 when something may be missing or counted twice */
Py_ssize_t ll_walk_visited(const ll_walk *walk);
int ll_walk_has_visited(const ll_walk *walk, PyObject *op); /* in a walk in slices; else 0 */
size_t ll_walk_bytes(const ll_walk *walk);
void ll_walk_free(ll_walk *walk);

/* Everything in one piece and in no order, for a third of the price. `seeds`, a list or NULL, are objects from which
   long containers of the program can be reached: the lists are cut at what is found below them, so that their pieces
   can be walked side by side. Ends when `visit` returns other than 0 or after so much CPU time of this thread, and
   counts the rest to `*left_out`. 1 when all objects were visited, 0 when not, -1 error with an exception set. */
int ll_walk_all(int64_t nanoseconds, ll_visit visit, void *ctx, PyObject *seeds, Py_ssize_t *left_out);

/* Backwards from the newest object, in one piece; stops when `visit` returns other than 0, or at the deadline (below
   zero: none). 1 when all objects were visited, 0 when it stopped, -1 error with an exception set. */
int ll_walk_newest(int64_t nanoseconds, ll_visit visit, void *ctx);

int ll_is_tracked(PyObject *op); /* on a list of the collector: any object may be asked */

/* Whether this may be a tuple that is still being built, of which nobody may take a reference: whoever builds it needs
   to have the only one (`_PyTuple_Resize`, `PyTuple_SetItem`), and else gets a SystemError, in the program's code.
   LL_UNFINISHED it is, for it has gaps; LL_DOUBTFUL it may be, unless something refers to it. */
enum { LL_FINISHED, LL_DOUBTFUL, LL_UNFINISHED };
static inline int
ll_unfinished(PyObject *op)
{
    if (ll_likely(!Py_IS_TYPE(op, &PyTuple_Type)) || Py_REFCNT(op) != 1 || Py_SIZE(op) == 0) {
        return LL_FINISHED;
    }
    PyObject **items = ((PyTupleObject *)op)->ob_item;
    return items[0] == NULL || items[Py_SIZE(op) - 1] == NULL ? LL_UNFINISHED : LL_DOUBTFUL;
}

int64_t ll_now(void);            /* nanoseconds of the monotonic clock */

/* -- table.c: memory that Python's allocators know nothing of, and what is kept in it. */
void *ll_map(size_t bytes); /* zeroed; NULL when there is none (no exception) */
void ll_unmap(void *memory, size_t bytes);

/* Open addressing from a pointer (not NULL) to a 64-bit value. */
typedef struct ll_table ll_table;
ll_table *ll_table_new(size_t max_bytes);                 /* NULL: no memory (no exception) */
int64_t *ll_table_find(const ll_table *table, const void *key); /* NULL when absent */
int64_t *ll_table_at(ll_table *table, const void *key);   /* makes it, zero; NULL when the table is full */
size_t ll_table_bytes(const ll_table *table);
/* Goes on from *position (begin with 0); 0 at the end. */
int ll_table_next(const ll_table *table, size_t *position, const void **key, int64_t *value);
void ll_table_free(ll_table *table);

/* A set of addresses of objects: one bit for each 16 bytes, in pages of 16 KiB that hold any. */
#define LL_SEEN_BYTES ((size_t)16 << 20)
typedef struct ll_seen ll_seen;
ll_seen *ll_seen_new(size_t max_bytes);              /* NULL: no memory (no exception) */
int ll_seen_add(ll_seen *seen, const void *object);  /* 1 new, 0 known, -1 unknown and no room for it */
int ll_seen_has(ll_seen *seen, const void *object);
size_t ll_seen_bytes(const ll_seen *seen);
void ll_seen_free(ll_seen *seen);

#endif
