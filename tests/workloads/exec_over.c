/*
 * Two programs that replace each other in one process by exec, at the same addresses (built without
 * PIE): OTHER is the other one's name beside this one, MS how many milliseconds of CPU time each
 * turn takes here. After the seconds of CPU time given, the last line of output is the truth,
 * measured by the programs themselves over all turns:
 *
 *     {"exec_first": 1.49, "exec_second": 4.51}
 */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

__attribute__((noinline)) static void spin(void) {
    static volatile unsigned long sink;
    for (unsigned long i = 0; i < 200000; i++)
        sink += i * SEED;
}

/* SECONDS FIRST SECOND: what is left, and what each has had. */
int main(int argc, char **argv) {
    double begin = now(), used;
    double left = atof(argv[1]);
    double first = argc > 2 ? atof(argv[2]) : 0, second = argc > 3 ? atof(argv[3]) : 0;
    do
        spin();
    while ((used = now() - begin) < MS / 1000.0);
    left -= used;
    *(IS_FIRST ? &first : &second) += used;
    if (left > 0) {
        char other[4096], words[3][64];
        snprintf(other, sizeof other, "%s/%s", dirname(strdup(argv[0])), OTHER);
        snprintf(words[0], sizeof words[0], "%.9f", left);
        snprintf(words[1], sizeof words[1], "%.9f", first);
        snprintf(words[2], sizeof words[2], "%.9f", second);
        execl(other, other, words[0], words[1], words[2], (char *)NULL);
        perror(other);
        return 1;
    }
    printf("{\"exec_first\": %.6f, \"exec_second\": %.6f}\n", first, second);
    return 0;
}
