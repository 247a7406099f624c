// Calls of the vdso, whose data is out of reach of the code cache, and a sandbox in which only
// three system calls are allowed.
#include <sys/prctl.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int main(void) {
    struct timespec before, now;
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (int round = 0; round < 10000; round++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec < before.tv_sec) return 1;
        if (now.tv_sec == before.tv_sec && now.tv_nsec < before.tv_nsec) return 2;
        before = now;
    }
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
    if (write(1, "confined\n", 9) != 9) syscall(SYS_exit, 3);
    syscall(SYS_exit, 0);
    return 4;
}
