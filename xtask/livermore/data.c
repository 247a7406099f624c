/* Values of the data: positive, smooth and irregular, so that nothing overflows or vanishes. */
#include <math.h>
#include <stddef.h>
#include "kernels.h"

extern double b[64][64], c[64][64], p[512][4], px[101][25], cx[101][25], grid[64][64];
extern double b5[N1], sa[N1], sb[N1];
extern double u1[2][101][5], u2[2][101][5], u3[2][101][5], du1[101], du2[101], du3[101];
extern double za[7][101], zb[7][101], zm[7][101], zp[7][101], zq[7][101], zr[7][101], zu[7][101];
extern double zv[7][101], zz[7][101], matrix_a[25][101], matrix_b[25][25], matrix_c[25][101];
extern double vx[N1 + 64], xx[N1 + 64], grad[N1 + 64], rx[N1 + 64], rh[2 * N1 + 64];
extern double dex[N1 + 64], ex[N1 + 64];
extern int ix[N1 + 64], ir[N1 + 64], ie[512], je[512], zone[1024];

#define OF(array) {(double *)(array), sizeof(array) / sizeof(double)}
static const struct { double *begin; size_t count; } arrays[] = {
    OF(x), OF(y), OF(z), OF(u), OF(v), OF(w), OF(b), OF(c), OF(p), OF(px), OF(cx), OF(grid),
    OF(b5), OF(sa), OF(sb), OF(u1), OF(u2), OF(u3), OF(du1), OF(du2), OF(du3), OF(za), OF(zb),
    OF(zm), OF(zp), OF(zq), OF(zr), OF(zu), OF(zv), OF(zz), OF(matrix_a), OF(matrix_b),
    OF(matrix_c), OF(vx), OF(xx), OF(grad), OF(rx), OF(rh), OF(dex), OF(ex),
};
enum { ARRAYS = sizeof arrays / sizeof *arrays };

double exponential(double of) { return exp(of); }

void set_up(void) {
    unsigned state = 12345;
    for (int a = 0; a < ARRAYS; a++)
        for (size_t i = 0; i < arrays[a].count; i++) {
            state = state * 1664525u + 1013904223u;
            arrays[a].begin[i] = .01 + (state >> 8) * (.09 / (1 << 24));
        }
    for (int i = 0; i < N1 + 64; i++) grad[i] = 1 + i % 900;
    for (int i = 0; i < 512; i++) {
        p[i][0] = i % 61, p[i][1] = i % 53;
        ie[i] = i % 7, je[i] = i % 5;
    }
    for (int i = 0; i < 1024; i++) zone[i] = (int)((state = state * 1664525u + 1013904223u) >> 16);
    x[500] = -1;
    result = 0;
}

double checksum(void) {
    double sum = result;
    for (int a = 0; a < ARRAYS; a++)
        for (size_t i = 0; i < arrays[a].count; i++) sum += arrays[a].begin[i] * (1 + (i & 15));
    return sum;
}
