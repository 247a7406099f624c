/* Loads the two libraries given, in ways that real programs do, and prints what a library that
 * watches it must not change. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void say(const char *what, const void *loaded) {
    printf("%s: %s\n", what, loaded ? "loaded" : "not loaded");
}

static void *load(void *path) {
    for (int i = 0; i < 20; i++)
        dlclose(dlopen(path, RTLD_NOW));
    return NULL;
}

int main(int argc, char **argv) {
    char *path = argc > 1 ? argv[1] : "";
    sigset_t before, after;
    sigprocmask(SIG_BLOCK, NULL, &before);
    errno = 1234;
    void *first = dlopen(path, RTLD_NOW);
    printf("errno %d\n", errno);
    say("dlopen", first);
    say("dlmopen", dlmopen(LM_ID_NEWLM, argc > 2 ? argv[2] : "", RTLD_NOW));
    say("what is no library", dlopen("/etc/passwd", RTLD_NOW));
    dlclose(first);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, load, path);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    fflush(stdout);
    if (fork() == 0) {
        say("in a child", dlopen(path, RTLD_NOW));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    sigprocmask(SIG_BLOCK, NULL, &after);
    int same = 1;
    for (int i = 1; i < 64; i++)
        same &= sigismember(&before, i) == sigismember(&after, i);
    printf("signals %s\n", same ? "as before" : "changed");
    /* The next descriptor is the lowest free one. */
    printf("descriptor %d\n", open("/dev/null", O_RDONLY));
    return 7;
}
