/* startup ROUNDS WAY... -- PROGRAM ARGUMENT...: runs the program once in each way in every round,
 * in rotating order, and prints a line for each round: the CPU time (user and system, its
 * children's included) and the wall time of each way, in microseconds. A way is the variables to
 * set, NAME=VALUE, with commas between; "" sets none. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

enum { WAYS_MAX = 16, VARIABLES_MAX = 1024, UNCOUNTED = 3 };

static double us(struct timeval time) {
    return 1e6 * (double)time.tv_sec + (double)time.tv_usec;
}

static double wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

/* Our environment and the variables of a way. */
static char **with(char *way) {
    char **variables = calloc(VARIABLES_MAX, sizeof *variables);
    int count = 0;
    for (char **ours = environ; *ours && count < VARIABLES_MAX - 8; ours++)
        variables[count++] = *ours;
    for (char *one = strtok(way, ","); one && count < VARIABLES_MAX - 1; one = strtok(NULL, ","))
        variables[count++] = one;
    return variables;
}

int main(int argc, char **argv) {
    int ways = 0, rounds = argc > 1 ? atoi(argv[1]) : 0, next = 2;
    char **environments[WAYS_MAX];
    for (; next < argc && strcmp(argv[next], "--") && ways < WAYS_MAX; next++)
        environments[ways++] = with(argv[next]);
    char **program = argv + next + 1;
    if (next + 1 >= argc || !ways)
        return 2;
    posix_spawn_file_actions_t quiet;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&quiet, 1, "/dev/null", O_WRONLY, 0);
    for (int round = 0; round < rounds + UNCOUNTED; round++) {
        double cpu[WAYS_MAX], wall[WAYS_MAX];
        for (int turn = 0; turn < ways; turn++) {
            int way = (turn + round) % ways, status;
            struct rusage used;
            pid_t child;
            double start = wall_us();
            if (posix_spawnp(&child, program[0], &quiet, NULL, program, environments[way])
                || wait4(child, &status, 0, &used) != child || status)
                return 1;
            wall[way] = wall_us() - start;
            cpu[way] = us(used.ru_utime) + us(used.ru_stime);
        }
        for (int way = 0; round >= UNCOUNTED && way < ways; way++)
            printf("%.1f %.1f%s", cpu[way], wall[way], way + 1 < ways ? " " : "\n");
    }
    return 0;
}
