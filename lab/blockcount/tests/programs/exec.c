// Children made by vfork, posix_spawn and fork that execute this program again by path,
// descriptor and /proc/self/exe; errors of exec are answered.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void work(void);
__asm__(".text\n"
        "work:\n"
        "at_1_begin: mov $1000, %ecx\n"
        "at_1000_round: add %rcx, %rax\n"
        "dec %ecx\n"
        "jnz at_1000_round\n"
        "at_1_end: ret\n"
        "at_x_end:\n");

extern char **environ;

static void reap(void) {
    int status;
    wait(&status);
    if (status != 7 << 8) _exit(1);
}

static void handler(int signal) { (void)signal; }

int main(int argc, char **argv) {
    work();
    if (argc > 1) return strcmp(argv[0], "renamed") == 0 ? 7 : 2;
    char *arguments[] = {"renamed", "child", 0};
    signal(SIGUSR1, handler);
    if (vfork() == 0) {
        execv("/proc/self/exe", arguments);
        _exit(3);
    }
    reap();
    pid_t pid;
    if (posix_spawn(&pid, argv[0], 0, 0, arguments, environ) != 0) return 4;
    reap();
    if (posix_spawn(&pid, "/no/such/program", 0, 0, arguments, environ) != ENOENT) return 5;
    int file = open(argv[0], O_RDONLY | O_CLOEXEC);
    if (fork() == 0) {
        fexecve(file, arguments, environ);
        _exit(6);
    }
    reap();
    execv("/etc/passwd", arguments);
    if (errno != EACCES) return 8;
    execv("/no/such/program", arguments);
    if (errno != ENOENT) return 9;
    // The handler is still there after all this.
    raise(SIGUSR1);
    char own[4096] = {0};
    if (readlink("/proc/self/exe", own, sizeof own - 1) <= 0) return 10;
    return strcmp(own, argv[0]) == 0 ? 0 : 11;
}
