/*
 * Memory-bound, a fixed amount of work: `triad UNITS`. A unit is one pass of a[i] = b[i] + 3 * c[i]
 * over three arrays of 64 MiB together (McCalpin's STREAM triad; the paper measured its relatives).
 * Prints a value that depends on all of it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { TOTAL_BYTES = 64 << 20, LENGTH = TOTAL_BYTES / 3 / sizeof(double), HUGE_BYTES = 2 << 20 };

static double *a, *b, *c;

/* In huge pages where the kernel has them: which small pages it gives differs from run to run, and
 * the cache's hits with them. */
static double *array(void) {
    size_t bytes = (LENGTH * sizeof(double) + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES;
    void *memory = aligned_alloc(HUGE_BYTES, bytes);
    if (memory == NULL) {
        fprintf(stderr, "triad: no memory\n");
        exit(2);
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

__attribute__((noinline)) static void unit(double factor) {
    for (long i = 0; i < LENGTH; i++)
        a[i] = b[i] + factor * c[i];
}

int main(int argc, char **argv) {
    long units = argc == 2 ? atol(argv[1]) : 0;
    double sum = 0;
    if (units <= 0) {
        fprintf(stderr, "triad: say how many units of work, at least 1\n");
        return 2;
    }
    a = array();
    b = array();
    c = array();
    for (long i = 0; i < LENGTH; i++) {
        b[i] = (double)i;
        c[i] = 1.0;
    }
    while (units-- > 0) {
        unit(3.0 + (double)units);
        sum += a[units % LENGTH];
    }
    printf("%g\n", sum);
    return 0;
}
