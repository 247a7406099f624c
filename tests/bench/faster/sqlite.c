/* Runs the statements of a file against a database in memory: `sqlite FILE`. Shows the first column
 * of each row's sum. */
#include <stdio.h>
#include <stdlib.h>
#include "sqlite3.h"

static int add(void *sum, int columns, char **values, char **names)
{
    (void)names;
    for (int column = 0; column < columns; column++)
        *(long long *)sum += values[column] ? atoll(values[column]) : 1;
    return 0;
}

int main(int argc, char **argv)
{
    static char text[1 << 20];
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    long long sum = 0;
    char *why = NULL;
    sqlite3 *database;
    if (!file || !fread(text, 1, sizeof text - 1, file) || sqlite3_open(":memory:", &database))
        return 2;
    int failed = sqlite3_exec(database, text, add, &sum, &why);
    if (failed)
        fprintf(stderr, "%s\n", why);
    printf("%lld\n", sum);
    sqlite3_close(database);
    return failed;
}
