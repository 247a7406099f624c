/* Makes code at run time: two procedures, of which the first works three times as long as the
 * second. jit SECONDS MODE [DIRECTORY]: map tells of them in /tmp/perf-PID.map, dump in
 * DIRECTORY/jit-PID.dump, late there too, but of the second only at its end, memfd in the map while
 * the code lies in a memory file, none tells nobody. Prints the seconds of CPU time in each. The
 * code is always at the same address. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CODE ((void *)0x200000000)
#define SIZE 4096
#define SECOND 2048

/* Counts its argument down to 0. */
#if defined(__x86_64__)
/* dec rdi; jnz -5; ret */
static const unsigned char loop[] = { 0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3 };
#define MACHINE 62
#elif defined(__aarch64__)
/* subs x0, x0, 1; b.ne -4; ret */
static const uint32_t loop[] = { 0xf1000400, 0x54ffffe1, 0xd65f03c0 };
#define MACHINE 183
#else
#error "no machine code for this machine"
#endif

static double cpu_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

static void must(int done, const char *what)
{
	if (!done) {
		perror(what);
		exit(1);
	}
}

static unsigned char *make(int in_file)
{
	int flags = MAP_FIXED_NOREPLACE, file = -1;
	unsigned char *writable, *code;

	if (in_file) {
		file = memfd_create("doublemapper", 0);
		must(file >= 0 && ftruncate(file, SIZE) == 0, "memfd_create");
		writable = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
		must(writable != MAP_FAILED, "mmap");
		code = mmap(CODE, SIZE, PROT_READ | PROT_EXEC, MAP_SHARED | flags, file, 0);
	} else {
		code = mmap(CODE, SIZE, PROT_READ | PROT_WRITE | PROT_EXEC,
			    MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
		writable = code;
	}
	must(code != MAP_FAILED, "mmap");
	memcpy(writable, loop, sizeof loop);
	memcpy(writable + SECOND, loop, sizeof loop);
	__builtin___clear_cache((char *)code, (char *)code + SIZE);
	return code;
}

static void write_map(void)
{
	char path[64];
	FILE *map;

	snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
	map = fopen(path, "w");
	must(map != NULL, path);
	fprintf(map, "%lx %zx made first\n", (unsigned long)CODE, sizeof loop);
	fprintf(map, "%lx %zx made_second\n", (unsigned long)CODE + SECOND, sizeof loop);
	must(fclose(map) == 0, path);
}

struct header { uint32_t magic, version, size, machine, pad, pid; uint64_t time, flags; };
struct load {
	uint32_t id, size;
	uint64_t time;
	uint32_t pid, tid;
	uint64_t vma, address, len, number;
};

static void write_load(FILE *dump, uint64_t at, const char *name)
{
	uint32_t size = sizeof(struct load) + strlen(name) + 1 + sizeof loop;
	struct load load = { 0, size, 1, getpid(), getpid(), at, at, sizeof loop, at };

	fwrite(&load, sizeof load, 1, dump);
	fwrite(name, strlen(name) + 1, 1, dump);
	fwrite(loop, sizeof loop, 1, dump);
}

static void write_dump(const char *directory, int is_late)
{
	struct header header = { 0x4a695444, 1, sizeof header, MACHINE, 0, getpid(), 1, 0 };
	char path[256];
	FILE *dump;

	snprintf(path, sizeof path, "%s/jit-%d.dump", directory, (int)getpid());
	dump = fopen(path, "w+");
	must(dump != NULL, path);
	fwrite(&header, sizeof header, 1, dump);
	write_load(dump, (uint64_t)CODE, "made first");
	must(fflush(dump) == 0, path);
	write_load(dump, (uint64_t)CODE + SECOND, "made_second");
	/* If late, the C library writes its buffer when the process exits. */
	must(is_late || fflush(dump) == 0, path);
	/* So that profilers hear of the file. */
	must(mmap(NULL, SIZE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fileno(dump), 0) != MAP_FAILED,
	     "mmap");
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[2] : "none";
	double end = cpu_s() + (argc > 1 ? atof(argv[1]) : 1), first = 0, second = 0;
	unsigned char *code = make(strcmp(mode, "memfd") == 0);

	if (strcmp(mode, "map") == 0 || strcmp(mode, "memfd") == 0)
		write_map();
	if (strcmp(mode, "dump") == 0 || strcmp(mode, "late") == 0)
		write_dump(argc > 3 ? argv[3] : ".", strcmp(mode, "late") == 0);
	while (cpu_s() < end) {
		double begin = cpu_s(), middle;

		((void (*)(uint64_t))code)(3000000);
		middle = cpu_s();
		((void (*)(uint64_t))(code + SECOND))(1000000);
		first += middle - begin;
		second += cpu_s() - middle;
	}
	printf("{\"first_s\": %f, \"second_s\": %f, \"pid\": %d}\n", first, second, (int)getpid());
	return 0;
}
