/*
 * Two plugins that take turns at one address: each is loaded, works, and is unloaded before the
 * other comes. TURN_MS of CPU time for the first, three times as much for the second, until the
 * seconds of CPU time given are over. The last line of output is the truth:
 *
 *     {"first": 1.49, "second": 4.51, "turns": 200, "elsewhere": 0}
 *
 * elsewhere: turns in which a plugin was not where the one before it had been.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void *last;
static long elsewhere;

static double turn(const char *plugin, double seconds) {
    static volatile uint64_t sink;
    void *handle = dlopen(plugin, RTLD_NOW);
    uint64_t (*work)(uint64_t, uint64_t) =
        handle ? (uint64_t (*)(uint64_t, uint64_t))dlsym(handle, "library_work") : NULL;
    double begin = now(), used;
    if (work == NULL) {
        fprintf(stderr, "%s: %s\n", plugin, dlerror());
        exit(1);
    }
    elsewhere += last != NULL && last != (void *)work;
    last = (void *)work;
    do
        sink = work(20000, sink | 1);
    while ((used = now() - begin) < seconds);
    dlclose(handle);
    return used;
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1, first = 0, second = 0;
    char *directory = dirname(strdup(argv[0])), plugins[2][4096];
    long turns = 0;
    snprintf(plugins[0], sizeof plugins[0], "%s/first.so", directory);
    snprintf(plugins[1], sizeof plugins[1], "%s/second.so", directory);
    for (; first + second < seconds; turns += 2) {
        first += turn(plugins[0], TURN_MS / 1000.0);
        second += turn(plugins[1], 3 * TURN_MS / 1000.0);
    }
    printf("{\"first\": %.6f, \"second\": %.6f, \"turns\": %ld, \"elsewhere\": %ld}\n", first,
           second, turns, elsewhere);
    return 0;
}
