/* Data of the Livermore loops, and what the harness needs of them. */
#ifndef KERNELS_H
#define KERNELS_H

enum { N1 = 1001, N2 = 480 };

extern double x[N1 + 64], y[N1 + 64], z[N1 + 64], u[N1 + 64], v[2 * N1 + 64], w[N1 + 64];
extern double result;
/* The loops by their numbers; 0 is none. */
extern void (*const loops[25])(void);

/* e to the power of a number, without events. */
double exponential(double of);
/* Sets all data to the same values again. */
void set_up(void);
/* A number that depends on all data. */
double checksum(void);

#endif
