/*
 * A file system that answers everybody but one process: `served FILE DIRECTORY PID LOG` mounts
 * itself at DIRECTORY (FUSE, as root), where `program` is FILE, and writes to LOG how often process
 * PID has asked something; that one waits for ever. Ends when it is killed.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int device, file;
static struct stat of_file;

static int is_of(uint32_t thread, int process)
{
	char path[64], line[128];
	int found = 0;
	FILE *status;

	snprintf(path, sizeof path, "/proc/%u/status", thread);
	status = fopen(path, "r");
	while (status && fgets(line, sizeof line, status))
		if (sscanf(line, "Tgid: %d", &found) == 1)
			break;
	if (status)
		fclose(status);
	return found == process;
}

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
	attr.size = node == 1 ? 0 : of_file.st_size;
	return attr;
}

static void serve(const struct fuse_in_header *in, const void *body)
{
	static char bytes[1 << 20];

	switch (in->opcode) {
	case FUSE_INIT: {
		struct fuse_init_out out = {
			.major = 7, .minor = 31, .max_readahead = 65536, .max_write = 65536};
		reply(in->unique, 0, &out, sizeof out);
		break;
	}
	case FUSE_LOOKUP: {
		/* valid for no time at all */
		struct fuse_entry_out out = {.nodeid = 2, .attr = attr(2)};
		if (strcmp(body, "program") != 0)
			reply(in->unique, ENOENT, NULL, 0);
		else
			reply(in->unique, 0, &out, sizeof out);
		break;
	}
	case FUSE_GETATTR: {
		struct fuse_attr_out out = {.attr = attr(in->nodeid)};
		reply(in->unique, 0, &out, sizeof out);
		break;
	}
	case FUSE_OPEN:
	case FUSE_OPENDIR: {
		struct fuse_open_out out = {.fh = 1};
		reply(in->unique, 0, &out, sizeof out);
		break;
	}
	case FUSE_READ: {
		const struct fuse_read_in *read = body;
		size_t size = read->size < sizeof bytes ? read->size : sizeof bytes;
		ssize_t len = pread(file, bytes, size, read->offset);
		reply(in->unique, len < 0 ? EIO : 0, bytes, len < 0 ? 0 : len);
		break;
	}
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		break;
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_FLUSH:
		reply(in->unique, 0, NULL, 0);
		break;
	default:
		reply(in->unique, ENOSYS, NULL, 0);
	}
}

int main(int argc, char **argv)
{
	static char request[1 << 18];
	char options[128];
	int unanswered = 0, log;

	if (argc != 5)
		return 2;
	file = open(argv[1], O_RDONLY);
	device = open("/dev/fuse", O_RDWR);
	log = open(argv[4], O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (file < 0 || device < 0 || log < 0 || fstat(file, &of_file))
		return 1;
	snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other",
		 device);
	if (mount("served", argv[2], "fuse", 0, options))
		return perror("mount"), 1;
	dprintf(log, "0\n");
	for (;;) {
		const struct fuse_in_header *in = (const void *)request;
		ssize_t len = read(device, request, sizeof request);

		if (len < 0 && errno == ENODEV)
			return 0; /* unmounted */
		if (len < (ssize_t)sizeof *in)
			continue;
		if (in->opcode != FUSE_INIT && in->opcode != FUSE_FORGET &&
		    is_of(in->pid, atoi(argv[3])))
			dprintf(log, "%d: asked for %u\n", ++unanswered, in->opcode);
		else
			serve(in, request + sizeof *in);
	}
}
