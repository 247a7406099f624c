/*
 * What enemies have in common: an ordinary user (12345) who is root in namespaces of his own, where
 * he mounts what he likes, and a file system (FUSE) that answers its own process group only.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define ENEMY 12345

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);

	if (file < 0 || write(file, text, strlen(text)) < 0)
		fail(path);
	close(file);
}

/* Becomes the ordinary user. */
static void become_enemy(void)
{
	if (setgid(ENEMY) || setuid(ENEMY))
		fail("setuid");
	prctl(PR_SET_DUMPABLE, 1);
}

/* The same, with a mount namespace of his own and an empty file system of his at /mnt. */
static void become_enemy_in_namespace(void)
{
	become_enemy();
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS))
		fail("unshare");
	put("/proc/self/setgroups", "deny");
	put("/proc/self/uid_map", "0 12345 1");
	put("/proc/self/gid_map", "0 12345 1");
	if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
		fail("private mounts");
	if (mount("enemy", "/mnt", "tmpfs", 0, "mode=755"))
		fail("tmpfs");
}

/* Code in no file that spins until an alarm. */
static void spin_in_memory(void *at, unsigned seconds)
{
	static const unsigned char jump_to_itself[] = {0xeb, 0xfe};
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0);
	unsigned char *code = mmap(at, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, flags, -1, 0);

	if (code == MAP_FAILED)
		fail("mmap");
	memcpy(code + 16, jump_to_itself, sizeof jump_to_itself);
	alarm(seconds);
	((void (*)(void))(code + 16))();
}
