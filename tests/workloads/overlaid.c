/*
 * Maps other code over a page of a library, or of itself where it is linked with that, that its
 * parent, forked from, goes on to execute: two files in turn in one child, anonymous memory in
 * another; or, with a second argument, a file in one child after another, each of which was at work
 * elsewhere before, while nobody else is. Everybody uses the seconds of CPU time given. The last
 * line of output is the truth, in seconds; own is the library's:
 *
 *     {"own": 3.2, "first": 0.6, "second": 1.8, "anonymous": 2.0}
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, TURN_MS = 20 };
typedef uint64_t work_t(uint64_t rounds, uint64_t x);
work_t page_work, own_work;

/* A plugin's page of code. */
struct code {
    int file;
    uint64_t offset;
    uint64_t work;
};

static void must(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static double use(work_t *work, double seconds) {
    static volatile uint64_t sink;
    double begin = now(), used;
    do
        sink = work(20000, sink | 1);
    while ((used = now() - begin) < seconds);
    return used;
}

static struct code code_of(const char *plugin) {
    void *handle = dlopen(plugin, RTLD_NOW), *work = handle ? dlsym(handle, "library_work") : NULL;
    struct code code = { .file = open(plugin, O_RDONLY) };
    Dl_info info;
    must(work != NULL && dladdr(work, &info) && code.file >= 0, plugin);
    const Elf64_Ehdr *header = info.dli_fbase;
    const Elf64_Phdr *segment = (const void *)((const char *)info.dli_fbase + header->e_phoff);
    while (!(segment->p_type == PT_LOAD && segment->p_flags & PF_X))
        segment++;
    code.offset = segment->p_offset;
    code.work = (uint64_t)work - (uint64_t)info.dli_fbase - segment->p_vaddr;
    must(code.offset % PAGE == 0 && segment->p_filesz < PAGE, "one page of code");
    dlclose(handle);
    return code;
}

static double overlaid(struct code code, int anonymous, double seconds) {
    char *page = (char *)page_work;
    int flags = MAP_PRIVATE | MAP_FIXED | (anonymous ? MAP_ANONYMOUS : 0);
    int protection = PROT_READ | PROT_EXEC | (anonymous ? PROT_WRITE : 0);
    must(mmap(page, PAGE, protection, flags, anonymous ? -1 : code.file,
              anonymous ? 0 : code.offset) == page,
         "mmap");
    if (anonymous)
        must(pread(code.file, page, PAGE, code.offset) > 0, "pread");
    __builtin___clear_cache(page, page + PAGE);
    return use((work_t *)(page + code.work), seconds);
}

int main(int argc, char **argv) {
    double seconds = argc > 1 ? atof(argv[1]) : 1, turn = TURN_MS / 1000.0;
    struct { double own, first, second, anonymous; } *truth;
    char *directory = dirname(strdup(argv[0])), plugins[2][4096];
    struct code codes[2];
    truth = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(truth != MAP_FAILED && (uint64_t)page_work % PAGE == 0, "page_work");
    snprintf(plugins[0], sizeof plugins[0], "%s/first.so", directory);
    snprintf(plugins[1], sizeof plugins[1], "%s/second.so", directory);
    for (int i = 0; i < 2; i++)
        codes[i] = code_of(plugins[i]);
    use(own_work, 0);
    while (argc > 2 && truth->own < seconds / 2) {
        if (fork() == 0) {
            truth->own += use(own_work, turn);
            truth->first += overlaid(codes[0], 0, turn);
            _exit(0);
        }
        int status;
        must(wait(&status) > 0 && status == 0, "wait");
    }
    if (argc > 2) {
        printf("{\"own\": %.6f, \"first\": %.6f}\n", truth->own, truth->first);
        return 0;
    }
    double own = use(page_work, turn);
    if (fork() == 0) {
        double childs = 0;
        while (now() < seconds) {
            truth->first += overlaid(codes[0], 0, turn);
            truth->second += overlaid(codes[1], 0, 3 * turn);
            childs += use(own_work, turn);
        }
        truth->own = childs;
        _exit(0);
    }
    if (fork() == 0) {
        truth->anonymous = overlaid(codes[0], 1, seconds);
        _exit(0);
    }
    own += use(page_work, seconds);
    for (int i = 0, status; i < 2; i++)
        must(wait(&status) > 0 && status == 0, "wait");
    printf("{\"own\": %.6f, \"first\": %.6f, \"second\": %.6f, \"anonymous\": %.6f}\n",
           own + truth->own, truth->first, truth->second, truth->anonymous);
    return 0;
}
