/*
 * Processes that hardly live: forks and executes itself over and over for the seconds given. Each
 * child burns 1 to 10 ms of CPU time, of random length, in churn_child() and is gone, usually
 * before the daemon can look at it. Prints {"children": 9000, "churn_child_s": 49.5}: the CPU time
 * that the children were told to burn.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Microseconds of work between two looks at the clock, so that nearly all samples are here and not
 * in the clock's system call. */
__attribute__((noinline)) uint64_t churn_child(uint64_t rounds, uint64_t x) {
    for (uint64_t i = 0; i < rounds; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        x ^= x >> 29;
    }
    return x;
}

static int child(double burn_s) {
    static volatile uint64_t sink;
    double end = seconds_of(CLOCK_PROCESS_CPUTIME_ID) + burn_s;
    while (seconds_of(CLOCK_PROCESS_CPUTIME_ID) < end)
        sink = churn_child(20000, sink | 1);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--child") == 0)
        return child(atof(argv[2]));
    double end = seconds_of(CLOCK_MONOTONIC) + (argc > 1 ? atof(argv[1]) : 1), burned_s = 0;
    long children = 0;
    srand(1);
    while (seconds_of(CLOCK_MONOTONIC) < end) {
        char burn[32];
        double burn_s = 1e-3 + 9e-3 * rand() / (double)RAND_MAX;
        snprintf(burn, sizeof burn, "%.6f", burn_s);
        pid_t pid = fork();
        if (pid == 0) {
            execl("/proc/self/exe", argv[0], "--child", burn, (char *)NULL);
            _exit(127);
        }
        int status;
        if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) ||
            WEXITSTATUS(status) != 0) {
            fprintf(stderr, "a child could not be run\n");
            return 2;
        }
        burned_s += burn_s;
        children++;
    }
    printf("{\"children\": %ld, \"churn_child_s\": %.6f}\n", children, burned_s);
    return 0;
}
