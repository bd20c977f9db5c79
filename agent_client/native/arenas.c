/* The sampled census: which objects lie in the small-object allocator's pools, read while the program runs.

   Python gets objects of up to 512 bytes from pools of 16 KiB, and pools from arenas of 1 MiB. A scan goes so:

   1. With the lock, in slices of a millisecond: find the arenas, and read of each pool its size class and how many
      of its blocks are taken. That is what `sys.getallocatedblocks` does, 10 ns a pool.
   2. Without the lock: copy some of the pools, or all, out of our own process through the kernel, so that a pool that
      went away meanwhile is an error and never a crash; go through the blocks of the copy that are not on its free
      list. A block is an object when the word at the place of `ob_type` is the address of a class we know, that
      class keeps its objects at this place of a block and in blocks of this size, and the reference count can be one.
      A copy torn by the program's work costs a few objects of the count; every loop has a bound.
   3. With the lock: classes that were new to us are looked up, and counts become a list.

   No object of the program is touched, no reference is taken, no class is held while the lock is free: for
   the reference counts of classes are read as numbers of instances elsewhere.

   Nothing here includes the interpreter's internal headers: the two structures below are the same since 3.10, their
   place is found by looking for it, and whatever does not agree is a reason not to scan. */

#define _GNU_SOURCE
#include "native.h"

#include <stdlib.h>
#include <string.h>

#if defined(__linux__) && defined(__LP64__)
#define CAN_SCAN 1
#include <fcntl.h>
#include <link.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#else
#define CAN_SCAN 0
#endif

#if CAN_SCAN

/* -- the allocator's own structures */

#define ARENA_BYTES ((uintptr_t)1 << 20)
#define POOL_BYTES ((uintptr_t)1 << 14)
#define POOLS_OF_ARENA 64
#define SIZE_CLASSES 32
#define FIRST_ARENAS 16 /* entries of the first vector of arenas; it grows by doubling */

typedef struct {
    uint32_t taken; /* blocks in use; the upper half of this word is padding */
    uint32_t padding;
    uint64_t free_block;
    uint64_t next_pool, previous_pool;
    uint32_t arena;
    uint32_t size_class;
    uint32_t next_offset; /* blocks from here on were never used */
    uint32_t max_next_offset;
} pool_head;

typedef struct {
    uint64_t address;           /* 0: not in use */
    uint64_t next_pool_address; /* pools from here on were never used */
    uint32_t free_pools, total_pools;
    uint64_t free_list, next_arena, previous_arena;
} arena_entry;

_Static_assert(sizeof(pool_head) == 48 && sizeof(arena_entry) == 48, "the allocator's structures");

static inline uint32_t
block_bytes(uint32_t size_class)
{
    return (size_class + 1) << 4;
}

static inline int
is_sound_pool(const pool_head *head)
{
    uint32_t size = block_bytes(head->size_class), start = sizeof(pool_head);
    return head->size_class < SIZE_CLASSES && head->max_next_offset == POOL_BYTES - size
        && head->next_offset >= start && head->next_offset <= POOL_BYTES && (head->next_offset - start) % size == 0
        && head->taken <= (head->next_offset - start) / size;
}

static inline uintptr_t
first_pool(uintptr_t arena)
{
    return (arena + POOL_BYTES - 1) & ~(POOL_BYTES - 1);
}

static inline int
is_sound_arena(const arena_entry *entry)
{
    uintptr_t first = first_pool(entry->address);
    uint32_t pools = POOLS_OF_ARENA - (first != entry->address);
    uint64_t used = (entry->next_pool_address - first) / POOL_BYTES;
    return entry->address != 0 && entry->address % 4096 == 0 && entry->address < (UINT64_C(1) << 56)
        && entry->next_pool_address >= first && entry->next_pool_address % POOL_BYTES == 0
        && entry->total_pools == pools && entry->free_pools <= pools && used <= pools
        && entry->free_pools >= pools - used;
}

/* -- our own memory, read so that what is not there is an error */

static int memory_file = -1; /* read instead where the call is refused; open during a scan only */
static int by_file; /* the call is refused */

#define MOST_PIECES 64

/* Reads pieces of equal size one after the other; how many came whole, up to the first that did not. */
static int
read_pieces(void *to, const uint64_t *addresses, int pieces, size_t bytes)
{
    if (!by_file) {
        struct iovec local = {to, (size_t)pieces * bytes}, remote[MOST_PIECES];
        for (int i = 0; i < pieces; i++) {
            remote[i] = (struct iovec){(void *)(uintptr_t)addresses[i], bytes};
        }
        ssize_t got = syscall(SYS_process_vm_readv, getpid(), &local, 1UL, remote, (unsigned long)pieces, 0UL);
        return got < 0 ? 0 : (int)((size_t)got / bytes);
    }
    for (int i = 0; i < pieces; i++) {
        if (pread(memory_file, (char *)to + (size_t)i * bytes, bytes, (off_t)addresses[i]) != (ssize_t)bytes) {
            return i;
        }
    }
    return pieces;
}

static int
read_one(void *to, uint64_t address, size_t bytes)
{
    return read_pieces(to, &address, 1, bytes) == 1;
}

/* NULL, or why this process cannot read its own memory. */
static const char *
find_way_to_read(int prefer_file)
{
    uint64_t known = UINT64_C(0x6c65616b6c696e65), copy = 0;
    by_file = prefer_file;
    if (!by_file && read_one(&copy, (uintptr_t)&known, sizeof(copy)) && copy == known) {
        return NULL;
    }
    by_file = 1;
    if (memory_file < 0) {
        memory_file = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    }
    if (memory_file >= 0 && read_one(&copy, (uintptr_t)&known, sizeof(copy)) && copy == known) {
        return NULL;
    }
    return "this process may not read its own memory (process_vm_readv and /proc/self/mem are refused)";
}

/* -- where the arenas are

   The vector of arenas hangs on a static variable of the interpreter, which has no public name and sits at another
   place in every build. We look for it once: a word of the interpreter's data that points to a vector in which the
   arena of a pool we know stands at the index that the pool's head says. Others may pass by chance, such as the list
   of usable arenas while the first one of the vector is its head: all are kept and asked again before every scan. */

#define MOST_PLACES 32
static uint64_t places[MOST_PLACES];
static int place_count;
static uint32_t vector_length; /* entries, as far as we have seen */

typedef struct {
    uintptr_t inside;
    uintptr_t start, end; /* the writable part that it lies in */
    uintptr_t image_start, image_end; /* all parts of the same file */
} segment;

static int
find_segment(struct dl_phdr_info *info, size_t size, void *context)
{
    segment *wanted = context;
    wanted->image_start = UINTPTR_MAX;
    wanted->image_end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + part->p_vaddr, end = start + part->p_memsz;
        if (part->p_type != PT_LOAD) {
            continue;
        }
        wanted->image_start = start < wanted->image_start ? start : wanted->image_start;
        wanted->image_end = end > wanted->image_end ? end : wanted->image_end;
        if ((part->p_flags & PF_W) && wanted->inside >= start && wanted->inside < end) {
            wanted->start = start;
            wanted->end = end;
        }
    }
    return wanted->end != 0;
}

static int
vector_has(uint64_t vector, uint32_t index, uintptr_t pool)
{
    arena_entry entry;
    return read_one(&entry, vector + (uint64_t)index * sizeof(entry), sizeof(entry)) && is_sound_arena(&entry)
        && pool >= first_pool(entry.address) && pool < entry.next_pool_address;
}

/* Beside the pointer to the vector compilers put its length: 16, or a power of two more. */
static int
has_length_beside(const segment *data, uintptr_t at)
{
    for (uintptr_t near = at - 16; near <= at + 16; near += 8) {
        if (near >= data->start && near + 8 <= data->end && near != at) {
            uint64_t word = *(const volatile uint64_t *)near;
            if (word >= FIRST_ARENAS && word <= (1 << 24) && (word & (word - 1)) == 0) {
                return 1;
            }
        }
    }
    return 0;
}

static void
find_places(uint32_t index, uintptr_t pool, int everywhere)
{
    segment data = {.inside = (uintptr_t)&PyFloat_Type};
    place_count = 0;
    vector_length = 0;
    if (!dl_iterate_phdr(find_segment, &data)) {
        return;
    }
    for (uintptr_t at = (data.start + 7) & ~(uintptr_t)7; at + 8 <= data.end && place_count < MOST_PLACES; at += 8) {
        uint64_t word = *(const volatile uint64_t *)at;
        /* The vector comes from malloc: aligned, and outside of what was loaded. */
        if (word % 16 == 0 && word >= POOL_BYTES && word < (UINT64_C(1) << 56)
            && (word < data.image_start || word >= data.image_end) && (everywhere || has_length_beside(&data, at))
            && vector_has(word, index, pool)) {
            places[place_count++] = at;
        }
    }
}

/* A vector has 16 entries or a power of two more; beyond it lies something that is neither an arena nor a free entry. */
static int
grow_vector_length(uint64_t vector)
{
    enum { at_once = 16 };
    arena_entry entries[at_once];
    if (vector_length == 0) {
        vector_length = FIRST_ARENAS;
    }
    for (;;) {
        uint64_t longer = vector_length * UINT64_C(2);
        for (uint64_t i = vector_length; i < longer; i += at_once) {
            if (longer > (1 << 24) || !read_one(entries, vector + i * sizeof(arena_entry), sizeof(entries))) {
                return 0;
            }
            for (int k = 0; k < at_once; k++) {
                uint64_t next = entries[k].next_arena;
                int is_free = entries[k].address == 0
                    && (next == 0
                        || (next > vector && next < vector + longer * sizeof(arena_entry)
                            && (next - vector) % sizeof(arena_entry) == 0));
                if (!is_free && !is_sound_arena(&entries[k])) {
                    return 0;
                }
            }
        }
        vector_length = (uint32_t)longer;
    }
}

/* NULL and the vector, or why there is none. With the lock. */
static const char *
find_vector(uint64_t *vector, int prefer_file)
{
    const char *why = find_way_to_read(prefer_file);
    if (why != NULL) {
        return why;
    }
    /* A block of the allocator's as it is now, made and dropped at once. */
    enum { bytes = 64 };
    void *block = PyObject_Malloc(bytes);
    uintptr_t pool = (uintptr_t)block & ~(POOL_BYTES - 1);
    pool_head head;
    int is_read = block != NULL && read_one(&head, pool, sizeof(head));
    PyObject_Free(block);
    if (!is_read || !is_sound_pool(&head) || head.taken == 0
        || ((uintptr_t)block - pool - sizeof(head)) % block_bytes(head.size_class) != 0) {
        return "Python's small-object allocator is not in use, or with debug hooks (PYTHONMALLOC, PYTHONDEVMODE)";
    }
    if (block_bytes(head.size_class) != bytes) {
        return "the small-object allocator's pools are not laid out as we know them";
    }
    for (int pass = 0; pass < 3; pass++) {
        uint64_t found = 0;
        for (int i = 0; i < place_count; i++) {
            uint64_t word = *(const volatile uint64_t *)(uintptr_t)places[i];
            if (word != 0 && word != found && vector_has(word, head.arena, pool)) {
                if (found != 0) {
                    return "the small-object allocator's arenas are not found for certain";
                }
                found = word;
            }
        }
        if (found != 0) {
            grow_vector_length(found);
            if (head.arena >= vector_length) {
                return "the small-object allocator's list of arenas is not laid out as we know it";
            }
            *vector = found;
            return NULL;
        }
        /* Asking the kernel about every word takes 15 ms, so only where the first two ways lead nowhere. */
        find_places(head.arena, pool, pass == 1);
    }
    return "the small-object allocator's arenas are not found";
}

/* -- the classes we know, by address

   Rows are only added, and marked dead: a scan that runs keeps its row numbers. Changed with the lock alone, and
   never while a scan is on (one at a time). */

enum { AT_LEAST = 0, EXACTLY = 1 };

typedef struct {
    uint64_t address; /* or DEAD */
    uint16_t block; /* bytes of a block that holds one; 0: none does */
    uint8_t place; /* of the object in its block: 0, 16 or 32 */
    uint8_t how; /* AT_LEAST or EXACTLY that block */
    uint8_t is_metaclass;
} kind;

/* No address, and no word that a program would store. */
#define DEAD UINT64_C(0xDEADC1A55DEADC1A)

#define SIEVE_BITS 17
static struct {
    kind *rows;
    PyObject **owners; /* weak references; NULL for classes that are never freed */
    uint32_t *slots; /* row + 1 by hash of the address */
    uint8_t *sieve; /* a bit by hash: most words are no class, and this says so from the nearest cache */
    uint32_t count, dead, room; /* rows; slots are four times the room */
} kinds;

static inline uint64_t
scattered(uint64_t key)
{
    return key * UINT64_C(0x9E3779B97F4A7C15);
}

static inline uint32_t
kind_of(uint64_t address)
{
    uint64_t hash = scattered(address);
    uint32_t bit = hash >> (64 - SIEVE_BITS);
    if (ll_likely(!(kinds.sieve[bit >> 3] & (1 << (bit & 7))))) {
        return UINT32_MAX;
    }
    uint32_t mask = kinds.room * 4 - 1;
    for (uint32_t at = (uint32_t)(hash >> 20) & mask;; at = (at + 1) & mask) {
        uint32_t row = kinds.slots[at];
        if (row == 0) {
            return UINT32_MAX;
        }
        if (kinds.rows[row - 1].address == address) {
            return row - 1;
        }
    }
}

static void
enter_kind(uint32_t row)
{
    uint64_t hash = scattered(kinds.rows[row].address);
    uint32_t bit = hash >> (64 - SIEVE_BITS), mask = kinds.room * 4 - 1;
    kinds.sieve[bit >> 3] |= (uint8_t)(1 << (bit & 7));
    uint32_t at = (uint32_t)(hash >> 20) & mask;
    while (kinds.slots[at] != 0) {
        at = (at + 1) & mask;
    }
    kinds.slots[at] = row + 1;
}

static size_t
bytes_of_kinds(uint32_t room)
{
    return room * (sizeof(kind) + sizeof(PyObject *) + 4 * sizeof(uint32_t)) + ((size_t)1 << (SIEVE_BITS - 3));
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
    kind *old_rows = kinds.rows;
    PyObject **old_owners = kinds.owners;
    uint32_t old_count = kinds.count, old_room = kinds.room;
    kinds.rows = (kind *)memory;
    kinds.owners = (PyObject **)(kinds.rows + room);
    kinds.slots = (uint32_t *)(kinds.owners + room);
    kinds.sieve = (uint8_t *)(kinds.slots + 4 * (size_t)room);
    kinds.room = room;
    kinds.count = kinds.dead = 0;
    for (uint32_t i = 0; i < old_count; i++) {
        if (old_rows[i].address != DEAD) {
            kinds.rows[kinds.count] = old_rows[i];
            kinds.owners[kinds.count] = old_owners[i];
            enter_kind(kinds.count++);
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

/* What a class says of its objects; 0 when they never lie in a pool. */
static int
describe_kind(kind *made, uint64_t address, unsigned long flags, int64_t basic, int64_t item, uint64_t alloc)
{
    int64_t place = (flags & Py_TPFLAGS_HAVE_GC ? 16 : 0) + (flags & FLAGS_IN_FRONT ? 16 : 0);
    int64_t block = (place + basic + 15) & ~INT64_C(15);
    *made = (kind){.address = address, .place = (uint8_t)place};
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
    kind made;
    /* Classes whose objects are too large are known, too: a class of classes can be one, and "known" saves asking. */
    describe_kind(&made, (uintptr_t)cls, cls->tp_flags, cls->tp_basicsize, cls->tp_itemsize,
                  (uintptr_t)cls->tp_alloc);
    PyObject *owner = NULL;
    if (cls->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        /* The same object that the base class keeps for `__subclasses__`. */
        owner = PyWeakref_NewRef((PyObject *)cls, NULL);
        if (owner == NULL) {
            return -1;
        }
    }
    if (kinds.count == kinds.room && make_room(kinds.count * 2) < 0) {
        Py_XDECREF(owner);
        return -1;
    }
    kinds.rows[kinds.count] = made;
    kinds.owners[kinds.count] = owner;
    enter_kind(kinds.count++);
    return 0;
}

/* The class of a row as a new reference, or NULL when it is gone. */
static PyObject *
owner_of(uint32_t row)
{
    PyObject *owner = kinds.owners[row];
    if (kinds.rows[row].address == DEAD) {
        return NULL;
    }
    if (owner == NULL) {
        return Py_NewRef((PyObject *)(uintptr_t)kinds.rows[row].address);
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
static void
bury_dead_kinds(void)
{
    for (uint32_t row = 0; row < kinds.count; row++) {
        PyObject *owner = kinds.owners[row];
        if (owner != NULL && ((PyWeakReference *)owner)->wr_object == Py_None) {
            kinds.rows[row].address = DEAD;
            kinds.owners[row] = NULL;
            kinds.dead++;
            Py_DECREF(owner);
        }
    }
}

/* Every class there is, from `object` down; the collector waits, so that no code of the program runs in between. */
static int
learn_kinds(void)
{
    int result = -1, was_on = PyGC_Disable();
    ll_seen *seen = ll_seen_new(LL_SEEN_BYTES);
    PyObject *found = PyList_New(0);
    /* Through `type`: a metaclass may have its own `__subclasses__`. */
    PyObject *subclasses = PyObject_GetAttrString((PyObject *)&PyType_Type, "__subclasses__");
    if (seen == NULL || found == NULL || subclasses == NULL) {
        goto done;
    }
    bury_dead_kinds();
    if (kinds.rows == NULL || kinds.dead > 1024 + kinds.count / 4) {
        if (make_room(kinds.count - kinds.dead) < 0) {
            goto done;
        }
    }
    if (PyList_Append(found, (PyObject *)&PyBaseObject_Type) < 0 || ll_seen_add(seen, &PyBaseObject_Type) < 0) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(found); i++) {
        PyTypeObject *cls = (PyTypeObject *)PyList_GET_ITEM(found, i);
        if (kind_of((uintptr_t)cls) == UINT32_MAX && add_kind(cls) < 0) {
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

/* -- a scan */

#define MOST_GUESSES 512 /* classes made since we last looked */
#define GUESS_SLOTS 4096
#define MOST_QUESTIONS 4096 /* words a scan looks at whether they are classes: half a microsecond each */
#define FEWEST_POOLS 16 /* of a size class: 2 ms in all, and the rare ones are counted better */
#define POOLS_AT_ONCE 16
#define MOST_ARENAS (1 << 16)
#define NO_POOL 0xFF
#define BYTES_OF_ARENA (sizeof(uint64_t) + POOLS_OF_ARENA * (sizeof(uint16_t) + sizeof(uint8_t)))

typedef struct {
    uint32_t here, before; /* in this pool, in the one looked at before it */
    uint32_t sum, most; /* of the size class that is being looked at; in one of its pools */
    double squares, products; /* of the changes from pool to pool, and with those of the taken blocks */
    double total, variance;
} tally;

typedef struct {
    /* From the heads of all pools. */
    uint64_t *arenas;
    uint16_t *taken_in; /* blocks in use in each pool of each arena */
    uint8_t *classes; /* size class of each pool of each arena */
    uint32_t arena_count, arena_room;
    uint64_t pools[SIZE_CLASSES], taken[SIZE_CLASSES];
    /* What is looked at. */
    uint64_t every, salt;
    uint32_t *chosen; /* pools by size class, arena * 64 + pool */
    uint32_t chosen_from[SIZE_CLASSES], chosen_to[SIZE_CLASSES];
    size_t chosen_bytes;
    uint64_t pools_read, pools_gone, blocks_read;
    tally *tallies;
    uint32_t *here, *before, *touched; /* rows */
    uint32_t here_count, before_count, touched_count, rows, row_room;
    /* Classes that we did not know. */
    kind *guesses;
    struct {
        uint64_t address;
        uint32_t row; /* UINT32_MAX: no class */
    } *guess_slots;
    uint32_t guess_count, questions;
    uint8_t *buffer;
    char *memory;
    size_t memory_bytes;
} scan;

static pid_t scanning; /* the process in which a scan is on; a child that was forked meanwhile has none */

static void
free_scan(scan *s)
{
    ll_unmap(s->memory, s->memory_bytes);
    ll_unmap(s->chosen, s->chosen_bytes);
    if (s->arenas != NULL) {
        ll_unmap(s->arenas, s->arena_room * BYTES_OF_ARENA);
    }
}

static int
prepare_scan(scan *s)
{
    s->row_room = kinds.count + MOST_GUESSES;
    s->rows = kinds.count;
    size_t tallies = s->row_room * sizeof(tally), lists = s->row_room * sizeof(uint32_t);
    size_t guesses = MOST_GUESSES * sizeof(kind), slots = GUESS_SLOTS * sizeof(*s->guess_slots);
    s->memory_bytes = tallies + slots + guesses + 3 * lists + POOLS_AT_ONCE * POOL_BYTES + 64;
    char *memory = s->memory = ll_map(s->memory_bytes);
    if (memory == NULL) {
        return -1;
    }
    s->buffer = (uint8_t *)memory;
    memory += POOLS_AT_ONCE * POOL_BYTES;
    s->tallies = (tally *)memory;
    memory += tallies;
    s->guess_slots = (void *)memory;
    memory += slots;
    s->guesses = (kind *)memory;
    memory += (guesses + 15) & ~(size_t)15;
    s->here = (uint32_t *)memory;
    s->before = s->here + s->row_room;
    s->touched = s->before + s->row_room;
    return 0;
}

/* Whether this word is the address of a class that was made after we learned the others; its row, or UINT32_MAX. */
static uint32_t
guess_kind(scan *s, uint64_t word, uint32_t place)
{
    uint32_t at = (uint32_t)(scattered(word) >> 52) % GUESS_SLOTS;
    if (s->guess_slots[at].address == word) {
        return s->guess_slots[at].row;
    }
    if (s->questions == MOST_QUESTIONS || s->guess_count == MOST_GUESSES) {
        return UINT32_MAX;
    }
    s->questions++;
    PyTypeObject copy;
    uint32_t row = UINT32_MAX;
    if (read_one(&copy, word, sizeof(copy))) {
        uint32_t meta = kind_of((uintptr_t)Py_TYPE(&copy));
        kind made;
        if (meta != UINT32_MAX && kinds.rows[meta].is_metaclass
            && describe_kind(&made, word, copy.tp_flags, copy.tp_basicsize, copy.tp_itemsize,
                             (uintptr_t)copy.tp_alloc)
            && made.place == place) {
            s->guesses[s->guess_count] = made;
            row = kinds.count + s->guess_count++;
            s->rows = row + 1;
        }
    }
    /* A row that loses its slot would get a second one: rows stay. */
    if (s->guess_slots[at].address == 0 || s->guess_slots[at].row == UINT32_MAX) {
        s->guess_slots[at].address = word;
        s->guess_slots[at].row = row;
        return row;
    }
    if (row != UINT32_MAX) {
        s->guess_count--;
        s->rows = row;
    }
    return UINT32_MAX;
}

/* Nobody holds this many references to one object, and no address is below it. Above 2^31 objects are immortal. */
#define MOST_REFERENCES (UINT64_C(1) << 22)

static inline int
can_be_count(uint64_t references)
{
    if (ll_likely(references - 1 < MOST_REFERENCES - 1)) {
        return 1;
    }
#if PY_VERSION_HEX >= 0x030E0000
    /* The upper 16 bits are flags. */
    references &= (UINT64_C(1) << 54) - 1;
#endif
#if PY_VERSION_HEX >= 0x030C0000
    return (references >> 31) == 1;
#else
    return 0;
#endif
}

static inline uint64_t
word_at(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof(word));
    return word;
}

static inline int
fits(const kind *one, uint32_t place, uint32_t size)
{
    return one->place == place && one->block != 0 && (one->how == EXACTLY ? size == one->block : size >= one->block);
}

/* The row of the object in this block, or UINT32_MAX. The places are tried from the lowest: what stands where a lower
   one has its class (links of the collector, a dict) is never the address of a class, but an item of a tuple can be. */
static inline uint32_t
object_in(scan *s, const uint8_t *block, uint32_t size)
{
    for (uint32_t place = 0; place <= 32 && place + 16 <= size; place += 16) {
        uint32_t row = kind_of(word_at(block + place + 8));
        if (row != UINT32_MAX && fits(&kinds.rows[row], place, size)) {
            /* Without references it waits in a free list of its type, or never was one. */
            return can_be_count(word_at(block + place)) ? row : UINT32_MAX;
        }
    }
    for (uint32_t place = 0; place <= 32 && place + 16 <= size; place += 16) {
        uint64_t references = word_at(block + place), word = word_at(block + place + 8);
        if (ll_unlikely(references - 1 < MOST_REFERENCES - 1 && word >= MOST_REFERENCES && word % 16 == 0
                        && word >> 47 == 0)
            && kind_of(word) == UINT32_MAX) {
            uint32_t row = guess_kind(s, word, place);
            if (row != UINT32_MAX && fits(&s->guesses[row - kinds.count], place, size)) {
                return row;
            }
        }
    }
    return UINT32_MAX;
}

/* Counts the objects of a copied pool; 0, or -1 when it is no longer what its head said. */
static int
look_at_pool(scan *s, const uint8_t *pool, uint64_t address, uint32_t size_class)
{
    pool_head head;
    memcpy(&head, pool, sizeof(head));
    if (!is_sound_pool(&head) || head.size_class != size_class) {
        return -1;
    }
    uint32_t size = block_bytes(size_class), end = head.next_offset;
    uint64_t is_free[POOL_BYTES / 16 / 64] = {0};
    for (uint64_t at = head.free_block; at != 0;) {
        uint64_t offset = at - address;
        uint64_t bit = UINT64_C(1) << ((offset >> 4) & 63);
        /* A list that the program changed while it was copied may lead anywhere, or round. */
        if (offset < sizeof(head) || offset >= end || offset % 16 != 0 || (is_free[offset >> 10] & bit)) {
            break;
        }
        is_free[offset >> 10] |= bit;
        at = word_at(pool + offset);
    }
    for (uint32_t offset = sizeof(head); offset < end; offset += size) {
        if (is_free[offset >> 10] & (UINT64_C(1) << ((offset >> 4) & 63))) {
            continue;
        }
        uint32_t row = object_in(s, pool + offset, size);
        if (row != UINT32_MAX && s->tallies[row].here++ == 0) {
            s->here[s->here_count++] = row;
        }
    }
    return 0;
}

/* Books the pool that was looked at last, with how its counts differ from those of the one before it. */
static void
book_pool(scan *s, double change_of_taken, int is_first)
{
    for (uint32_t i = 0; i < s->here_count; i++) {
        tally *one = &s->tallies[s->here[i]];
        double change = (double)one->here - (double)one->before;
        if (one->sum == 0) {
            s->touched[s->touched_count++] = s->here[i];
        }
        one->sum += one->here;
        one->most = one->here > one->most ? one->here : one->most;
        if (!is_first) {
            one->squares += change * change;
            one->products += change * change_of_taken;
        }
    }
    for (uint32_t i = 0; i < s->before_count; i++) {
        tally *one = &s->tallies[s->before[i]];
        if (one->here == 0) {
            double change = -(double)one->before;
            one->squares += change * change;
            one->products += change * change_of_taken;
        }
        one->before = 0;
    }
    for (uint32_t i = 0; i < s->here_count; i++) {
        tally *one = &s->tallies[s->here[i]];
        one->before = one->here;
        one->here = 0;
    }
    uint32_t *list = s->before;
    s->before = s->here;
    s->before_count = s->here_count;
    s->here = list;
    s->here_count = 0;
}

/* The counts of a size class, scaled by how many of its blocks were taken in all pools and in those looked at, both as
   their heads said: what the program does afterwards must not change the scale. Of neighbouring pools one is looked
   at, so that the variance comes from the changes between those, of what their taken blocks do not explain. */
static void
close_size_class(scan *s, uint32_t size_class, uint64_t looked_at, uint64_t taken, double taken_squares)
{
    double step = (double)s->pools[size_class] / (double)looked_at, all = (double)s->taken[size_class];
    for (uint32_t i = 0; i < s->touched_count; i++) {
        tally *one = &s->tallies[s->touched[i]];
        double share = (double)one->sum / (double)taken;
        if (step > 1 && looked_at > 1) {
            double change = one->squares - 2 * share * one->products + share * share * taken_squares;
            double spread = change > 0 ? change * (double)looked_at / (double)(looked_at - 1) / 2 : 0;
            /* Pools that happen to be alike do not make a count certain: one more may have half as much, or none. */
            double unseen = (double)one->most / 2;
            one->variance += step * (step - 1) * (spread + unseen * unseen);
        }
        /* Kept whole where everything was looked at. */
        one->total += taken == s->taken[size_class] ? (double)one->sum : all * share;
        one->sum = one->most = 0;
        one->squares = one->products = 0;
    }
    for (uint32_t i = 0; i < s->before_count; i++) {
        s->tallies[s->before[i]].before = 0;
    }
    s->touched_count = s->before_count = 0;
}

static inline uint64_t
pool_address(const scan *s, uint32_t pool)
{
    return first_pool(s->arenas[pool / POOLS_OF_ARENA]) + pool % POOLS_OF_ARENA * POOL_BYTES;
}

/* Chooses one pool out of each `step` neighbours of a size class, by chance. */
static int
choose_pools(scan *s)
{
    uint64_t step[SIZE_CLASSES], position[SIZE_CLASSES] = {0}, wanted[SIZE_CLASSES] = {0}, all = 0;
    for (uint32_t i = 0; i < SIZE_CLASSES; i++) {
        uint64_t most = s->pools[i] / FEWEST_POOLS;
        step[i] = most < s->every ? most : s->every;
        step[i] = step[i] < 1 ? 1 : step[i];
        s->chosen_from[i] = s->chosen_to[i] = (uint32_t)all;
        all += (s->pools[i] + step[i] - 1) / step[i];
    }
    s->chosen_bytes = (size_t)(all + 1) * sizeof(uint32_t);
    s->chosen = ll_map(s->chosen_bytes);
    if (s->chosen == NULL) {
        return -1;
    }
    for (uint32_t pool = 0; pool < s->arena_count * POOLS_OF_ARENA; pool++) {
        uint32_t i = s->classes[pool];
        if (i == NO_POOL) {
            continue;
        }
        if (position[i] == 0 && step[i] > 1) {
            wanted[i] = scattered(scattered(s->salt ^ pool) >> 7) % step[i];
        }
        if (position[i] == wanted[i]) {
            s->chosen[s->chosen_to[i]++] = pool;
        }
        position[i] = position[i] + 1 == step[i] ? 0 : position[i] + 1;
    }
    return 0;
}

/* Looks at the chosen pools of a size class. Without the lock. */
static void
scan_size_class(scan *s, uint32_t size_class)
{
    uint64_t looked_at = 0, taken = 0, addresses[POOLS_AT_ONCE];
    double taken_squares = 0, taken_before = 0;
    for (uint32_t at = s->chosen_from[size_class]; at < s->chosen_to[size_class];) {
        int wanted = 0;
        while (wanted < POOLS_AT_ONCE && at + (uint32_t)wanted < s->chosen_to[size_class]) {
            addresses[wanted] = pool_address(s, s->chosen[at + (uint32_t)wanted]);
            wanted++;
        }
        int got = read_pieces(s->buffer, addresses, wanted, POOL_BYTES);
        /* The first that could not be read went away, and what was in it; so did what another size class has now. */
        int done = got < wanted ? got + 1 : got;
        for (int i = 0; i < done; i++) {
            if (i == got || look_at_pool(s, s->buffer + (size_t)i * POOL_BYTES, addresses[i], size_class) < 0) {
                s->pools_gone++;
            }
            uint32_t now = s->taken_in[s->chosen[at + (uint32_t)i]];
            double change = looked_at == 0 ? 0 : (double)now - taken_before;
            book_pool(s, change, looked_at == 0);
            taken_squares += change * change;
            taken_before = now;
            taken += now;
            looked_at++;
        }
        at += (uint32_t)done;
    }
    s->pools_read += looked_at;
    s->blocks_read += taken;
    if (taken > 0) {
        close_size_class(s, size_class, looked_at, taken, taken_squares);
    }
}

/* Reads the heads of all pools, with the lock, which is let go of every millisecond. NULL, or what went wrong. */
static const char *
read_heads(scan *s, int prefer_file)
{
    uint64_t vector = 0;
    const char *why = find_vector(&vector, prefer_file);
    if (why != NULL) {
        return why;
    }
    s->arena_room = vector_length;
    if (s->arena_room > MOST_ARENAS) {
        return "there are more arenas than a scan has memory for";
    }
    s->arenas = ll_map(s->arena_room * BYTES_OF_ARENA);
    if (s->arenas == NULL) {
        return "there is no memory for a scan";
    }
    s->taken_in = (uint16_t *)(s->arenas + s->arena_room);
    s->classes = (uint8_t *)(s->taken_in + (size_t)s->arena_room * POOLS_OF_ARENA);
    int64_t started = ll_now();
    for (uint32_t i = 0; i < s->arena_room; i++) {
        if (i % 16 == 15 && ll_now() - started > 1000000) {
            Py_BEGIN_ALLOW_THREADS
            Py_END_ALLOW_THREADS
            /* The vector may have moved, and what was beyond its end is still beyond what we look at. */
            why = find_vector(&vector, prefer_file);
            if (why != NULL) {
                return why;
            }
            started = ll_now();
        }
        const arena_entry *entry = (const arena_entry *)(uintptr_t)vector + i;
        if (entry->address == 0) {
            continue;
        }
        if (!is_sound_arena(entry)) {
            return "the small-object allocator's list of arenas is not laid out as we know it";
        }
        uint32_t arena = s->arena_count++, used;
        uintptr_t first = first_pool(entry->address);
        s->arenas[arena] = entry->address;
        used = (uint32_t)((entry->next_pool_address - first) / POOL_BYTES);
        uint8_t *classes = s->classes + (size_t)arena * POOLS_OF_ARENA;
        uint16_t *taken_in = s->taken_in + (size_t)arena * POOLS_OF_ARENA;
        memset(classes, NO_POOL, POOLS_OF_ARENA);
        for (uint32_t k = 0; k < used; k++) {
            ll_prefetch((const void *)(first + (k + 12) % used * POOL_BYTES));
            const pool_head *head = (const pool_head *)(first + k * POOL_BYTES);
            if (head->taken > 0 && head->size_class < SIZE_CLASSES) {
                classes[k] = (uint8_t)head->size_class;
                taken_in[k] = (uint16_t)head->taken;
                s->pools[head->size_class]++;
                s->taken[head->size_class] += head->taken;
            }
        }
    }
    return NULL;
}

static int
add_row(PyObject *rows, uint32_t row, const tally *one)
{
    PyObject *cls = owner_of(row);
    if (cls == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *entry = Py_BuildValue("(Ndd)", cls, one->total, one->variance);
    int result = entry == NULL ? -1 : PyList_Append(rows, entry);
    Py_XDECREF(entry);
    return result;
}

/* The classes with their counts. What was new to us is looked up last, for that may move rows. */
static PyObject *
rows_of(const scan *s)
{
    uint32_t known = s->rows - s->guess_count;
    PyObject *rows = PyList_New(0);
    for (uint32_t row = 0; rows != NULL && row < known; row++) {
        if (s->tallies[row].total > 0 && add_row(rows, row, &s->tallies[row]) < 0) {
            Py_CLEAR(rows);
        }
    }
    int has_learned = 0;
    for (uint32_t i = 0; rows != NULL && i < s->guess_count; i++) {
        if (s->tallies[known + i].total <= 0) {
            continue;
        }
        if (!has_learned++ && learn_kinds() < 0) {
            Py_CLEAR(rows);
            break;
        }
        /* It is a class only if it is one of those found from `object`, the same way as all others. */
        uint32_t row = kind_of(s->guesses[i].address);
        if (row != UINT32_MAX && kinds.rows[row].place == s->guesses[i].place
            && add_row(rows, row, &s->tallies[known + i]) < 0) {
            Py_CLEAR(rows);
        }
    }
    return rows;
}

static int
is_busy(void)
{
    if (scanning == getpid()) {
        PyErr_SetString(PyExc_RuntimeError, "another scan is on");
        return 1;
    }
    return 0;
}

static PyObject *
result_of(scan *s)
{
    uint64_t pools = 0, blocks = 0;
    for (int i = 0; i < SIZE_CLASSES; i++) {
        pools += s->pools[i];
        blocks += s->taken[i];
    }
    PyObject *rows = rows_of(s);
    if (rows == NULL) {
        return NULL;
    }
    return Py_BuildValue("(NKKKKK)", rows, (unsigned long long)s->pools_read, (unsigned long long)pools,
                         (unsigned long long)s->blocks_read, (unsigned long long)blocks,
                         (unsigned long long)s->pools_gone);
}

/* 0 and everything ready to look at pools, or -1 with an exception set. */
static int
begin_scan(scan *s, int prefer_file)
{
    scanning = getpid();
    /* One that a fork left open reads the parent. */
    memory_file = -1;
    bury_dead_kinds();
    if (kinds.rows == NULL && learn_kinds() < 0) {
        return -1;
    }
    const char *why = read_heads(s, prefer_file);
    if (why != NULL) {
        PyErr_SetString(PyExc_OSError, why);
        return -1;
    }
    if (prepare_scan(s) < 0) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static void
end_scan(scan *s)
{
    free_scan(s);
    if (memory_file >= 0) {
        close(memory_file);
        memory_file = -1;
    }
    scanning = 0;
}

PyDoc_STRVAR(scan_arenas_doc,
"scan_arenas(every, salt, by_file=False) -> (rows, pools_read, pools, blocks_read, blocks, pools_gone)\n\n"
"Objects of up to 512 bytes by class, from one pool in `every`: rows of (class, count, variance of the count).\n"
"OSError with the reason where there is nothing to scan, RuntimeError while another scan is on.");

static PyObject *
scan_arenas(PyObject *module, PyObject *arguments, PyObject *names)
{
    static char *words[] = {"every", "salt", "by_file", NULL};
    unsigned long long every, salt;
    int prefer_file = 0;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "KK|p", words, &every, &salt, &prefer_file)) {
        return NULL;
    }
    if (every == 0) {
        PyErr_SetString(PyExc_ValueError, "every must be at least 1");
        return NULL;
    }
    if (is_busy()) {
        return NULL;
    }
    scan s = {.every = every, .salt = scattered(salt + 1)};
    PyObject *result = NULL;
    if (begin_scan(&s, prefer_file) == 0) {
        int is_ready;
        Py_BEGIN_ALLOW_THREADS
        is_ready = choose_pools(&s) == 0;
        for (uint32_t size_class = 0; is_ready && size_class < SIZE_CLASSES; size_class++) {
            scan_size_class(&s, size_class);
        }
        Py_END_ALLOW_THREADS
        result = is_ready ? result_of(&s) : PyErr_NoMemory();
    }
    end_scan(&s);
    return result;
}

PyDoc_STRVAR(scan_pools_of_doc,
"scan_pools_of(objects) -> rows\n\n"
"All objects, by class, in the pools in which these objects lie: rows of (class, count, 0.0). For the self-test.\n"
"OSError when one of them lies in no pool that a scan would look at, RuntimeError while a scan is on.");

static int
compare_pools(const void *one, const void *other)
{
    uint32_t a = *(const uint32_t *)one, b = *(const uint32_t *)other;
    return (a > b) - (a < b);
}

/* The number of the pool at this address, or UINT32_MAX. */
static uint32_t
pool_at(const scan *s, uintptr_t address)
{
    for (uint32_t arena = 0; arena < s->arena_count; arena++) {
        uintptr_t offset = address - first_pool(s->arenas[arena]);
        uint32_t pool = (uint32_t)(arena * POOLS_OF_ARENA + offset / POOL_BYTES);
        if (offset < ARENA_BYTES && s->classes[pool] != NO_POOL) {
            return pool;
        }
    }
    return UINT32_MAX;
}

static int
count_pools_of(scan *s, PyObject *objects)
{
    Py_ssize_t count = PyList_GET_SIZE(objects);
    s->chosen_bytes = (size_t)(count + 1) * sizeof(uint32_t);
    s->chosen = ll_map(s->chosen_bytes);
    if (s->chosen == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        s->chosen[i] = pool_at(s, (uintptr_t)PyList_GET_ITEM(objects, i) & ~(POOL_BYTES - 1));
        if (s->chosen[i] == UINT32_MAX) {
            PyErr_SetString(PyExc_OSError, "an object lies in none of the pools that were found");
            return -1;
        }
    }
    qsort(s->chosen, (size_t)count, sizeof(uint32_t), compare_pools);
    for (Py_ssize_t i = 0; i < count; i++) {
        uint64_t address = pool_address(s, s->chosen[i]);
        if (i > 0 && s->chosen[i] == s->chosen[i - 1]) {
            continue;
        }
        if (!read_one(s->buffer, address, POOL_BYTES)
            || look_at_pool(s, s->buffer, address, s->classes[s->chosen[i]]) < 0) {
            PyErr_SetString(PyExc_OSError, "a pool is not laid out as we know it");
            return -1;
        }
        for (uint32_t k = 0; k < s->here_count; k++) {
            tally *one = &s->tallies[s->here[k]];
            one->total += one->here;
            one->here = 0;
        }
        s->here_count = 0;
    }
    return 0;
}

static PyObject *
scan_pools_of(PyObject *module, PyObject *objects)
{
    if (!PyList_CheckExact(objects)) {
        PyErr_SetString(PyExc_TypeError, "objects must be a list");
        return NULL;
    }
    if (is_busy()) {
        return NULL;
    }
    scan s = {.every = 1};
    PyObject *result = NULL;
    if (begin_scan(&s, 0) == 0 && count_pools_of(&s, objects) == 0) {
        result = rows_of(&s);
    }
    end_scan(&s);
    return result;
}

static PyMethodDef functions[] = {
    {"scan_arenas", (PyCFunction)(void (*)(void))scan_arenas, METH_VARARGS | METH_KEYWORDS, scan_arenas_doc},
    {"scan_pools_of", scan_pools_of, METH_O, scan_pools_of_doc},
    {NULL, NULL, 0, NULL},
};

#else /* CAN_SCAN */

static PyMethodDef functions[] = {{NULL, NULL, 0, NULL}};

#endif

int
ll_add_arenas(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
