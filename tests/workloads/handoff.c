/* handoff SECONDS: two processes pass a byte through pipes, tens of thousands of times a second. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	int there[2], back[2];
	char byte = 0;
	time_t end = time(NULL) + (argc > 1 ? atoi(argv[1]) : 1);

	if (pipe(there) || pipe(back))
		return 1;
	if (fork() == 0) {
		close(there[1]);
		while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
			;
		return 0;
	}
	while (time(NULL) < end)
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			return 1;
	return 0;
}
