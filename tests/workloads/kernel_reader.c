/*
 * Reads /dev/zero, 1 MiB at a time, for the seconds of CPU time given: nearly all of that is spent
 * in the kernel. Prints {"cpu_s": ..., "system_s": ...}, of which system_s is the kernel's part by
 * the kernel's own account.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double cpu_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv) {
    static char buffer[1 << 20];
    double seconds = argc > 1 ? atof(argv[1]) : 1;
    int zero = open("/dev/zero", O_RDONLY);
    if (zero < 0) {
        perror("/dev/zero");
        return 2;
    }
    while (cpu_s() < seconds) {
        if (read(zero, buffer, sizeof buffer) != (ssize_t)sizeof buffer) {
            perror("reading /dev/zero");
            return 2;
        }
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"cpu_s\": %.6f, \"system_s\": %.6f}\n", cpu_s(),
           (double)usage.ru_stime.tv_sec + 1e-6 * (double)usage.ru_stime.tv_usec);
    return 0;
}
