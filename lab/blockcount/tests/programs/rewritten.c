// Code that changes although nobody writes to its pages: through /proc/self/mem, by
// process_vm_writev, and through the file that it is mapped from, which is opened for writing
// before or after.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

typedef int (*function)(void);

// mov $value, %eax; ret
static void code_of(unsigned char *at, int value) {
    at[0] = 0xb8;
    memcpy(at + 1, &value, 4);
    at[5] = 0xc3;
}

__attribute__((naked)) static int own(void) { __asm__("mov $0, %eax; ret; nop; nop"); }

static int by_memory(const char *path) {
    function called = own;
    unsigned char code[6];
    own(); // translated before the file is opened
    int memory = open(path, O_RDWR);
    if (memory < 0) return 10;
    for (int value = 1; value <= 20; value++) {
        code_of(code, value);
        if (value % 2) {
            if (pwrite(memory, code, 6, (off_t)(uintptr_t)own) != 6) return 11;
        } else {
            struct iovec part = {code, 6};
            if (lseek(memory, (off_t)(uintptr_t)own, SEEK_SET) < 0) return 12;
            if (writev(memory, &part, 1) != 6) return 13;
        }
        if (called() != value) return 14;
    }
    close(memory);
    return 0;
}

static int by_process(void) {
    unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char next[6];
    code_of(code, 0);
    for (int value = 1; value <= 20; value++) {
        struct iovec from = {next, 6}, to = {code, 6};
        ((function)code)();
        code_of(next, value);
        if (process_vm_writev(getpid(), &from, 1, &to, 1, 0) != 6) return 20;
        if (((function)code)() != value) return 21;
    }
    return 0;
}

static int by_file(int opened_later) {
    char path[] = "/tmp/rewritten-XXXXXX";
    unsigned char code[6];
    int file = mkstemp(path);
    code_of(code, 0);
    if (file < 0 || write(file, code, 6) != 6) return 30;
    if (opened_later) {
        close(file);
        file = open(path, O_RDONLY);
    }
    unsigned char *mapped = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED) return 31;
    if (opened_later) {
        close(file);
        file = open(path, O_WRONLY);
    }
    for (int value = 1; value <= 20; value++) {
        ((function)mapped)();
        code_of(code, value);
        if (pwrite(file, code, 6, 0) != 6) return 32;
        if (((function)mapped)() != value) return 33;
    }
    unlink(path);
    return 0;
}

int main(void) {
    char link[] = "/tmp/rewritten-link-XXXXXX";
    int failed;
    if ((failed = by_file(0)) || (failed = by_file(1)) || (failed = by_process())) return failed;
    if ((failed = by_memory("/proc/self/mem"))) return failed;
    close(mkstemp(link));
    unlink(link);
    if (symlink("/proc/thread-self/mem", link)) return 40;
    failed = by_memory(link);
    unlink(link);
    printf("rewritten\n");
    return failed;
}
