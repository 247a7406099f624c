/* A program with every kind of symbol that gives a procedure its name. */
int sink;

__attribute__((noinline)) static int local_one(int x) { sink += x; return x + 1; }
__attribute__((noinline)) int exported_one(int x) { sink += x; return local_one(x) * 2; }
/* Aliases: same code. The shorter global name is shown. */
int exported_one_again(int x) __attribute__((alias("exported_one")));
static int local_alias(int x) __attribute__((alias("exported_one"), used));
/* As a C++ compiler names foo::bar(int). */
int foo_bar(int x) __asm__("_ZN3foo3barEi");
__attribute__((noinline)) int foo_bar(int x) { sink -= x; return x * 3; }
/* As rustc names mycrate::run. */
int run(int x) __asm__("_ZN7mycrate3run17h0123456789abcdefE");
__attribute__((noinline)) int run(int x) { sink ^= x; return x * 5; }

#ifndef NO_IFUNC
static int chosen_impl(int x) { return x * 7 + sink; }
static void *resolve_chosen(void) { return (void *)chosen_impl; }
int chosen(int x) __attribute__((ifunc("resolve_chosen")));
#else
int chosen(int x) { return x; }
#endif

/* Without sizes, without a type, and a label inside of a sized procedure. */
__asm__(
    ".section .text.by_hand,\"ax\",%progbits\n"
    ".globl no_size\n.type no_size,%function\nno_size: nop\nnop\nnop\n"
    ".globl no_type\nno_type: nop\nnop\n"
    ".globl with_label\n.type with_label,%function\n"
    "with_label: nop\n"
    ".globl inner_label\ninner_label: nop\nnop\n"
    ".size with_label, . - with_label\n"
    ".globl last_no_size\n.type last_no_size,%function\nlast_no_size: nop\nnop\n"
    ".text\n");

int main(int argc, char **argv) {
  (void)argv;
  return exported_one(argc) + exported_one_again(argc) + foo_bar(argc) + run(argc) + chosen(argc);
}
