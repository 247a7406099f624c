/* The program that the guide profiles: counts pseudo-random words in a hash table.
 *
 *     cc -O2 -g -o words words.c && ./words
 *     cc -O2 -g -DBUCKETS=262144 -o words words.c && ./words     # the faster build
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifndef BUCKETS
#define BUCKETS 16384 /* too few for DISTINCT words: chains of 12 */
#endif
#define DISTINCT 200000
#define COUNTED 8000000

struct word {
    struct word *next;
    uint64_t key;
    uint64_t count;
};

static struct word *table[BUCKETS];

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

__attribute__((noinline)) static uint64_t hash(uint64_t key)
{
    uint64_t value = 14695981039346656037u;
    for (int byte = 0; byte < 8; byte++)
        value = (value ^ (key >> 8 * byte & 255)) * 1099511628211u;
    return value ^ value >> 32;
}

__attribute__((noinline)) static struct word *look_up(uint64_t key)
{
    struct word **bucket = &table[hash(key) % BUCKETS], *word = *bucket;
    while (word && word->key != key)
        word = word->next;
    if (!word) {
        word = calloc(1, sizeof *word);
        word->key = key;
        word->next = *bucket;
        *bucket = word;
    }
    return word;
}

__attribute__((noinline)) static uint64_t checksum(void)
{
    uint64_t sum = 0;
    for (size_t at = 0; at < BUCKETS; at++)
        for (struct word *word = table[at]; word; word = word->next)
            sum += word->key % 1000003 * word->count;
    return sum;
}

int main(void)
{
    uint64_t state = 1, sum = 0;
    for (int counted = 0; counted < COUNTED; counted++) {
        look_up(next_random(&state) % DISTINCT * 0x9e3779b97f4a7c15u)->count++;
        if (counted % 200000 == 0)
            sum ^= checksum();
    }
    printf("%llx\n", (unsigned long long)(sum ^ checksum()));
    return 0;
}
