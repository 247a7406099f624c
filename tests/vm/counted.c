/*
 * Counts what a program does, while another samples it:
 *
 *     counted cycles two_functions 3      prints   cycles 2971034551 3001623940
 *
 * in user mode, and in all. The program's own output goes where it always goes; the counts come
 * last. Exit codes: 0; 2 could not.
 */
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int failed(const char *what) {
    perror(what);
    return 2;
}

int main(int argc, char **argv) {
    /* PERF_COUNT_HW_CPU_CYCLES, _INSTRUCTIONS: 0, 1 */
    static const char *const hardware[] = {"cycles", "instructions"};
    struct perf_event_attr event = {.type = PERF_TYPE_HARDWARE, .size = sizeof event, .config = 2};
    for (uint64_t i = 0; argc > 2 && i < 2; i++)
        if (strcmp(argv[1], hardware[i]) == 0) event.config = i;
    if (event.config == 2) {
        fprintf(stderr, "counted: say cycles or instructions, and a program with its arguments\n");
        return 2;
    }
    event.disabled = event.enable_on_exec = 1;

    int go[2];
    char byte;
    if (pipe(go) != 0) return failed("pipe");
    pid_t child = fork();
    if (child < 0) return failed("fork");
    if (child == 0) {
        close(go[1]);
        if (read(go[0], &byte, 1) != 1) _exit(2); /* the counter is there */
        execv(argv[2], argv + 2);
        _exit(failed(argv[2]));
    }
    int counters[2];
    for (int all = 0; all < 2; all++) {
        event.exclude_kernel = !all;
        counters[all] =
            (int)syscall(SYS_perf_event_open, &event, child, -1, -1, PERF_FLAG_FD_CLOEXEC);
        /* The child sees the pipe closed. */
        if (counters[all] < 0) return failed("perf_event_open");
    }
    int status;
    if (write(go[1], "", 1) != 1 || waitpid(child, &status, 0) != child)
        return failed("starting the program");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return 2;
    unsigned long long counts[2];
    for (int all = 0; all < 2; all++)
        if (read(counters[all], &counts[all], sizeof counts[all]) != sizeof counts[all])
            return failed("reading a counter");
    printf("%s %llu %llu\n", argv[1], counts[0], counts[1]);
    return 0;
}
