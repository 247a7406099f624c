/*
 * `many_mounts DOUBLINGS SECONDS`: an ordinary user with 2^DOUBLINGS mounts of names of 4 KB in a
 * namespace of his own, and code in no file, for so long.
 */
#include "enemy.h"

int main(int argc, char **argv)
{
	char part[251] = "", path[4096] = "/mnt", place[4200];
	int doublings;

	if (argc != 3)
		return 2;
	doublings = atoi(argv[1]);
	become_enemy_in_namespace();
	if (chdir("/mnt"))
		fail("/mnt");
	memset(part, 'b', sizeof part - 1);
	for (int depth = 0; depth < 15; depth++) {
		mkdir(part, 0755);
		if (chdir(part))
			fail("chdir");
		strcat(strcat(path, "/"), part);
	}
	if (chdir("/") || mount(path, path, NULL, MS_BIND, NULL))
		fail("bind");
	for (int number = 0; number < doublings; number++) {
		snprintf(place, sizeof place, "%s/%d", path, number);
		if (mkdir(place, 0755) || mount(path, place, NULL, MS_BIND | MS_REC, NULL)) {
			perror("mount"); /* fs.mount-max */
			break;
		}
	}
	spin_in_memory(NULL, atoi(argv[2]));
	return 0;
}
