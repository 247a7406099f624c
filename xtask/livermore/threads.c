/* Livermore loops 3, 4 and 17 by two threads, which take turns in pieces of 64 iterations: an
   ordered section (advance and await), a lock around the sums, a lock around all. Waiting threads
   spin, without events.

   `threads LOOP raw|traced ROUNDS` prints a line a round: ns from the start to the end of the later
   thread; where traced, also events with their times, each between two fences: thread, ns, kind
   (p plain, a arrives, d departs, r releases), object. The first lines are what an event costs. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <x86intrin.h>

enum { N = 12288, PIECE = 64, PIECES = N / PIECE, EVENTS = 8 * PIECES };

static double a[N + 64], b[N + 64], c[N + 64];
static double sum;
static atomic_int turn, locked, ready;
static int loop, traced;
static double ns_a_tick;

struct event { unsigned long ticks; char kind; int object; };
static struct {
    struct event events[EVENTS];
    int count;
    unsigned long end;
    char apart[128];
} threads[2];

static inline void event(int self, char kind, int object) {
    if (!traced) return;
    _mm_lfence();
    unsigned long ticks = __rdtsc();
    _mm_lfence();
    threads[self].events[threads[self].count++] = (struct event){ticks, kind, object};
}

static void await(int self, int number) {
    event(self, number ? 'a' : 'p', number);
    while (atomic_load_explicit(&turn, memory_order_acquire) < number) _mm_pause();
    event(self, number ? 'd' : 'p', number);
}

static void advance(int self, int number) {
    event(self, 'r', number);
    atomic_store_explicit(&turn, number, memory_order_release);
}

static void lock(int self) {
    event(self, 'a', 0);
    while (atomic_exchange_explicit(&locked, 1, memory_order_acquire))
        while (atomic_load_explicit(&locked, memory_order_relaxed)) _mm_pause();
    event(self, 'd', 0);
}

static void unlock(int self) {
    event(self, 'r', 0);
    atomic_store_explicit(&locked, 0, memory_order_release);
}

static void inner_product(int self, int piece) {
    double part = 0;
    for (int k = piece * PIECE; k < (piece + 1) * PIECE; k++) part += a[k] * b[k];
    await(self, piece);
    sum += part;
    advance(self, piece + 1);
}

static void banded(int self, int piece) {
    double part = 0;
    for (int k = piece * PIECE; k < (piece + 1) * PIECE; k++) {
        part -= a[k] * b[(k * 5) % N];
        c[k] = part;
    }
    lock(self);
    sum += part;
    unlock(self);
}

static void conditional(int self, int piece) {
    lock(self);
    double last = sum * 1e-9;
    for (int k = piece * PIECE; k < (piece + 1) * PIECE; k++) {
        double e = last * a[k] + b[k];
        last = c[k] > e ? e * .3 + .01 : e * .1;
        c[k] = last;
    }
    sum += last;
    unlock(self);
}

static void *work(void *argument) {
    int self = argument != NULL;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(self, &own);
    sched_setaffinity(0, sizeof own, &own);
    atomic_fetch_add(&ready, 1);
    while (atomic_load(&ready) < 2) _mm_pause();
    threads[self].count = 0;
    event(self, 'p', 0);
    unsigned long begun = __rdtsc();
    for (int piece = self; piece < PIECES; piece += 2) {
        if (loop == 3) inner_product(self, piece);
        else if (loop == 4) banded(self, piece);
        else conditional(self, piece);
    }
    threads[self].end = __rdtsc() - begun;
    event(self, 'p', 0);
    return NULL;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_RAW, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

int main(int count, char **words) {
    if (count != 4) return 2;
    loop = atoi(words[1]);
    double begun = now();
    unsigned long ticks = __rdtsc();
    while (now() - begun < 2e7) {}
    ns_a_tick = (now() - begun) / (double)(__rdtsc() - ticks);
    traced = 1;
    for (int i = 0; i < 40; i++) {
        threads[0].count = 0;
        unsigned long first = __rdtsc();
        for (int k = 0; k < 400; k++) event(0, 'p', k);
        printf("cost %.3f\n", (double)(__rdtsc() - first) * ns_a_tick / 400);
    }
    traced = words[2][0] == 't';
    for (int i = 0; i < N; i++) {
        a[i] = .01 + i % 7 * .01;
        b[i] = .02 + i % 5 * .01;
        c[i] = .03 + i % 3 * .01;
    }
    for (int round = 0; round < atoi(words[3]); round++) {
        pthread_t other;
        sum = 0;
        turn = locked = ready = 0;
        pthread_create(&other, NULL, work, (void *)1);
        work(NULL);
        pthread_join(other, NULL);
        unsigned long end = threads[0].end > threads[1].end ? threads[0].end : threads[1].end;
        printf("round %.1f\n", (double)end * ns_a_tick);
        unsigned long base = threads[0].events[0].ticks;
        for (int self = 0; self < 2 && traced; self++)
            for (int i = 0; i < threads[self].count; i++) {
                struct event *it = &threads[self].events[i];
                double ns = (double)(long)(it->ticks - base) * ns_a_tick;
                printf("%d %.1f %c %d\n", self, ns, it->kind, it->object);
            }
    }
    return 0;
}
