/* The classes the sampled census knows by their address, and what each says of where its objects lie in a block.

   Classes are held by weak references alone, the same ones that `__subclasses__` keeps: nothing is added to
   the reference counts that are read as numbers of instances elsewhere. */

#include "arenas.h"

#if CAN_SCAN

#include <string.h>

ll_kinds_known ll_kinds;

static void
enter_kind(uint32_t row)
{
    uint64_t hash = ll_scattered(ll_kinds.rows[row].address);
    uint32_t bit = hash >> (64 - SIEVE_BITS), mask = ll_kinds.room * 4 - 1;
    ll_kinds.sieve[bit >> 3] |= (uint8_t)(1 << (bit & 7));
    uint32_t at = (uint32_t)(hash >> 20) & mask;
    while (ll_kinds.slots[at] != 0) {
        at = (at + 1) & mask;
    }
    ll_kinds.slots[at] = row + 1;
}

static size_t
bytes_of_kinds(uint32_t room)
{
    return room * (sizeof(ll_kind) + sizeof(PyObject *) + 4 * sizeof(uint32_t)) + ((size_t)1 << (SIEVE_BITS - 3));
}

/* Makes room for so many rows, and drops the dead ones. */
static int
make_room(uint32_t wanted)
{
    uint32_t room = 1024;
    while (room < wanted) {
        room *= 2;
    }
    char *memory = ll_map(bytes_of_kinds(room));
    if (memory == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    ll_kind *old_rows = ll_kinds.rows;
    PyObject **old_owners = ll_kinds.owners;
    uint32_t old_count = ll_kinds.count, old_room = ll_kinds.room;
    ll_kinds.rows = (ll_kind *)memory;
    ll_kinds.owners = (PyObject **)(ll_kinds.rows + room);
    ll_kinds.slots = (uint32_t *)(ll_kinds.owners + room);
    ll_kinds.sieve = (uint8_t *)(ll_kinds.slots + 4 * (size_t)room);
    ll_kinds.room = room;
    ll_kinds.count = ll_kinds.dead = 0;
    for (uint32_t i = 0; i < old_count; i++) {
        if (old_rows[i].address != DEAD) {
            ll_kinds.rows[ll_kinds.count] = old_rows[i];
            ll_kinds.owners[ll_kinds.count] = old_owners[i];
            enter_kind(ll_kinds.count++);
        }
    }
    if (old_rows != NULL) {
        ll_unmap(old_rows, bytes_of_kinds(old_room));
    }
    return 0;
}

#define FLAG_INLINE_VALUES (1UL << 2) /* from 3.13 on; nothing before it */
#if PY_VERSION_HEX >= 0x030C0000
#define FLAGS_IN_FRONT ((1UL << 3) | (1UL << 4)) /* managed weak references, managed dict */
#else
#define FLAGS_IN_FRONT (1UL << 4)
#endif

int
ll_describe_kind(ll_kind *made, uint64_t address, unsigned long flags, int64_t basic, int64_t item, uint64_t alloc)
{
    int64_t place = (flags & Py_TPFLAGS_HAVE_GC ? 16 : 0) + (flags & FLAGS_IN_FRONT ? 16 : 0);
    int64_t block = (place + basic + 15) & ~INT64_C(15);
    *made = (ll_kind){.address = address, .place = (uint8_t)place};
    made->is_metaclass = (flags & Py_TPFLAGS_TYPE_SUBCLASS) != 0;
    if (address == (uintptr_t)&PyUnicode_Type) {
        /* A compact string is shorter than its class says. */
        made->block = (sizeof(PyASCIIObject) + 1 + 15) & ~(size_t)15;
        return 1;
    }
    if (basic < 16 || block > 512) {
        return 0;
    }
    made->block = (uint16_t)block;
    if (item == 0 && !(flags & FLAG_INLINE_VALUES) && alloc == (uintptr_t)PyType_GenericAlloc) {
        made->how = EXACTLY;
    }
    return 1;
}

static int
add_kind(PyTypeObject *cls)
{
    ll_kind made;
    /* Classes whose objects are too large are known, too: a class of classes can be one, and "known" saves asking. */
    ll_describe_kind(&made, (uintptr_t)cls, cls->tp_flags, cls->tp_basicsize, cls->tp_itemsize,
                     (uintptr_t)cls->tp_alloc);
    PyObject *owner = NULL;
    if (cls->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        /* The same object that the base class keeps for `__subclasses__`. */
        owner = PyWeakref_NewRef((PyObject *)cls, NULL);
        if (owner == NULL) {
            return -1;
        }
    }
    if (ll_kinds.count == ll_kinds.room && make_room(ll_kinds.count * 2) < 0) {
        Py_XDECREF(owner);
        return -1;
    }
    ll_kinds.rows[ll_kinds.count] = made;
    ll_kinds.owners[ll_kinds.count] = owner;
    enter_kind(ll_kinds.count++);
    return 0;
}

PyObject *
ll_owner_of(uint32_t row)
{
    PyObject *owner = ll_kinds.owners[row];
    if (ll_kinds.rows[row].address == DEAD) {
        return NULL;
    }
    if (owner == NULL) {
        return Py_NewRef((PyObject *)(uintptr_t)ll_kinds.rows[row].address);
    }
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *cls = NULL;
    return PyWeakref_GetRef(owner, &cls) == 1 ? cls : NULL;
#else
    PyObject *cls = PyWeakref_GET_OBJECT(owner);
    return cls == Py_None ? NULL : Py_NewRef(cls);
#endif
}

/* A dead class' address may be that of another one soon. */
void
ll_bury_dead_kinds(void)
{
    for (uint32_t row = 0; row < ll_kinds.count; row++) {
        PyObject *owner = ll_kinds.owners[row];
        if (owner != NULL && ((PyWeakReference *)owner)->wr_object == Py_None) {
            ll_kinds.rows[row].address = DEAD;
            ll_kinds.owners[row] = NULL;
            ll_kinds.dead++;
            Py_DECREF(owner);
        }
    }
}

/* Every class there is, from `object` down; the collector waits, so that no code of the program runs in between. */
int
ll_learn_kinds(void)
{
    int result = -1, was_on = PyGC_Disable();
    ll_seen *seen = ll_seen_new(LL_SEEN_BYTES);
    PyObject *found = PyList_New(0);
    /* Through `type`: a metaclass may have its own `__subclasses__`. */
    PyObject *subclasses = PyObject_GetAttrString((PyObject *)&PyType_Type, "__subclasses__");
    if (seen == NULL || found == NULL || subclasses == NULL) {
        goto done;
    }
    ll_bury_dead_kinds();
    if (ll_kinds.rows == NULL || ll_kinds.dead > 1024 + ll_kinds.count / 4) {
        if (make_room(ll_kinds.count - ll_kinds.dead) < 0) {
            goto done;
        }
    }
    if (PyList_Append(found, (PyObject *)&PyBaseObject_Type) < 0 || ll_seen_add(seen, &PyBaseObject_Type) < 0) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(found); i++) {
        PyTypeObject *cls = (PyTypeObject *)PyList_GET_ITEM(found, i);
        if (ll_kind_of((uintptr_t)cls) == UINT32_MAX && add_kind(cls) < 0) {
            goto done;
        }
        PyObject *below = PyObject_CallOneArg(subclasses, (PyObject *)cls);
        if (below == NULL) {
            goto done;
        }
        for (Py_ssize_t k = 0; k < PyList_GET_SIZE(below); k++) {
            PyObject *one = PyList_GET_ITEM(below, k);
            if (PyType_Check(one) && ll_seen_add(seen, one) == 1 && PyList_Append(found, one) < 0) {
                Py_DECREF(below);
                goto done;
            }
        }
        Py_DECREF(below);
    }
    result = 0;
done:
    if (result < 0 && !PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    Py_XDECREF(found);
    Py_XDECREF(subclasses);
    ll_seen_free(seen);
    if (was_on) {
        PyGC_Enable();
    }
    return result;
}

#endif
