/* What the files of the sampled census share: `arenas.c` scans, `arena_memory.c` finds the arenas and reads them,
   `kinds.c` knows classes by their address. */

#ifndef LEAKLINE_ARENAS_H
#define LEAKLINE_ARENAS_H

#include "native.h"

#if defined(__linux__) && defined(__LP64__)
#define CAN_SCAN 1
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

/* -- arena_memory.c: our own memory, read so that what is not there is an error, and where the arenas are */

#define MOST_PIECES 64

/* Reads pieces of equal size one after the other; how many came whole, up to the first that did not. */
int ll_read_pieces(void *to, const uint64_t *addresses, int pieces, size_t bytes);
int ll_read_one(void *to, uint64_t address, size_t bytes); /* 1 when all of it came */
void ll_begin_reading(void);
void ll_end_reading(void);
/* With the lock, between those two. NULL with the vector of arenas and its number of entries, or why there is none.
   `by_file` prefers the way of reading that is left where the first is forbidden. */
const char *ll_find_vector(uint64_t *vector, uint32_t *entries, int by_file);
/* With the lock: copies entries of the vector. Those that are no arenas have the address 0. 0 when it cannot be read. */
int ll_read_entries(arena_entry *entries, uint64_t vector, uint32_t from, uint32_t count);

/* -- kinds.c: the classes we know, by address

   Changed with the lock alone, and by the scan that is on: its row numbers hold until it learns. */

enum { AT_LEAST = 0, EXACTLY = 1 };

typedef struct {
    uint64_t address; /* or DEAD */
    uint16_t block; /* bytes of a block that holds one; 0: none does */
    uint8_t place;  /* of the object in its block: 0, 16 or 32 */
    uint8_t how;    /* AT_LEAST or EXACTLY that block */
    uint8_t is_metaclass;
    uint16_t crowd; /* most objects of it in one pool, of the scans so far; forgets slowly */
} ll_kind;

/* No address, and no word that a program would store. */
#define DEAD UINT64_C(0xDEADC1A55DEADC1A)

#define SIEVE_BITS 17
typedef struct {
    ll_kind *rows;
    PyObject **owners; /* weak references; NULL for classes that are never freed */
    uint32_t *slots; /* row + 1 by hash of the address */
    uint8_t *sieve; /* a bit by hash: most words are no class, and this says so from the nearest cache */
    uint32_t count, dead, room; /* rows; slots are four times the room */
} ll_kinds_known;

extern ll_kinds_known ll_kinds;

static inline uint64_t
ll_scattered(uint64_t key)
{
    return key * UINT64_C(0x9E3779B97F4A7C15);
}

static inline uint32_t
ll_kind_of(uint64_t address)
{
    uint64_t hash = ll_scattered(address);
    uint32_t bit = hash >> (64 - SIEVE_BITS);
    if (ll_likely(!(ll_kinds.sieve[bit >> 3] & (1 << (bit & 7))))) {
        return UINT32_MAX;
    }
    uint32_t mask = ll_kinds.room * 4 - 1;
    for (uint32_t at = (uint32_t)(hash >> 20) & mask;; at = (at + 1) & mask) {
        uint32_t row = ll_kinds.slots[at];
        if (row == 0) {
            return UINT32_MAX;
        }
        if (ll_kinds.rows[row - 1].address == address) {
            return row - 1;
        }
    }
}

/* What a class says of its objects; 0 when they never lie in a pool. */
int ll_describe_kind(ll_kind *made, uint64_t address, unsigned long flags, int64_t basic, int64_t item, uint64_t alloc);
PyObject *ll_owner_of(uint32_t row); /* the class as a new reference, or NULL when it is gone */
void ll_bury_dead_kinds(void);
int ll_learn_kinds(void); /* every class there is; -1 with an exception set. May move rows. */

#endif /* CAN_SCAN */
#endif
