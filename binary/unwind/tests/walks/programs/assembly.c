/* What hand-written assembly does and compilers do not, executed instruction by instruction by the
   tests: CFAs in registers that calls may change but these do not, trampolines of signals without
   a table and with one, behind procedures that end with calls, and calls through PLTs. */
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The CFA is in the register, over a call, and in a procedure that calls further. */
#define OUTER(name, register, called)                                                              \
	".type " #name ",@function\n" #name ":\n.cfi_startproc\n"                                  \
	"lea 8(%rsp),%" #register "\n.cfi_def_cfa %" #register ",0\n"                              \
	"push %rbx\n.cfi_offset %rbx,-16\nsub $136,%rsp\nand $-64,%rsp\n"                          \
	"mov %edi,%ebx\ncall " #called "\nadd %ebx,%edx\n"                                         \
	"mov -16(%" #register "),%rbx\n.cfi_restore %rbx\n"                                        \
	"lea -8(%" #register "),%rsp\n.cfi_def_cfa %rsp,8\nmov %edx,%eax\nret\n"                   \
	".cfi_endproc\n.size " #name ",.-" #name "\n"
__asm__(".text\n"
	".type inner,@function\ninner:\n.cfi_startproc\nlea 1(%rdi),%edx\nret\n.cfi_endproc\n"
	".size inner,.-inner\n"
	".type middle,@function\nmiddle:\n.cfi_startproc\npush %rbp\n.cfi_def_cfa_offset 16\n"
	".cfi_offset %rbp,-16\nxor %ebp,%ebp\ncall inner\npop %rbp\n.cfi_restore %rbp\n"
	".cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size middle,.-middle\n"
	OUTER(in_rax, rax, inner) OUTER(in_r10, r10, middle) OUTER(in_r11, r11, in_rax)
	OUTER(in_rcx, rcx, in_r10)
/* The address before each trampoline is of a call. */
	".type ends,@function\nends:\n.cfi_startproc\ncall abort@plt\n.cfi_endproc\n"
	".size ends,.-ends\n"
	".type bare,@function\nbare:\nmov $15,%rax\nsyscall\n.size bare,.-bare\n"
	".type ends_too,@function\nends_too:\n.cfi_startproc\nxor %eax,%eax\nret\n.cfi_endproc\n"
	".size ends_too,.-ends_too\n"
	".type covered,@function\ncovered:\n.cfi_startproc simple\n.cfi_signal_frame\n"
	".cfi_def_cfa %rsp,0\n"
	/* DW_CFA_def_cfa_expression, DW_CFA_expression: rsp and rip in the saved context. */
	".cfi_escape 0x0f,4,0x77,0xa0,0x01,0x06\n.cfi_escape 0x10,16,3,0x77,0xa8,0x01\n"
	".cfi_escape 0x10,6,3,0x77,0xf8,0x00\n.cfi_escape 0x10,3,3,0x77,0x80,0x01\n"
	"xor %eax,%eax\nmov $15,%al\nsyscall\n.cfi_endproc\n.size covered,.-covered\n");
unsigned in_rax(unsigned), in_r10(unsigned), in_r11(unsigned), in_rcx(unsigned);
void bare(void), covered(void);

static volatile unsigned sum;

static void handler(int number) {
	sum += in_rcx(number);
}

/* The kernel's struct, with SA_RESTORER. */
static void handle(int number, void (*restorer)(void)) {
	struct {
		void (*handler)(int);
		unsigned long flags;
		void (*restorer)(void);
		unsigned long mask;
	} action = {handler, 0x04000000, restorer, 0};
	syscall(SYS_rt_sigaction, number, &action, NULL, 8);
}

int main(void) {
	for (unsigned i = 0; i < 9; i++)
		sum += in_rax(i) + in_r10(i) + in_r11(i) + in_rcx(i);
	handle(SIGUSR1, bare);
	handle(SIGUSR2, covered);
	for (int i = 0; i < 3; i++) {
		kill(getpid(), SIGUSR1);
		kill(getpid(), SIGUSR2);
		sum += labs(getppid()) > 3;
	}
	return sum == 42;
}
