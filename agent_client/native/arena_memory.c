/* Where the small-object allocator keeps its arenas, and how they are read without the lock.

   Nothing here includes the interpreter's internal headers: the allocator's structures are the same since 3.10, their
   place is found by looking for it, and whatever does not agree is a reason not to scan. */

#define _GNU_SOURCE
#include "arenas.h"

#if CAN_SCAN

#include <fcntl.h>
#include <link.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* -- our own memory, read so that what is not there is an error */

static int memory_file = -1; /* read instead where the call is refused; open during a scan only */
static int by_file; /* the call is refused */

int
ll_read_pieces(void *to, const uint64_t *addresses, int pieces, size_t bytes)
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

int
ll_read_one(void *to, uint64_t address, size_t bytes)
{
    return ll_read_pieces(to, &address, 1, bytes) == 1;
}

/* NULL, or why this process cannot read its own memory. */
static const char *
find_way_to_read(int prefer_file)
{
    uint64_t known = UINT64_C(0x6c65616b6c696e65), copy = 0;
    by_file = prefer_file;
    if (!by_file && ll_read_one(&copy, (uintptr_t)&known, sizeof(copy)) && copy == known) {
        return NULL;
    }
    by_file = 1;
    if (memory_file < 0) {
        memory_file = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
    }
    if (memory_file >= 0 && ll_read_one(&copy, (uintptr_t)&known, sizeof(copy)) && copy == known) {
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
#define MOST_ENTRIES (UINT64_C(1) << 24)
static struct {
    uintptr_t at;
    int length; /* the length of the vector stands so far from it; 0: nowhere near */
} places[MOST_PLACES];
static int place_count;
static uint32_t guessed_length; /* entries, as far as we have seen; for a place without a length */

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
    return ll_read_one(&entry, vector + (uint64_t)index * sizeof(entry), sizeof(entry)) && is_sound_arena(&entry)
        && pool >= first_pool(entry.address) && pool < entry.next_pool_address;
}

/* A vector has 16 entries or a power of two more. */
static inline int
can_be_length(uint64_t word)
{
    return word >= FIRST_ARENAS && word <= MOST_ENTRIES && (word & (word - 1)) == 0;
}

/* Where beside the pointer to the vector its length stands: behind it in the interpreter's structure, before it where
   it is a variable of its own (3.11), if the compiler left them together. 0 when it is not there. */
static int
find_length_beside(const segment *data, uintptr_t at, uint32_t index)
{
    static const int distances[] = {8, -8, 16, -16};
    for (size_t i = 0; i < Py_ARRAY_LENGTH(distances); i++) {
        uintptr_t near = at + (uintptr_t)(intptr_t)distances[i];
        if (near >= data->start && near + 8 <= data->end) {
            uint64_t word = *(const volatile uint64_t *)near;
            if (can_be_length(word) && word > index) {
                return distances[i];
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
    guessed_length = 0;
    if (!dl_iterate_phdr(find_segment, &data)) {
        return;
    }
    for (uintptr_t at = (data.start + 7) & ~(uintptr_t)7; at + 8 <= data.end && place_count < MOST_PLACES; at += 8) {
        uint64_t word = *(const volatile uint64_t *)at;
        /* The vector comes from malloc: aligned, and outside of what was loaded. */
        if (word % 16 == 0 && word >= POOL_BYTES && word < (UINT64_C(1) << 56)
            && (word < data.image_start || word >= data.image_end)) {
            int length = find_length_beside(&data, at, index);
            if ((everywhere || length != 0) && vector_has(word, index, pool)) {
                places[place_count].at = at;
                places[place_count++].length = length;
            }
        }
    }
}

/* Beyond a vector lies something that is neither an arena nor a free entry, or nothing but zeros, which do no harm:
   entries are copied before they are looked at. */
static uint32_t
guess_length(uint64_t vector)
{
    enum { at_once = 16 };
    arena_entry entries[at_once];
    if (guessed_length == 0) {
        guessed_length = FIRST_ARENAS;
    }
    for (;;) {
        uint64_t longer = guessed_length * UINT64_C(2);
        for (uint64_t i = guessed_length; i < longer; i += at_once) {
            if (longer > MOST_ENTRIES || !ll_read_one(entries, vector + i * sizeof(arena_entry), sizeof(entries))) {
                return guessed_length;
            }
            for (int k = 0; k < at_once; k++) {
                uint64_t next = entries[k].next_arena;
                int is_free = entries[k].address == 0
                    && (next == 0
                        /* Of the whole vector: the list of free entries goes up and down in it. */
                        || (next >= vector && next < vector + MOST_ENTRIES * sizeof(arena_entry)
                            && (next - vector) % sizeof(arena_entry) == 0));
                if (!is_free && !is_sound_arena(&entries[k])) {
                    return guessed_length;
                }
            }
        }
        guessed_length = (uint32_t)longer;
    }
}

/* The length of the vector as it stands beside a place; 0 when there is none that can be. */
static uint32_t
length_beside(int place)
{
    if (places[place].length == 0) {
        return 0;
    }
    uint64_t word = *(const volatile uint64_t *)(places[place].at + (uintptr_t)(intptr_t)places[place].length);
    return can_be_length(word) ? (uint32_t)word : 0;
}

const char *
ll_find_vector(uint64_t *vector, uint32_t *entries, int prefer_file)
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
    int is_read = block != NULL && ll_read_one(&head, pool, sizeof(head));
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
        uint32_t length = 0;
        for (int i = 0; i < place_count; i++) {
            uint64_t word = *(const volatile uint64_t *)places[i].at;
            if (word != 0 && vector_has(word, head.arena, pool)) {
                if (found != 0 && word != found) {
                    return "the small-object allocator's arenas are not found for certain";
                }
                found = word;
                uint32_t beside = length_beside(i);
                /* Two that do not agree: the shorter one misses arenas at worst, and the self-test says so. */
                length = beside > head.arena && (length == 0 || beside < length) ? beside : length;
            }
        }
        if (found != 0) {
            *vector = found;
            *entries = length != 0 ? length : guess_length(found);
            return *entries > head.arena ? NULL
                                         : "the small-object allocator's list of arenas is not laid out as we know it";
        }
        /* Asking the kernel about every word takes 15 ms, so only where the first two ways lead nowhere. */
        find_places(head.arena, pool, pass == 1);
    }
    return "the small-object allocator's arenas are not found";
}

/* Copies entries of the vector; what was only guessed to be part of it, and is not, comes as entries not in use. With
   the lock. 0 when they could not be read. */
int
ll_read_entries(arena_entry *entries, uint64_t vector, uint32_t from, uint32_t count)
{
    if (!ll_read_one(entries, vector + from * sizeof(arena_entry), count * sizeof(arena_entry))) {
        return 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        pool_head head;
        int is_ours = is_sound_arena(&entries[i]);
        if (is_ours && entries[i].next_pool_address > first_pool(entries[i].address)) {
            is_ours = ll_read_one(&head, first_pool(entries[i].address), sizeof(head)) && head.arena == from + i;
        }
        if (!is_ours) {
            entries[i].address = 0;
        }
    }
    return 1;
}

void
ll_begin_reading(void)
{
    /* One that a fork left open reads the parent. */
    memory_file = -1;
}

void
ll_end_reading(void)
{
    if (memory_file >= 0) {
        close(memory_file);
        memory_file = -1;
    }
}

#endif
