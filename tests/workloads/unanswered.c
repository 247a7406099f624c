/*
 * `unanswered MODE FILE SECONDS`: an ordinary user whose files or address space do not answer
 * anybody else, for so long. Modes:
 * file     a program on a file system (FUSE) that does not answer
 * overlay  the same below an overlay, whose waits nothing ends
 * tmp      the overlay is /tmp, where the process's map of generated code is looked for
 * lock     the lock of the address space is held by a thread that reads a page that never comes
 */
#include "enemy.h"
#include <pthread.h>

static int device, never;
static char *content;
static size_t content_len;
static pid_t group;

static void reply(uint64_t unique, int error, const void *bytes, size_t len)
{
	struct fuse_out_header head = {.len = sizeof head + len, .error = -error, .unique = unique};
	struct iovec parts[] = {{&head, sizeof head}, {(void *)bytes, len}};

	if (writev(device, parts, len ? 2 : 1) < 0 && errno != ENOENT)
		exit(1);
}

static struct fuse_attr attr(uint64_t node)
{
	struct fuse_attr attr = {.ino = node, .nlink = 1, .blksize = 4096};

	attr.mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0755;
	attr.size = node == 1 ? 0 : content_len;
	return attr;
}

static void answer(const struct fuse_in_header *in, const void *body)
{
	switch (in->opcode) {
	case FUSE_INIT: {
		struct fuse_init_out out = {
			.major = 7, .minor = 31, .max_readahead = 65536, .max_write = 65536};
		reply(in->unique, 0, &out, sizeof out);
		break;
	}
	case FUSE_LOOKUP: {
		struct fuse_entry_out out = {.nodeid = 2, .attr = attr(2)};
		int known = strcmp(body, "program") == 0;
		reply(in->unique, known ? 0 : ENOENT, &out, known ? sizeof out : 0);
		break;
	}
	case FUSE_GETATTR: {
		struct fuse_attr_out out = {.attr = attr(in->nodeid)};
		reply(in->unique, 0, &out, sizeof out);
		break;
	}
	case FUSE_OPEN:
	case FUSE_OPENDIR: {
		struct fuse_open_out out = {.fh = 1, .open_flags = FOPEN_KEEP_CACHE};
		reply(in->unique, 0, &out, sizeof out);
		break;
	}
	case FUSE_READ: {
		const struct fuse_read_in *read = body;
		size_t from = read->offset < content_len ? read->offset : content_len;
		size_t len = read->size < content_len - from ? read->size : content_len - from;
		if (!never)
			reply(in->unique, 0, content + from, len);
		break;
	}
	case FUSE_STATFS: {
		struct fuse_statfs_out out = {.st = {.bsize = 4096, .namelen = 255}};
		reply(in->unique, 0, &out, sizeof out);
		break;
	}
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	case FUSE_ACCESS:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_FLUSH:
		reply(in->unique, 0, NULL, 0);
		break;
	case FUSE_READDIR:
	case FUSE_READDIRPLUS:
		reply(in->unique, 0, NULL, 0);
		break;
	default:
		reply(in->unique, ENOSYS, NULL, 0);
	}
}

static void serve(void)
{
	static char request[1 << 18];

	for (;;) {
		const struct fuse_in_header *in = (const void *)request;
		ssize_t len = read(device, request, sizeof request);

		if (len < 0 && errno == ENODEV)
			return;
		if (len < (ssize_t)sizeof *in)
			continue;
		/* Whoever is not of the group waits for ever. */
		if (in->opcode == FUSE_INIT || !in->pid || getpgid(in->pid) == group)
			answer(in, request + sizeof *in);
	}
}

static void *page;
static volatile int held;

static void *hold_lock(void *nothing)
{
	char byte;
	int memory = open("/proc/self/mem", O_RDONLY);

	/* The page is asked for with the lock taken, and never comes. */
	if (pread(memory, &byte, 1, (off_t)page) < 0)
		perror("pread");
	return nothing;
}

/* Behind a writer that waits, nobody else is let in to read. */
static void *wait_to_write(void *nothing)
{
	while (!held)
		;
	mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return nothing;
}

static void lock_out(unsigned seconds)
{
	pthread_t holder, writer;
	int file, copy, served = open("/mnt/fuse/program", O_RDONLY);
	char name[32], renamed[40];

	snprintf(name, sizeof name, "/mnt/program%d", getpid());
	snprintf(renamed, sizeof renamed, "%s.renamed", name);
	copy = open(name, O_CREAT | O_RDWR, 0755);
	if (write(copy, content, content_len) < 0)
		fail("copying");
	close(copy);
	file = open(name, O_RDONLY);
	alarm(seconds);
	page = mmap(NULL, 1 << 12, PROT_READ, MAP_SHARED, served, 0);
	if (mmap(NULL, 65536, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0) == MAP_FAILED)
		fail("mmap");
	rename(name, renamed);
	pthread_create(&holder, NULL, hold_lock, NULL);
	usleep(3000);
	held = 1;
	pthread_create(&writer, NULL, wait_to_write, NULL);
	for (;;)
		pause();
}

/* One after the other: the daemon may look at one before its lock is taken. */
static void lock_out_again(unsigned seconds)
{
	for (int number = 0; number < 12; number++) {
		if (!fork()) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			lock_out(seconds);
		}
		usleep(400000);
	}
	alarm(seconds);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	char options[128];
	const char *mode = argc == 4 ? argv[1] : "", *where = "/mnt/fuse";
	struct stat status;
	unsigned seconds;
	pid_t server, run;
	int file;

	if (argc != 4)
		return 2;
	seconds = atoi(argv[3]);
	file = open(argv[2], O_RDONLY);
	if (file < 0 || fstat(file, &status))
		fail(argv[2]);
	content_len = status.st_size;
	content = malloc(content_len);
	if (read(file, content, content_len) != (ssize_t)content_len)
		fail(argv[2]);
	setpgid(0, 0);
	group = getpgid(0);
	never = !strcmp(mode, "lock");
	/* As udev makes it. */
	if (chmod("/dev/fuse", 0666))
		fail("/dev/fuse");
	become_enemy_in_namespace();
	mkdir("/mnt/fuse", 0755);
	mkdir("/mnt/lower", 0755);
	mkdir("/mnt/overlay", 0755);
	device = open("/dev/fuse", O_RDWR);
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other",
		 device);
	if (device < 0 || mount("fuse", "/mnt/fuse", "fuse", MS_NOSUID | MS_NODEV, options))
		fail("fuse");
	server = fork();
	if (!server) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		serve();
		return 0;
	}
	if (!strcmp(mode, "overlay") || !strcmp(mode, "tmp")) {
		if (mount("o", "/mnt/overlay", "overlay", 0, "lowerdir=/mnt/fuse:/mnt/lower"))
			fail("overlay");
		where = "/mnt/overlay";
	}
	if (!strcmp(mode, "tmp") && mount("/mnt/overlay", "/tmp", NULL, MS_BIND, NULL))
		fail("tmp");
	run = fork();
	if (!run) {
		char program[64];

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (!strcmp(mode, "tmp"))
			spin_in_memory(NULL, seconds);
		if (!strcmp(mode, "lock")) {
			close(device);
			lock_out_again(seconds);
		}
		alarm(seconds);
		snprintf(program, sizeof program, "%s/program", where);
		execl(program, program, argv[3], (char *)NULL);
		fail(program);
	}
	alarm(seconds + 5);
	waitpid(run, NULL, 0);
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	return 0;
}
