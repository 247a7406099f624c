/*
 * `bound_map FILE ADDRESS SECONDS`: an ordinary user who sees FILE, which he may not read, as his
 * map of generated code (/tmp/perf-PID.map), and spins at ADDRESS in memory for so long.
 */
#include "enemy.h"

int main(int argc, char **argv)
{
	char map[64];
	int file;

	if (argc != 4)
		return 2;
	become_enemy_in_namespace();
	snprintf(map, sizeof map, "/mnt/perf-%d.map", getpid());
	file = open(map, O_CREAT | O_WRONLY, 0644);
	close(file);
	if (mount(argv[1], map, NULL, MS_BIND, NULL) ||
	    mount("/mnt", "/tmp", NULL, MS_BIND | MS_REC, NULL))
		fail("bind");
	if (open(map, O_RDONLY) >= 0)
		fprintf(stderr, "he may read it himself\n");
	spin_in_memory((void *)strtoul(argv[2], NULL, 16), atoi(argv[3]));
	return 0;
}
