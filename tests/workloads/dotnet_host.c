/* Runs a program of .NET: dotnet_host FOLDER PROGRAM.dll ARGUMENTS. The folder has the runtime and
 * its libraries. There is no other host where a package has the runtime alone. The calls are those
 * of src/coreclr/hosts/inc/coreclrhost.h of dotnet/runtime. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int initialize(const char *, const char *, int, const char **, const char **, void **,
                       unsigned *);
typedef int execute(void *, unsigned, int, const char **, const char *, unsigned *);

static char assemblies[1 << 20];
static char folders[8192];
static char library[8192];

int main(int count, char **arguments)
{
    if (count < 3)
        return fprintf(stderr, "usage: dotnet_host FOLDER PROGRAM.dll ARGUMENTS\n"), 2;
    DIR *folder = opendir(arguments[1]);
    size_t used = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        size_t len = strlen(entry->d_name);
        if (len > 4 && !strcmp(entry->d_name + len - 4, ".dll") && used < sizeof(assemblies) - 8192)
            used += (size_t)sprintf(assemblies + used, "%s/%s:", arguments[1], entry->d_name);
    }
    strcat(assemblies, arguments[2]);
    snprintf(folders, sizeof(folders), "%s:", arguments[1]);
    snprintf(library, sizeof(library), "%s/libcoreclr.so", arguments[1]);
    void *runtime = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!runtime)
        return fprintf(stderr, "%s\n", dlerror()), 2;
    const char *keys[] = {"TRUSTED_PLATFORM_ASSEMBLIES", "NATIVE_DLL_SEARCH_DIRECTORIES",
                          "System.Globalization.Invariant"};
    const char *values[] = {assemblies, folders, "true"};
    void *host;
    unsigned domain, code = 0;
    int result = ((initialize *)dlsym(runtime, "coreclr_initialize"))(
        arguments[0], "program", 3, keys, values, &host, &domain);
    if (result < 0)
        return fprintf(stderr, "coreclr_initialize: %x\n", (unsigned)result), 2;
    result = ((execute *)dlsym(runtime, "coreclr_execute_assembly"))(
        host, domain, count - 3, (const char **)(arguments + 3), arguments[2], &code);
    return result < 0 ? (fprintf(stderr, "execute: %x\n", (unsigned)result), 2) : (int)code;
}
