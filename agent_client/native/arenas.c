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
   the reference counts of classes are read as numbers of instances elsewhere. */

#include "arenas.h"

#if CAN_SCAN

#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

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
    ll_kind *guesses;
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
    s->row_room = ll_kinds.count + MOST_GUESSES;
    s->rows = ll_kinds.count;
    size_t tallies = s->row_room * sizeof(tally), lists = s->row_room * sizeof(uint32_t);
    size_t guesses = MOST_GUESSES * sizeof(ll_kind), slots = GUESS_SLOTS * sizeof(*s->guess_slots);
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
    s->guesses = (ll_kind *)memory;
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
    uint32_t at = (uint32_t)(ll_scattered(word) >> 52) % GUESS_SLOTS;
    if (s->guess_slots[at].address == word) {
        return s->guess_slots[at].row;
    }
    if (s->questions == MOST_QUESTIONS || s->guess_count == MOST_GUESSES) {
        return UINT32_MAX;
    }
    s->questions++;
    PyTypeObject copy;
    uint32_t row = UINT32_MAX;
    if (ll_read_one(&copy, word, sizeof(copy))) {
        uint32_t meta = ll_kind_of((uintptr_t)Py_TYPE(&copy));
        ll_kind made;
        if (meta != UINT32_MAX && ll_kinds.rows[meta].is_metaclass
            && ll_describe_kind(&made, word, copy.tp_flags, copy.tp_basicsize, copy.tp_itemsize,
                                (uintptr_t)copy.tp_alloc)
            && made.place == place) {
            s->guesses[s->guess_count] = made;
            row = ll_kinds.count + s->guess_count++;
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
fits(const ll_kind *one, uint32_t place, uint32_t size)
{
    return one->place == place && one->block != 0 && (one->how == EXACTLY ? size == one->block : size >= one->block);
}

/* The row of the object in this block, or UINT32_MAX. The places are tried from the lowest: what stands where a lower
   one has its class (links of the collector, a dict) is never the address of a class, but an item of a tuple can be. */
static inline uint32_t
object_in(scan *s, const uint8_t *block, uint32_t size)
{
    for (uint32_t place = 0; place <= 32 && place + 16 <= size; place += 16) {
        uint32_t row = ll_kind_of(word_at(block + place + 8));
        if (row != UINT32_MAX && fits(&ll_kinds.rows[row], place, size)) {
            /* Without references it waits in a free list of its type, or never was one. */
            return can_be_count(word_at(block + place)) ? row : UINT32_MAX;
        }
    }
    for (uint32_t place = 0; place <= 32 && place + 16 <= size; place += 16) {
        uint64_t references = word_at(block + place), word = word_at(block + place + 8);
        if (ll_unlikely(references - 1 < MOST_REFERENCES - 1 && word >= MOST_REFERENCES && word % 16 == 0
                        && word >> 47 == 0)
            && ll_kind_of(word) == UINT32_MAX) {
            uint32_t row = guess_kind(s, word, place);
            if (row != UINT32_MAX && fits(&s->guesses[row - ll_kinds.count], place, size)) {
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

/* The most objects of a class seen in one pool, by this scan or one before it. */
static uint32_t
crowd_of(const scan *s, uint32_t row, uint32_t most)
{
    if (row >= s->rows - s->guess_count) {
        return most;
    }
    uint16_t *crowd = &ll_kinds.rows[row].crowd;
    *crowd = (uint16_t)(most > *crowd ? most : *crowd - *crowd / 16u);
    return *crowd;
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
        uint32_t crowd = crowd_of(s, s->touched[i], one->most);
        if (step > 1 && looked_at > 1) {
            double change = one->squares - 2 * share * one->products + share * share * taken_squares;
            double spread = change > 0 ? change * (double)looked_at / (double)(looked_at - 1) / 2 : 0;
            /* Pools that happen to be alike do not make a count certain: objects made together lie together. */
            double unseen = (double)crowd / 2;
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
            wanted[i] = ll_scattered(ll_scattered(s->salt ^ pool) >> 7) % step[i];
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
        int got = ll_read_pieces(s->buffer, addresses, wanted, POOL_BYTES);
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

/* Reads the heads of the pools of an arena. With the lock. */
static void
read_arena(scan *s, const arena_entry *entry)
{
    uint32_t arena = s->arena_count++;
    uintptr_t first = first_pool(entry->address);
    uint32_t used = (uint32_t)((entry->next_pool_address - first) / POOL_BYTES);
    uint8_t *classes = s->classes + (size_t)arena * POOLS_OF_ARENA;
    uint16_t *taken_in = s->taken_in + (size_t)arena * POOLS_OF_ARENA;
    s->arenas[arena] = entry->address;
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

/* Reads the heads of all pools, with the lock, which is let go of every millisecond. NULL, or what went wrong. */
static const char *
read_heads(scan *s, int prefer_file)
{
    uint64_t vector;
    uint32_t length;
    const char *why = ll_find_vector(&vector, &length, prefer_file);
    if (why != NULL) {
        return why;
    }
    s->arena_room = length;
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
    for (uint32_t i = 0; i < s->arena_room && i < length; i += FIRST_ARENAS) {
        arena_entry entries[FIRST_ARENAS];
        if (i > 0 && ll_now() - started > 1000000) {
            Py_BEGIN_ALLOW_THREADS
            Py_END_ALLOW_THREADS
            /* It may have moved; what came to its end is beyond what we have room for. */
            why = ll_find_vector(&vector, &length, prefer_file);
            if (why != NULL) {
                return why;
            }
            started = ll_now();
        }
        if (!ll_read_entries(entries, vector, i, FIRST_ARENAS)) {
            return "the small-object allocator's list of arenas is not laid out as we know it";
        }
        for (uint32_t k = 0; k < FIRST_ARENAS; k++) {
            if (entries[k].address != 0) {
                read_arena(s, &entries[k]);
            }
        }
    }
    return NULL;
}

static int
add_row(PyObject *rows, uint32_t row, const tally *one)
{
    PyObject *cls = ll_owner_of(row);
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
        if (!has_learned++ && ll_learn_kinds() < 0) {
            Py_CLEAR(rows);
            break;
        }
        /* It is a class only if it is one of those found from `object`, the same way as all others. */
        uint32_t row = ll_kind_of(s->guesses[i].address);
        if (row != UINT32_MAX && ll_kinds.rows[row].place == s->guesses[i].place
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
    ll_begin_reading();
    ll_bury_dead_kinds();
    if (ll_kinds.rows == NULL && ll_learn_kinds() < 0) {
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
    ll_end_reading();
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
    scan s = {.every = every, .salt = ll_scattered(salt + 1)};
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
        if (!ll_read_one(s->buffer, address, POOL_BYTES)
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
