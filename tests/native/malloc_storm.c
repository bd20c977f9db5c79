/* Eight threads allocate, check and free blocks with every function while allocations are sampled. Prints the sampled
 * bytes that remain after the blocks are freed, and after 96 MiB are kept. Exits with 1 if a block was damaged. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 256
#define ROUNDS 60000

struct library {
    int64_t bytes;
    char name[64];
};

static void (*arm)(int);
static int (*outstanding)(struct library *, int);

static int is_damaged(const unsigned char *block, size_t size, unsigned char tag)
{
    return block && (block[0] != tag || block[size / 2] != tag || block[size - 1] != tag);
}

static void *work(void *argument)
{
    uint64_t random = (uintptr_t)argument * UINT64_C(0x9E3779B97F4A7C15) + 1;
    unsigned char *blocks[BLOCKS] = {0}, tag = (unsigned char)(uintptr_t)argument;
    size_t sizes[BLOCKS] = {0};
    uintptr_t damaged = 0;
    for (int round = 0; round < ROUNDS; round++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        int i = (int)(random % BLOCKS), how = (int)((random >> 50) % 6);
        size_t size = (random >> 20) % ((random >> 40) % 64 ? 3000 : 900000) + 1;
        damaged += is_damaged(blocks[i], sizes[i], tag);
        if (how == 0) {
            size_t least = size < sizes[i] ? size : sizes[i];
            blocks[i] = realloc(blocks[i], size);
            damaged += least && is_damaged(blocks[i], least, tag);
        } else {
            void *block = NULL;
            free(blocks[i]);
            if (how == 1)
                block = malloc(size);
            if (how == 2)
                for (size_t at = 0, bad = !(block = calloc(size, 1)); at < size; at += 97)
                    damaged += bad || ((unsigned char *)block)[at] != 0;
            if (how == 3)
                damaged += posix_memalign(&block, 64, size) != 0;
            if (how == 4)
                block = aligned_alloc(64, (size + 63) & ~(size_t)63);
            if (how == 5)
                block = memalign(64, size);
            damaged += !block || (how > 2 && (uintptr_t)block % 64);
            blocks[i] = block;
        }
        sizes[i] = size;
        memset(blocks[i], tag, size);
    }
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[i]);
    return (void *)damaged;
}

static void print_bytes(const char *when)
{
    static struct library found[64];
    int64_t bytes = 0;
    for (int count = outstanding(found, 64), i = 0; i < count; i++)
        bytes += strcmp(found[i].name, "malloc_storm") ? 0 : found[i].bytes;
    printf("%s %lld\n", when, (long long)bytes);
}

int main(void)
{
    pthread_t threads[8];
    uintptr_t damaged = 0;
    *(void **)&arm = dlsym(RTLD_DEFAULT, "leakline_malloc_arm");
    *(void **)&outstanding = dlsym(RTLD_DEFAULT, "leakline_malloc_outstanding");
    if (!arm || !outstanding)
        return 2;
    arm(1);
    for (uintptr_t i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i + 1));
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(threads[i], &result);
        damaged += (uintptr_t)result;
    }
    print_bytes("freed");
    void *volatile kept;
    for (int i = 0; i < 64; i++)
        kept = malloc(1 << 20);
    for (int i = 0; i < 32 * 1024; i++)
        kept = malloc(1024);
    print_bytes("kept");
    return damaged != 0 || !kept;
}
