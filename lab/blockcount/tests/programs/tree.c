// A tree of a hundred processes, each of which does the same work.
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

void work(void);
__asm__(".text\n"
        "work:\n"
        "at_1_begin: mov $10000, %ecx\n"
        "at_10000_round: imul $7, %rax, %rax\n"
        "dec %ecx\n"
        "jnz at_10000_round\n"
        "at_1_end: ret\n"
        "at_x_end:\n");

// Makes processes until `number` run, each with up to three children.
static void grow(int number) {
    work();
    number--;
    for (int child = 0; child < 3 && number > 0; child++) {
        int share = child == 2 ? number : (number + 2) / 3;
        number -= share;
        if (fork() == 0) {
            grow(share);
            exit(0);
        }
    }
    int status;
    while (wait(&status) > 0)
        if (status != 0) exit(1);
}

int main(void) {
    grow(100);
    return 0;
}
