// Executes a program one instruction at a time and prints how often each address was executed:
// step PROGRAM FIRST LAST. Repeated string instructions count once.
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    unsigned long first = strtoul(argv[2], 0, 16), last = strtoul(argv[3], 0, 16), before = 0;
    unsigned *counts = calloc(last - first, sizeof *counts);
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        dup2(2, 1);
        execl(argv[1], argv[1], (char *)0);
        _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
    while (WIFSTOPPED(status)) {
        struct user_regs_struct registers;
        ptrace(PTRACE_GETREGS, child, 0, &registers);
        unsigned long at = registers.rip;
        if (at >= first && at < last) {
            long code = ptrace(PTRACE_PEEKTEXT, child, at, 0);
            int repeated = (code & 0xff) == 0xf3 || (code & 0xff) == 0xf2;
            if (!(repeated && at == before)) counts[at - first]++;
        }
        before = at;
        ptrace(PTRACE_SINGLESTEP, child, 0, 0);
        waitpid(child, &status, 0);
    }
    for (unsigned long at = first; at < last; at++)
        if (counts[at - first]) printf("%lx %u\n", at, counts[at - first]);
    return argc == 4 && WIFEXITED(status) ? 0 : 1;
}
