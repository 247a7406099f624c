/*
 * Runs code in one new build after another: `image_flood IMAGES MICROSECONDS`, in its working
 * directory. Each build is the same small file with another build id and size, mapped and executed
 * for so long: several builds in one tick of the file system's clock differ by their sizes. After
 * 25 of them the program executes itself anew, so that the sampler begins no generation for its
 * mappings. Says {"images": IMAGES}.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 8192, NOTE = 256, ID = 272, CODE = 2048, AT_ONCE = 25 };

typedef void countdown(uint64_t rounds);

static double cpu_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* An ELF file with a note and a loop that counts down (dec %rdi; jne; ret). */
static void make(unsigned char *file)
{
	static const unsigned char code[] = {0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3};
	static const uint32_t note[] = {4, 20, NT_GNU_BUILD_ID};
	Elf64_Ehdr head = {.e_type = ET_DYN, .e_machine = EM_X86_64, .e_version = 1, .e_phoff = 64,
			   .e_ehsize = 64, .e_phentsize = 56, .e_phnum = 2};
	Elf64_Phdr parts[] = {
		{.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_filesz = BYTES, .p_memsz = BYTES,
		 .p_align = 4096},
		{.p_type = PT_NOTE, .p_flags = PF_R, .p_offset = NOTE, .p_vaddr = NOTE,
		 .p_filesz = 36, .p_memsz = 36, .p_align = 4},
	};

	memcpy(head.e_ident, ELFMAG "\2\1\1", 7);
	memcpy(file, &head, sizeof(head));
	memcpy(file + 64, parts, sizeof(parts));
	memcpy(file + NOTE, note, sizeof(note));
	memcpy(file + NOTE + 12, "GNU", 4);
	memcpy(file + CODE, code, sizeof(code));
}

static void run(int file, void *at, uint64_t rounds)
{
	int flags = MAP_PRIVATE | (at ? MAP_FIXED_NOREPLACE : 0);
	unsigned char *mapped = mmap(at, BYTES, PROT_READ | PROT_EXEC, flags, file, 0);

	if (mapped == MAP_FAILED)
		die("mmap");
	((countdown *)(mapped + CODE))(rounds);
	if (!at)
		munmap(mapped, BYTES);
}

int main(int count, char **arguments)
{
	/* Executed anew: images left, all images, rounds. */
	uint64_t left = strtoull(arguments[1], NULL, 10), all = left, rounds;
	char texts[3][24];
	int file;

	if (count == 3) {
		unsigned char bytes[BYTES] = {0};
		double begun;

		make(bytes);
		file = open("flood", O_CREAT | O_TRUNC | O_RDWR, 0755);
		if (file < 0 || write(file, bytes, BYTES) != BYTES)
			die("flood");
		begun = cpu_s();
		run(file, NULL, 10000000);
		rounds = (uint64_t)(10 * strtod(arguments[2], NULL) / (cpu_s() - begun));
	} else {
		all = strtoull(arguments[2], NULL, 10);
		rounds = strtoull(arguments[3], NULL, 10);
		file = open("flood", O_RDWR);
		if (file < 0)
			die("flood");
		for (uint64_t n = 0; n < AT_ONCE && left > 0; n++, left--) {
			uint64_t id[] = {left * 0x9e3779b97f4a7c15u, left, all};

			if (pwrite(file, id, 20, ID) != 20 ||
			    ftruncate(file, BYTES + (off_t)(all - left)) != 0)
				die("flood");
			run(file, (void *)(0x100000000 + n * BYTES), rounds);
		}
	}
	if (left == 0) {
		printf("{\"images\": %llu}\n", (unsigned long long)all);
		return 0;
	}
	snprintf(texts[0], sizeof(texts[0]), "%llu", (unsigned long long)left);
	snprintf(texts[1], sizeof(texts[1]), "%llu", (unsigned long long)all);
	snprintf(texts[2], sizeof(texts[2]), "%llu", (unsigned long long)rounds);
	close(file);
	execl("/proc/self/exe", arguments[0], texts[0], texts[1], texts[2], NULL);
	die("exec");
}
