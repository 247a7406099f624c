/* Runs the Livermore loops and prints, a line a loop: number, ticks of the time stamp counter of
   one execution (mean of the fastest tenth), events of one execution, and a sum of all data.

   `harness measure EXECUTIONS LOOP...` times executions one by one; `harness run SECONDS LOOP...`
   executes them in turn for a time, to be sampled or traced.

   Where events are compiled in, the place that they go to is here: 32 KiB, over and over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>
#include "kernels.h"

#ifdef OWN_TRACER
/* What asm-events refers to. The first half of each 64 KiB means that there is no room. */
static char room[3 << 16] __attribute__((aligned(1 << 16)));
__attribute__((visibility("hidden"))) __thread char *dcpi_trace_position = room + (1 << 15);
__attribute__((visibility("hidden"))) char *dcpi_trace_start = room + (1 << 15);
__attribute__((visibility("hidden"))) long dcpi_trace_fulls;
asm(".text\n.globl dcpi_trace_origin\n.hidden dcpi_trace_origin\ndcpi_trace_origin:\n"
    ".globl dcpi_trace_full\n.hidden dcpi_trace_full\ndcpi_trace_full:\n"
    "addq $1, dcpi_trace_fulls(%rip)\n"
    "movq dcpi_trace_start(%rip), %r11\n"
    "movq %r11, %fs:dcpi_trace_position@tpoff\n"
    "ret\n");

static void begin_events(void) { dcpi_trace_position = dcpi_trace_start, dcpi_trace_fulls = 0; }
static long events(int bytes) {
    return (dcpi_trace_fulls * (1L << 15) + (dcpi_trace_position - dcpi_trace_start)) / bytes;
}
#else
static void begin_events(void) {}
static long events(int bytes) { return 0 * bytes; }
#endif

/* The cost of an event alone, in ticks: of a thousand, one after the other. */
#define EVENT(fence) \
    "movl $1, 8(%%rsi); movq %%rax, %%r9; movq %%rdx, %%r10; " fence "rdtsc; " fence \
    "movl %%eax, (%%rsi); movl %%edx, 4(%%rsi); leaq 16(%%rsi), %%rsi; " \
    "movq %%r9, %%rax; movq %%r10, %%rdx\n"
#define THOUSAND(fence) \
    asm volatile(".rept 1000\n" EVENT(fence) ".endr" : "+S"(at) : : "r9", "r10", "memory")

static double in_vitro(int fenced) {
    static char buffer[1 << 15];
    double least = 1e9;
    for (int i = 0; i < 300; i++) {
        char *at = buffer;
        unsigned long begun = __rdtsc();
        if (fenced) THOUSAND("lfence; ");
        else THOUSAND("");
        double ticks = (double)(__rdtsc() - begun) / 1000;
        if (ticks < least) least = ticks;
    }
    return least;
}

static int ascending(const void *a, const void *b) {
    double one = *(const double *)a, other = *(const double *)b;
    return one < other ? -1 : one > other;
}

static void measure(int loop, int executions, int bytes) {
    double *ticks = malloc(sizeof *ticks * (size_t)executions);
    long count = 0;
    for (int i = 0; i < executions; i++) {
        set_up();
        begin_events();
        _mm_lfence();
        unsigned long begun = __rdtsc();
        loops[loop]();
        _mm_lfence();
        ticks[i] = (double)(__rdtsc() - begun);
        count = events(bytes);
    }
    qsort(ticks, (size_t)executions, sizeof *ticks, ascending);
    int tenth = (executions + 9) / 10;
    double sum = 0;
    for (int i = 0; i < tenth; i++) sum += ticks[i];
    printf("%d %.2f %ld %.17g\n", loop, sum / tenth, count, checksum());
    free(ticks);
}

#ifdef OWN_TRACER
/* The events of one execution: ticks since its begin, and place. None where there was no room. */
static void trace(int loop) {
    for (int i = 0; i < 5; i++) {
        set_up();
        begin_events();
        _mm_lfence();
        unsigned long begun = __rdtsc();
        loops[loop]();
        long n = events(16);
        if (i < 4 || dcpi_trace_fulls) continue;
        for (long k = 0; k < n; k++) {
            unsigned long ticks;
            int place;
            memcpy(&ticks, dcpi_trace_start + 16 * k, 8);
            memcpy(&place, dcpi_trace_start + 16 * k + 8, 4);
            printf("%d %ld %d 0\n", loop, (long)(ticks - begun), place);
        }
    }
}
#endif

int main(int count, char **words) {
    if (count < 4) return 2;
#ifdef OWN_TRACER
    if (!strcmp(words[1], "trace")) {
        for (int i = 3; i < count; i++) trace(atoi(words[i]));
        return 0;
    }
#endif
    if (!strcmp(words[1], "measure")) {
        int bytes = atoi(words[3]);
        printf("0 %.3f %.3f 0\n", in_vitro(0), in_vitro(1));
        for (int i = 4; i < count; i++) measure(atoi(words[i]), atoi(words[2]), bytes);
        return 0;
    }
    double seconds = atof(words[2]);
    long rounds = 0;
    clock_t end = clock() + (clock_t)(seconds * CLOCKS_PER_SEC);
    do {
        set_up();
        for (int i = 3; i < count; i++)
            for (int k = 0; k < 20; k++) loops[atoi(words[i])]();
        rounds++;
    } while (seconds > 0 ? clock() < end : rounds < -seconds);
    printf("%.17g\n", checksum());
    return 0;
}
