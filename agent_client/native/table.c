/* Tables in memory of our own, so that counting does not change what is counted. */

#include "native.h"

#include <string.h>

#if defined(_WIN32)
#include <stdlib.h>
#else
#include <sys/mman.h>
#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#endif

void *
ll_map(size_t bytes)
{
#if defined(_WIN32)
    return calloc(1, bytes);
#else
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
#endif
}

void
ll_unmap(void *memory, size_t bytes)
{
    if (memory == NULL) {
        return;
    }
#if defined(_WIN32)
    (void)bytes;
    free(memory);
#else
    munmap(memory, bytes);
#endif
}

static inline uint64_t
mixed(uint64_t key)
{
    /* The upper bits of a product with the golden section are well spread whatever the lower bits of the key are. */
    return key * UINT64_C(0x9E3779B97F4A7C15);
}

/* -- pointer to value */

typedef struct {
    const void *key;
    int64_t value;
} entry;

struct ll_table {
    entry *entries;
    size_t count;
    size_t max_bytes;
    unsigned bits;
};

enum { FIRST_BITS = 10 };

static inline size_t
capacity_of(const ll_table *table)
{
    return (size_t)1 << table->bits;
}

ll_table *
ll_table_new(size_t max_bytes)
{
    ll_table *table = ll_map(sizeof *table);
    if (table == NULL) {
        return NULL;
    }
    table->bits = FIRST_BITS;
    table->max_bytes = max_bytes;
    table->entries = ll_map(capacity_of(table) * sizeof(entry));
    if (table->entries == NULL) {
        ll_unmap(table, sizeof *table);
        return NULL;
    }
    return table;
}

static inline entry *
place_of(const ll_table *table, const void *key)
{
    size_t mask = capacity_of(table) - 1;
    size_t i = (size_t)(mixed((uintptr_t)key) >> (64 - table->bits));
    while (table->entries[i].key != NULL && table->entries[i].key != key) {
        i = (i + 1) & mask;
    }
    return &table->entries[i];
}

int64_t *
ll_table_find(const ll_table *table, const void *key)
{
    entry *found = place_of(table, key);
    return found->key == NULL ? NULL : &found->value;
}

static int
grow(ll_table *table)
{
    size_t capacity = capacity_of(table);
    if (2 * capacity * sizeof(entry) > table->max_bytes) {
        return -1;
    }
    entry *old = table->entries;
    entry *larger = ll_map(2 * capacity * sizeof(entry));
    if (larger == NULL) {
        return -1;
    }
    table->entries = larger;
    table->bits++;
    for (size_t i = 0; i < capacity; i++) {
        if (old[i].key != NULL) {
            *place_of(table, old[i].key) = old[i];
        }
    }
    ll_unmap(old, capacity * sizeof(entry));
    return 0;
}

int64_t *
ll_table_at(ll_table *table, const void *key)
{
    entry *found = place_of(table, key);
    if (found->key != NULL) {
        return &found->value;
    }
    if (table->count >= capacity_of(table) / 2) {
        /* At its maximum size the table is filled up to 7/8 before it refuses a key. */
        if (grow(table) < 0 && table->count >= capacity_of(table) / 8 * 7) {
            return NULL;
        }
        found = place_of(table, key);
    }
    found->key = key;
    found->value = 0;
    table->count++;
    return &found->value;
}

size_t
ll_table_bytes(const ll_table *table)
{
    return capacity_of(table) * sizeof(entry);
}

int
ll_table_next(const ll_table *table, size_t *position, const void **key, int64_t *value)
{
    for (; *position < capacity_of(table); ++*position) {
        const entry *one = &table->entries[*position];
        if (one->key != NULL) {
            *key = one->key;
            *value = one->value;
            ++*position;
            return 1;
        }
    }
    return 0;
}

void
ll_table_free(ll_table *table)
{
    if (table != NULL) {
        ll_unmap(table->entries, capacity_of(table) * sizeof(entry));
        ll_unmap(table, sizeof *table);
    }
}

/* -- addresses that were seen

   Small objects are in pools of 16 KiB, so a page of bits serves hundreds of them; a single large object costs one page
   of bits, 128 bytes. Pages come from chunks, so only the index moves when the set grows. */

enum { PAGE_SHIFT = 14, GRAIN_SHIFT = 4, PAGE_WORDS = (1 << (PAGE_SHIFT - GRAIN_SHIFT)) / 64 };
enum { CHUNK_PAGES = 512, CHUNK_BYTES = CHUNK_PAGES * PAGE_WORDS * 8 };

struct ll_seen {
    ll_table *index; /* page number + 1 -> its bits */
    uint64_t *free_pages;
    size_t free_count;
    void **chunks;
    size_t chunk_count, chunk_room;
    uintptr_t last_page;
    uint64_t *last_bits;
};

ll_seen *
ll_seen_new(size_t max_bytes)
{
    ll_seen *seen = ll_map(sizeof *seen);
    if (seen == NULL) {
        return NULL;
    }
    seen->chunk_room = max_bytes / CHUNK_BYTES;
    seen->chunk_room = seen->chunk_room ? seen->chunk_room : 1;
    seen->chunks = ll_map(seen->chunk_room * sizeof(void *));
    seen->index = ll_table_new(max_bytes);
    if (seen->chunks == NULL || seen->index == NULL) {
        ll_seen_free(seen);
        return NULL;
    }
    return seen;
}

static uint64_t *
new_page(ll_seen *seen)
{
    if (seen->free_count == 0) {
        if (seen->chunk_count == seen->chunk_room) {
            return NULL;
        }
        void *chunk = ll_map(CHUNK_BYTES);
        if (chunk == NULL) {
            return NULL;
        }
        seen->chunks[seen->chunk_count++] = chunk;
        seen->free_pages = chunk;
        seen->free_count = CHUNK_PAGES;
    }
    uint64_t *page = seen->free_pages;
    seen->free_pages += PAGE_WORDS;
    seen->free_count--;
    return page;
}

int
ll_seen_add(ll_seen *seen, const void *object)
{
    uintptr_t page = ((uintptr_t)object >> PAGE_SHIFT) + 1;
    if (page != seen->last_page) {
        int64_t *at = ll_table_at(seen->index, (const void *)page);
        if (at == NULL) {
            return -1;
        }
        if (*at == 0) {
            uint64_t *bits = new_page(seen);
            if (bits == NULL) {
                return -1;
            }
            *at = (int64_t)(uintptr_t)bits;
        }
        seen->last_page = page;
        seen->last_bits = (uint64_t *)(uintptr_t)*at;
    }
    unsigned grain = (unsigned)((uintptr_t)object >> GRAIN_SHIFT) & (PAGE_WORDS * 64 - 1);
    uint64_t bit = UINT64_C(1) << (grain & 63);
    uint64_t *word = &seen->last_bits[grain >> 6];
    if (*word & bit) {
        return 0;
    }
    *word |= bit;
    return 1;
}

int
ll_seen_has(ll_seen *seen, const void *object)
{
    uintptr_t page = ((uintptr_t)object >> PAGE_SHIFT) + 1;
    if (page != seen->last_page) {
        int64_t *at = ll_table_find(seen->index, (const void *)page);
        if (at == NULL || *at == 0) {
            return 0;
        }
        seen->last_page = page;
        seen->last_bits = (uint64_t *)(uintptr_t)*at;
    }
    unsigned grain = (unsigned)((uintptr_t)object >> GRAIN_SHIFT) & (PAGE_WORDS * 64 - 1);
    return (int)(seen->last_bits[grain >> 6] >> (grain & 63) & 1);
}

size_t
ll_seen_bytes(const ll_seen *seen)
{
    return seen->chunk_count * CHUNK_BYTES + ll_table_bytes(seen->index);
}

void
ll_seen_free(ll_seen *seen)
{
    if (seen == NULL) {
        return;
    }
    for (size_t i = 0; i < seen->chunk_count; i++) {
        ll_unmap(seen->chunks[i], CHUNK_BYTES);
    }
    ll_unmap(seen->chunks, seen->chunk_room * sizeof(void *));
    ll_table_free(seen->index);
    ll_unmap(seen, sizeof *seen);
}
