// A library that is loaded, called and unloaded many times.
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    for (int round = 0; round < 40; round++) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        if (!library) return 1;
        double (*cosine)(double) = (double (*)(double))dlsym(library, "cos");
        if (cosine(0.0) != 1.0) return 2;
        if (dlclose(library) != 0) return 3;
    }
    return 0;
}
