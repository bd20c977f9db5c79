/* Samples the blocks of the C allocator by library. `leakline run --native` preloads this library into a program.
 *
 * At rest, each function tests one flag and calls the next allocator. While armed, one block for about every RATE
 * bytes that a thread allocates is kept in a table until it is freed, with its weight: the allocated bytes that it
 * stands for. Each block belongs to the first library among its callers that is not a C or C++ runtime. Nothing here
 * allocates or holds a lock, so a fork or a signal may interrupt any function at any point. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unwind.h>

#ifndef __GLIBC__
#error "it needs glibc"
#endif

#define EXPORT __attribute__((visibility("default")))
#define CALLER ((uintptr_t)__builtin_extract_return_addr(__builtin_return_address(0)))
#define READ(place) atomic_load_explicit(&(place), memory_order_relaxed)

/* A power of two. Blocks of at least twice this size are always kept. */
#define RATE ((int64_t)1 << 18)
/* The table has ROWS rows of one cache line each. */
#define ROW_BITS 13
#define ROWS (1 << ROW_BITS)
#define WAYS 8
#define FILTER_BITS 14
#define OBJECTS 1024
#define NAME_BYTES 64
#define FRAMES 24
/* In a library that creates a Python object, malloc is at most this many frames of the interpreter away. */
#define INTERPRETER_FRAMES 6

enum { UNRESOLVED = 1, RESERVE_USED = 2, ARMED = 4 };
static atomic_int state = UNRESOLVED;

/* In the order of the names in resolve. */
static struct {
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void (*free)(void *);
    int (*posix_memalign)(void **, size_t, size_t);
    void *(*aligned_alloc)(size_t, size_t);
    void *(*memalign)(size_t, size_t);
    _Unwind_Reason_Code (*walk)(_Unwind_Trace_Fn, void *);
    uintptr_t (*address)(struct _Unwind_Context *);
} next;

static __thread __attribute__((tls_model("initial-exec"))) struct {
    /* Bytes until the next sample. */
    int64_t left;
    uint64_t seed;
    bool inside;
} own;

/* dlsym itself may allocate. */
static _Alignas(16) char reserve[8192];
static size_t reserved;
#define IS_RESERVED(block) ((uintptr_t)(block) - (uintptr_t)reserve < sizeof reserve)

static void *from_reserve(size_t size)
{
    size_t first = reserved;
    if (size > sizeof reserve - first)
        return NULL;
    reserved = (first + size + 15) & ~(size_t)15;
    atomic_fetch_or(&state, RESERVE_USED);
    return reserve + first;
}

/* Return false while dlsym looks up the functions. The first call precedes all threads of the program. */
static __attribute__((noinline)) bool resolve(void)
{
    static bool is_resolving;
    if (is_resolving)
        return false;
    is_resolving = true;
    static const char *const names[] = {
        "malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc", "memalign"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ((void **)&next)[i] = dlsym(RTLD_NEXT, names[i]);
    atomic_fetch_and(&state, ~UNRESOLVED);
    return true;
}

static inline bool is_ready(void)
{
    return !(READ(state) & UNRESOLVED) || resolve();
}

/* LOADER libraries may hold their own locks while they allocate, so their callers are not searched. */
enum { LIBRARY, RUNTIME, INTERPRETER, LOADER };

static _Atomic uintptr_t firsts[OBJECTS], sizes[OBJECTS];
static struct object {
    int kind;
    _Atomic int64_t bytes;
    char name[NAME_BYTES];
} objects[OBJECTS];
static atomic_int object_count;

static int find_object(uintptr_t address)
{
    int count = atomic_load_explicit(&object_count, memory_order_acquire);
    for (int i = 0; i < count; i++)
        if (address - READ(firsts[i]) < READ(sizes[i]))
            return i;
    return -1;
}

static uintptr_t python;

static int kind_of(const char *name, uintptr_t first, uintptr_t size)
{
    static const struct { const char *prefix; int kind; } known[] = {
        {"libc.so", RUNTIME}, {"libc-2", RUNTIME}, {"libpthread", RUNTIME}, {"libstdc++", RUNTIME}, {"libc++", RUNTIME},
        {"ld-", LOADER}, {"ld64", LOADER}, {"libdl.so", LOADER}, {"libdl-2", LOADER}, {"libgcc_s", LOADER}};
    if ((uintptr_t)&objects - first < size)
        return RUNTIME;
    if (python && python - first < size)
        return INTERPRETER;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strncmp(name, known[i].prefix, strlen(known[i].prefix)))
            return known[i].kind;
    return LIBRARY;
}

static int see_object(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    uintptr_t low = UINTPTR_MAX, high = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD)
            continue;
        uintptr_t first = info->dlpi_addr + part->p_vaddr;
        low = first < low ? first : low;
        high = first + part->p_memsz > high ? first + part->p_memsz : high;
    }
    const char *slash = strrchr(info->dlpi_name, '/');
    const char *name = slash ? slash + 1 : *info->dlpi_name ? info->dlpi_name : program_invocation_short_name;
    int count = READ(object_count), i = 0;
    while (i < count && (READ(firsts[i]) != low || strncmp(objects[i].name, name, NAME_BYTES - 1)))
        i++;
    if (i == OBJECTS)
        return 0;
    if (i == count) {
        strncpy(objects[i].name, name, NAME_BYTES - 1);
        objects[i].kind = kind_of(name, low, high - low);
        atomic_store(&firsts[i], low);
        atomic_store_explicit(&object_count, count + 1, memory_order_release);
    }
    atomic_store(&sizes[i], high - low);
    return 0;
}

static void see_objects(void)
{
    /* Another library may be loaded at the address of an unloaded one. */
    for (int i = 0; i < READ(object_count); i++)
        atomic_store(&sizes[i], 0);
    dl_iterate_phdr(see_object, NULL);
}

/* A place in the table that is being changed. */
#define TAKEN ((uintptr_t)1)

struct sample { int64_t weight; int owner; };

static _Alignas(64) _Atomic uintptr_t blocks[ROWS][WAYS];
static struct sample samples[ROWS][WAYS];
/* Number of sampled blocks by hash. Most blocks are not sampled, and this part of the table fits into a cache. */
static _Atomic uint8_t filter[1 << FILTER_BITS];

#define HASH(block) ((uint64_t)(uintptr_t)(block) * UINT64_C(0x9E3779B97F4A7C15))
#define ROW(hash) ((hash) >> (64 - ROW_BITS))
#define FILTER(hash) filter[(hash) >> (64 - FILTER_BITS)]

/* Remove a block and return its sample, with weight 0 if it is not sampled. */
static struct sample forget(void *block)
{
    uint64_t hash = HASH(block), row = ROW(hash);
    struct sample sample = {0, -1};
    for (int i = 0; READ(FILTER(hash)) && i < WAYS; i++) {
        uintptr_t found = (uintptr_t)block;
        if (READ(blocks[row][i]) != found || !atomic_compare_exchange_strong(&blocks[row][i], &found, TAKEN))
            continue;
        sample = samples[row][i];
        atomic_fetch_sub(&objects[sample.owner].bytes, sample.weight);
        atomic_fetch_sub(&FILTER(hash), 1);
        atomic_store(&blocks[row][i], 0);
    }
    return sample;
}

/* A block whose row is full is left out. */
static void keep(void *block, struct sample sample)
{
    uint64_t hash = HASH(block), row = ROW(hash);
    for (int i = 0; i < WAYS; i++) {
        uintptr_t empty = 0;
        if (READ(blocks[row][i]) || !atomic_compare_exchange_strong(&blocks[row][i], &empty, TAKEN))
            continue;
        samples[row][i] = sample;
        atomic_fetch_add(&objects[sample.owner].bytes, sample.weight);
        atomic_fetch_add(&FILTER(hash), 1);
        atomic_store(&blocks[row][i], (uintptr_t)block);
        return;
    }
}

struct search { int frames, of_interpreter, found; };

static _Unwind_Reason_Code look(struct _Unwind_Context *context, void *data)
{
    struct search *search = data;
    int object = find_object(next.address(context)), kind = object < 0 ? LOADER : objects[object].kind;
    if (kind == LIBRARY)
        search->found = object;
    search->of_interpreter += kind == INTERPRETER;
    bool goes_on = ++search->frames < FRAMES && search->of_interpreter <= INTERPRETER_FRAMES;
    return goes_on && (kind == RUNTIME || kind == INTERPRETER) ? _URC_NO_REASON : _URC_END_OF_STACK;
}

static int owner_of(uintptr_t caller)
{
    int object = find_object(caller);
    if (object < 0 || objects[object].kind == LIBRARY)
        return object;
    struct search search = {.found = -1};
    if (objects[object].kind != LOADER && next.walk)
        next.walk(look, &search);
    return search.found;
}

static int64_t draw(void)
{
    own.seed ^= own.seed << 13;
    own.seed ^= own.seed >> 7;
    own.seed ^= own.seed << 17;
    return (int64_t)(own.seed >> 32) & (2 * RATE - 1);
}

static __attribute__((noinline)) void interval_ended(void *block, int64_t bytes, uintptr_t caller)
{
    if (!own.seed) {
        own.seed = (uint64_t)(uintptr_t)&own | 1;
        /* The smaller of two draws is distributed as the rest of an interval from a random point on. */
        int64_t one = draw(), other = draw();
        own.left += one < other ? one : other;
    }
    int64_t weight = bytes;
    if (bytes >= 2 * RATE)
        own.left += bytes;
    else if (own.left >= 0)
        return;
    else
        /* Intervals are uniform in [0, 2 RATE). Divide by the probability that one ends within this block. */
        weight = 4 * RATE * RATE / (4 * RATE - bytes);
    while (own.left < 0)
        own.left += draw();
    if (own.inside)
        return;
    own.inside = true;
    /* An earlier block at this address may have been freed by a function that this library does not replace. */
    forget(block);
    int owner = owner_of(caller);
    if (owner >= 0)
        keep(block, (struct sample){weight, owner});
    own.inside = false;
}

static inline void note(void *block, size_t size, uintptr_t caller)
{
    /* The size of glibc's block: a leak of small blocks takes more memory than it requests. */
    int64_t bytes = size < 24 ? 32 : (int64_t)((size + 8 + 15) & ~(size_t)15);
    if (block && READ(state) & ARMED && (own.left -= bytes) < 0)
        interval_ended(block, bytes, caller);
}

#define AT_REST __builtin_expect(READ(state) == 0, 1)

static __attribute__((noinline)) void *malloc_slowly(size_t size, uintptr_t caller)
{
    if (!is_ready())
        return from_reserve(size);
    void *block = next.malloc(size);
    note(block, size, caller);
    return block;
}

EXPORT void *malloc(size_t size)
{
    return AT_REST ? next.malloc(size) : malloc_slowly(size, CALLER);
}

static __attribute__((noinline)) void *calloc_slowly(size_t count, size_t size, uintptr_t caller)
{
    if (!is_ready())
        return from_reserve(count * size);
    void *block = next.calloc(count, size);
    note(block, count * size, caller);
    return block;
}

EXPORT void *calloc(size_t count, size_t size)
{
    return AT_REST ? next.calloc(count, size) : calloc_slowly(count, size, CALLER);
}

static __attribute__((noinline)) void *realloc_slowly(void *old, size_t size, uintptr_t caller)
{
    if (IS_RESERVED(old)) {
        size_t most = (size_t)(reserve + sizeof reserve - (char *)old);
        void *block = malloc_slowly(size, caller);
        return block ? memcpy(block, old, size < most ? size : most) : NULL;
    }
    if (!is_ready())
        return from_reserve(size);
    /* NULL marks an empty place in the table. */
    struct sample before = old && READ(state) & ARMED ? forget(old) : (struct sample){0, -1};
    void *block = next.realloc(old, size);
    note(block, size, caller);
    if (!block && size && before.weight)
        keep(old, before);
    return block;
}

EXPORT void *realloc(void *old, size_t size)
{
    return AT_REST ? next.realloc(old, size) : realloc_slowly(old, size, CALLER);
}

static __attribute__((noinline)) void free_slowly(void *block)
{
    if (!block || IS_RESERVED(block) || !is_ready())
        return;
    if (READ(state) & ARMED)
        forget(block);
    next.free(block);
}

EXPORT void free(void *block)
{
    int now = READ(state);
    bool is_fast = now == ARMED ? !READ(FILTER(HASH(block))) : now == 0;
    is_fast ? next.free(block) : free_slowly(block);
}

EXPORT int posix_memalign(void **block, size_t alignment, size_t size)
{
    if (!is_ready())
        return ENOMEM;
    int error = next.posix_memalign(block, alignment, size);
    if (!error)
        note(*block, size, CALLER);
    return error;
}

#define ALIGNED(name)                                                      \
    EXPORT void *name(size_t alignment, size_t size)                       \
    {                                                                      \
        void *block = is_ready() ? next.name(alignment, size) : NULL;      \
        note(block, size, CALLER);                                         \
        return block;                                                      \
    }

ALIGNED(aligned_alloc)
ALIGNED(memalign)

/* Look up what the other functions need. This may wait for the dynamic loader, whose lock a thread that waits for the
 * interpreter may hold, so the client does not hold the interpreter's lock. */
EXPORT void leakline_malloc_look_up(void)
{
    python = (uintptr_t)dlsym(RTLD_DEFAULT, "Py_GetVersion");
    /* Before glibc 2.35, each walk takes a lock of the dynamic loader, which a fork may leave locked in the child. */
    if (next.walk || !dlsym(RTLD_DEFAULT, "_dl_find_object"))
        return;
    /* Not linked, because preloading another version of this library could keep the program's from loading. */
    void *libgcc = dlopen("libgcc_s.so.1", RTLD_LAZY | RTLD_LOCAL);
    next.address = libgcc ? (uintptr_t(*)(struct _Unwind_Context *))dlsym(libgcc, "_Unwind_GetIP") : NULL;
    atomic_thread_fence(memory_order_seq_cst);
    next.walk = next.address ? dlsym(libgcc, "_Unwind_Backtrace") : NULL;
}

/* The client calls the following functions from one thread at a time, and holds the interpreter's lock: a fork by
 * another thread would leave the lock of dl_iterate_phdr locked in the child. */
struct library {
    int64_t bytes;
    char name[NAME_BYTES];
};

/* Begin to sample, with an empty table, or stop. Return the size of the table, which remains in memory. */
EXPORT int leakline_malloc_arm(int on)
{
    atomic_fetch_and(&state, ~ARMED);
    if (!on)
        return 0;
    see_objects();
    /* Writing all pages now keeps the table from growing later. */
    memset((void *)blocks, 0, sizeof blocks);
    memset(samples, 0, sizeof samples);
    memset((void *)filter, 0, sizeof filter);
    for (int i = 0; i < READ(object_count); i++)
        atomic_store(&objects[i].bytes, 0);
    /* The first walk of the stack may allocate. */
    own.inside = true;
    owner_of((uintptr_t)leakline_malloc_arm);
    own.inside = false;
    atomic_fetch_or(&state, ARMED);
    return sizeof blocks + sizeof samples + sizeof filter;
}

/* Write the libraries with outstanding blocks to ``found`` and return their number. */
EXPORT int leakline_malloc_outstanding(struct library *found, int most)
{
    int count = 0;
    see_objects();
    for (int i = 0; i < READ(object_count) && count < most; i++) {
        int64_t bytes = READ(objects[i].bytes);
        if (bytes <= 0)
            continue;
        found[count].bytes = bytes;
        memcpy(found[count++].name, objects[i].name, NAME_BYTES);
    }
    return count;
}
