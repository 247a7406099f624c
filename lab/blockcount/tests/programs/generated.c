// Code that is generated, executed, written over and executed again: by a changed protection, in
// memory that can be written and executed at once, by code that writes itself, and in memory that
// is unmapped and mapped anew.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef int (*function)(void);

static void *memory(int protection) {
    return mmap(0, 4096, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

// mov $value, %eax; ret
static void write_code(unsigned char *at, int value) {
    at[0] = 0xb8;
    memcpy(at + 1, &value, 4);
    at[5] = 0xc3;
}

int main(void) {
    unsigned char *both = memory(PROT_READ | PROT_WRITE | PROT_EXEC);
    unsigned char *self = memory(PROT_READ | PROT_WRITE | PROT_EXEC);
    for (int value = 0; value < 100; value++) {
        write_code(both, value);
        for (int round = 0; round < 3; round++)
            if (((function)both)() != value) return 1;
    }
    unsigned char *either = memory(PROT_READ | PROT_WRITE);
    for (int value = 0; value < 100; value++) {
        mprotect(either, 4096, PROT_READ | PROT_WRITE);
        write_code(either, value);
        mprotect(either, 4096, PROT_READ | PROT_EXEC);
        if (((function)either)() != value) return 2;
    }
    for (int value = 0; value < 20; value++) {
        void *again = mmap(either, 4096, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (again != either) return 3;
        write_code(either, -value);
        mprotect(either, 4096, PROT_READ | PROT_EXEC);
        if (((function)either)() != -value) return 4;
        munmap(either, 4096);
    }
    // Writes the operand of its own next instruction, in the same block:
    // incl 1f(%rip); 1: mov $0, %eax; ret
    const unsigned char code[] = {0xff, 0x05, 1, 0, 0, 0, 0xb8, 0, 0, 0, 0, 0xc3};
    memcpy(self, code, sizeof code);
    for (int value = 1; value <= 50; value++)
        if (((function)self)() != value) return 5;
    printf("%lx %lx\n", (long)both, (long)self);
    return 0;
}
