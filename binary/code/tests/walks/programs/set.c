#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { char name[24]; int number; double weight; } Item;
static int by_name(const void *a, const void *b) {
    return strcmp(((Item *)a)->name, ((Item *)b)->name);
}
static unsigned seed = 1;
static unsigned next(void) { return seed = seed * 1664525 + 1013904223; }
static int step(int op, int64_t a, int64_t b, int64_t *r) {
    switch (op) { /* a table of jumps */
    case 0: *r = a + b; break;       case 1: *r = a - b; break;
    case 2: *r = a * b; break;       case 3: *r = b ? a / (b | 1) : 0; break;
    case 4: *r = a << (b & 63); break; case 5: *r = a >> (b & 31); break;
    case 6: *r = a < b; break;       case 7: *r = (uint64_t)a < (uint64_t)b ? a : b; break;
    case 8: *r = __builtin_popcountll(a); break; case 9: *r = (int8_t)a; break;
    default: return 1;
    }
    return 0;
}
static int (*const tests[])(int) = { 0 };
static int depth(int n) { return n < 2 ? n : depth(n - 1) + depth(n - 2); }
int main(void) {
    int64_t sum = tests[0] != 0;
    for (int round = 0; round < 40; round++) {
        Item *items = calloc(3000, sizeof *items);
        for (int i = 0; i < 3000; i++) {
            sprintf(items[i].name, "n%u", next() >> 8);
            items[i].number = i;
            items[i].weight = i / 3.0;
        }
        qsort(items, 3000, sizeof *items, by_name);
        for (int i = 0; i < 100000; i++) {
            int64_t r = 0;
            if (step(next() >> 28, next(), sum, &r) == 0) sum ^= r;
        }
        char text[64]; memset(text, 0, sizeof text);
        for (int i = 0; i < 3000; i++)
            if (memcmp(text, items[i].name, 4) < 0 && items[i].weight > sum % 7)
                memcpy(text, items[i].name, 8);
        sum += depth(18) + text[2];
        free(items);
    }
    printf("%ld\n", (long)sum);
}
