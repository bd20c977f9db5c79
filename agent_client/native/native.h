/* Declarations shared by all files of `leakline._native`, the native part of leakline.

   It supports CPython 3.11 to 3.14 with the interpreter lock, on the main interpreter. Every function is called with
   the lock held, and none runs code of the program. */

#ifndef LEAKLINE_NATIVE_H
#define LEAKLINE_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "leakline._native supports CPython 3.11 to 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "leakline._native requires the GIL"
#endif
#if defined(PYPY_VERSION) || defined(GRAALVM_PYTHON)
#error "leakline._native supports only CPython"
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

/* -- module.c: each part adds its functions and types to the module and returns 0, or -1 with an exception set. */
int ll_add_walk(PyObject *module);
int ll_add_classes(PyObject *module);
int ll_add_errands(PyObject *module);
int ll_add_census(PyObject *module);
int ll_add_referrers(PyObject *module);
int ll_add_garbage(PyObject *module);

/* -- walk.c: a walk over the collector's lists in slices.

   Between slices the interpreter lock may be released and the program may run; the walk keeps its place with a bookmark
   object of its own in the list. Nothing that the program does meanwhile (allocate, free, collect, freeze) can break
   it. An object that lives from the first slice to the last is visited exactly once: the walk goes in the direction in
   which the collector moves objects, remembers which objects it has visited (in at most LL_SEEN_BYTES), and repeats
   lists that a full collection has reordered. Objects created meanwhile may be visited or not. The permanent generation
   (`gc.freeze`) is not walked. */
typedef struct ll_walk ll_walk;
/* A visitor must not run Python code, allocate objects that the collector tracks, or drop the last reference to an
   object. It returns 0 to continue, LL_AGAIN to end the slice and visit this object again at the start of the next (if
   it is alive and was not moved), or another value to end the slice after this object. */
typedef int (*ll_visit)(PyObject *op, void *ctx);
#define LL_AGAIN 2

ll_walk *ll_walk_new(void); /* NULL with an exception set on error */
/* Return 1 if finished, 0 if there is more, -1 with an exception set. With negative `nanoseconds`, walk to the end in
   one piece. While a collection runs (a finalizer's thread may call this), a slice does nothing and returns 0. */
int ll_walk_slice(ll_walk *walk, int64_t nanoseconds, ll_visit visit, void *ctx);
int ll_walk_collections(const ll_walk *walk); /* collections that ran since the walk began */
int ll_walk_is_whole(const ll_walk *walk);    /* after the end: 0 if objects may be missing or counted twice */
Py_ssize_t ll_walk_visited(const ll_walk *walk);
int ll_walk_has_visited(const ll_walk *walk, PyObject *op); /* only in a walk in slices, otherwise 0 */
size_t ll_walk_bytes(const ll_walk *walk);
void ll_walk_free(ll_walk *walk);

/* Walk over all objects in one piece and in no particular order, at a third of the cost. `seeds`, a list or NULL, are
   objects from which long containers of the program can be reached: the lists are cut at what is found below them, so
   that the parts can be walked side by side. Once `visit` returns other than 0, or after this much CPU time of the
   thread, the remaining objects are only counted, in `*left_out`. Return 1 if all objects were visited, 0 if not, -1
   with an exception set. */
int ll_walk_all(int64_t nanoseconds, ll_visit visit, void *ctx, PyObject *seeds, Py_ssize_t *left_out);

/* Walk backwards from the newest object in one piece; stop when `visit` returns other than 0, or at the deadline
   (negative: none). Return 1 if all objects were visited, 0 if the walk stopped, -1 with an exception set. */
int ll_walk_newest(int64_t nanoseconds, ll_visit visit, void *ctx);

int ll_is_tracked(PyObject *op); /* whether it is on a list of the collector; accepts any object */

/* Return whether this may be a tuple that is still being built. No reference to such a tuple may be taken: the code
   that builds it needs the only one (`_PyTuple_Resize`, `PyTuple_SetItem`), and otherwise raises SystemError in the
   program. LL_UNFINISHED: it is unfinished, because it has gaps. LL_DOUBTFUL: it may be unfinished, unless something
   refers to it. */
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

/* -- table.c: memory outside of Python's allocators, and the tables kept in it. */
void *ll_map(size_t bytes); /* zeroed; NULL: no memory (no exception) */
void ll_unmap(void *memory, size_t bytes);

/* A hash table with open addressing, from pointers (not NULL) to 64-bit values. */
typedef struct ll_table ll_table;
ll_table *ll_table_new(size_t max_bytes);                 /* NULL: no memory (no exception) */
int64_t *ll_table_find(const ll_table *table, const void *key); /* NULL when absent */
int64_t *ll_table_at(ll_table *table, const void *key);   /* adds the key with value 0 if absent; NULL when full */
size_t ll_table_bytes(const ll_table *table);
/* Continue from *position, which starts at 0; return 0 at the end. */
int ll_table_next(const ll_table *table, size_t *position, const void **key, int64_t *value);
void ll_table_free(ll_table *table);

/* A set of object addresses: one bit for each 16 bytes, stored only for pages of 16 KiB that contain any. */
#define LL_SEEN_BYTES ((size_t)16 << 20)
typedef struct ll_seen ll_seen;
ll_seen *ll_seen_new(size_t max_bytes);              /* NULL: no memory (no exception) */
int ll_seen_add(ll_seen *seen, const void *object);  /* 1: new, 0: known, -1: new, but no room for it */
int ll_seen_has(ll_seen *seen, const void *object);
size_t ll_seen_bytes(const ll_seen *seen);
void ll_seen_free(ll_seen *seen);

#endif
