/*
 * Copies the program named first into memory and executes it from there with the other words: a
 * program that is in no directory (memfd_create(2), fexecve(3)).
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    static char bytes[1 << 16];
    int from = argc > 1 ? open(argv[1], O_RDONLY) : -1;
    int to = memfd_create("in-memory", MFD_CLOEXEC);
    for (ssize_t n; (n = read(from, bytes, sizeof bytes)) > 0;)
        if (write(to, bytes, n) != n)
            return 1;
    fexecve(to, argv + 1, environ);
    perror("fexecve");
    return 1;
}
