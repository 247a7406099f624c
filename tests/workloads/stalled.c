/* Procedures that are each stalled by one thing: stalled NAME SECONDS [ROUNDS]. With ROUNDS it does
 * so many, however long they take. Prints how many rounds it did, and how long one took. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MANY 1000000
#define BYTES (256u << 20)

static uint64_t sink;
static volatile int over;

static void *memory(size_t bytes) {
    void *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(3);
    return at;
}

/* Each load waits for the one before, in memory that no cache holds. */
__attribute__((noinline)) static void chase(void **from) {
    void **at = from;
    for (long i = 0; i < MANY; i++) at = (void **)*at;
    sink += (uint64_t)at;
}

/* The same in large pages, which the TLB has entries for. */
__attribute__((noinline)) static void chase_large(void **from) {
    void **at = from;
    for (long i = 0; i < MANY; i++) at = (void **)*at;
    sink += (uint64_t)at + 1;
}

/* A load of what was stored just before, but wider: it cannot be forwarded. */
__attribute__((noinline)) static void alias(char *bytes) {
    for (long i = 0; i < MANY; i++) {
        uint64_t wide;
        __asm__ volatile("movb %b1,%0\n\tmovb %b1,%2" : "=m"(bytes[0]), "+r"(sink), "=m"(bytes[4]));
        __asm__ volatile("movq %1,%0" : "=r"(wide) : "m"(*(uint64_t *)bytes));
        sink = wide + 1;
    }
}

/* A branch that nobody can predict. */
__attribute__((noinline)) static void unpredictable(uint64_t seed) {
    uint64_t x = seed, a = 0, b = 0;
    for (long i = 0; i < MANY; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        if (x >> 63)
            __asm__ volatile("add $3,%0" : "+r"(a));
        else
            __asm__ volatile("sub $5,%0" : "+r"(b));
    }
    sink += a + b + x;
}

/* Divisions, each of the result of the one before. */
__attribute__((noinline)) static void divider(uint64_t seed) {
    uint64_t x = seed | 1ull << 63, d = 3;
    for (long i = 0; i < MANY; i++) {
        __asm__ volatile("xor %%edx,%%edx\n\tdivq %1\n\tor %2,%0"
                         : "+a"(x)
                         : "r"(d), "r"(1ull << 63)
                         : "rdx", "cc");
    }
    sink += x;
}

/* Code of 1 MiB: a line here and a line there. */
__attribute__((noinline)) static void code(void) {
    __asm__ volatile(
        ".altmacro\n"
        ".macro block k next\n"
        "lcode\\k: add $1,%%rax\n"
        ".if \\next == 0\n dec %%rcx\n jnz lcode0\n jmp lcodeend\n"
        ".else\n jmp lcode\\next\n .endif\n"
        ".skip 512+64-9\n"
        ".endm\n"
        " .p2align 6\n .set i,0\n"
        ".rept 2048\n block %%i,%%((i*389+1)%%2048)\n .set i,i+1\n .endr\n"
        "lcodeend:\n"
        ".noaltmacro\n" ::"c"(1000L) : "rax", "cc");
}

/* A word of each of very many pages. */
__attribute__((noinline)) static void pages(char *bytes) {
    uint64_t x = 1, sum = 0;
    for (long i = 0; i < MANY; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        sum += *(uint64_t *)(bytes + (x >> 40) % (BYTES / 4096) * 4096 + 64);
    }
    sink += sum;
}

/* Nothing but stores, each to a line of its own. */
__attribute__((noinline)) static void stores(char *bytes) {
    for (long i = 0; i < BYTES / 64; i++) *(volatile uint64_t *)(bytes + i * 64) = i;
}

/* A line of memory that two threads write in turn. */
static uint64_t contended[8];
__attribute__((noinline)) static void locks(void) {
    for (long i = 0; i < MANY; i++) __asm__ volatile("lock incq %0" : "+m"(contended[0]));
}
static void *other(void *unused) {
    while (!over) locks();
    return unused;
}

/* Instructions that wait until all before them are done. */
__attribute__((noinline)) static void barriers(void) {
    for (long i = 0; i < MANY; i++) __asm__ volatile("mfence" ::: "memory");
}

/* A copy of memory that no cache holds, word by word. */
__attribute__((noinline, optimize("no-tree-loop-distribute-patterns", "no-tree-vectorize")))
static void copy(uint64_t *to, const uint64_t *from, long n) {
    for (long i = 0; i < n; i += 4) {
        to[i] = from[i], to[i + 1] = from[i + 1], to[i + 2] = from[i + 2], to[i + 3] = from[i + 3];
    }
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec + at.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *name = argv[1];
    char *bytes = memory(BYTES), *more = 0;
    int large = !strcmp(name, "chase_large");
    /* At a boundary of large pages: the mapping is made again, with room to move. */
    if (large) {
        bytes = memory(BYTES + (2u << 20));
        bytes += -(uint64_t)bytes % (2u << 20);
    }
    madvise(bytes, BYTES, large ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(bytes, 1, BYTES);
    pthread_t thread = 0;
    if (!strcmp(name, "chase") || large) {
        /* One cycle through all lines (Sattolo). */
        size_t lines = BYTES / 64;
        uint32_t *order = memory(lines * 4);
        for (size_t i = 0; i < lines; i++) order[i] = i;
        uint64_t x = 1;
        for (size_t i = lines - 1; i > 0; i--) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            size_t j = (x >> 33) % i;
            uint32_t swap = order[i];
            order[i] = order[j], order[j] = swap;
        }
        for (size_t i = 0; i < lines; i++)
            *(void **)(bytes + 64ull * order[i]) = bytes + 64ull * order[(i + 1) % lines];
    }
    if (!strcmp(name, "copy")) more = memory(BYTES), memset(more, 2, BYTES);
    if (!strcmp(name, "locks")) pthread_create(&thread, 0, other, 0);
    long rounds = 0, most = argc > 3 ? atol(argv[3]) : 0;
    double begin = now(), end = begin + atof(argv[2]);
    for (; most ? rounds < most : now() < end; rounds++) {
        if (!strcmp(name, "chase")) chase((void **)bytes);
        else if (large) chase_large((void **)bytes);
        else if (!strcmp(name, "alias")) alias(bytes);
        else if (!strcmp(name, "unpredictable")) unpredictable(rounds);
        else if (!strcmp(name, "divider")) divider(rounds);
        else if (!strcmp(name, "code")) code();
        else if (!strcmp(name, "pages")) pages(bytes);
        else if (!strcmp(name, "stores")) stores(bytes);
        else if (!strcmp(name, "locks")) locks();
        else if (!strcmp(name, "barriers")) barriers();
        else if (!strcmp(name, "copy")) copy((uint64_t *)more, (uint64_t *)bytes, BYTES / 8);
        else return 2;
    }
    double took = now() - begin;
    over = 1;
    if (thread) pthread_join(thread, 0);
    printf("{\"rounds\": %ld, \"round_s\": %.9f}\n", rounds, took / rounds);
    return 0;
}
