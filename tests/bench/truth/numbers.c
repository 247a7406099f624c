// Floating point: planets, a Fourier transform, a matrix product and a sum of functions.
#include <complex.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define BODIES 5
#define POINTS 4096
#define SIDE 96

struct body {
    double x[3], v[3], mass;
};

static void advance(struct body *bodies, double step) {
    for (int i = 0; i < BODIES; i++) {
        for (int j = i + 1; j < BODIES; j++) {
            double d[3], square = 0;
            for (int k = 0; k < 3; k++) {
                d[k] = bodies[i].x[k] - bodies[j].x[k];
                square += d[k] * d[k];
            }
            double pull = step / (square * sqrt(square));
            for (int k = 0; k < 3; k++) {
                bodies[i].v[k] -= d[k] * bodies[j].mass * pull;
                bodies[j].v[k] += d[k] * bodies[i].mass * pull;
            }
        }
    }
    for (int i = 0; i < BODIES; i++)
        for (int k = 0; k < 3; k++) bodies[i].x[k] += step * bodies[i].v[k];
}

static void transform(double complex *points, int count, int stride, double complex *out) {
    if (count == 1) {
        out[0] = points[0];
        return;
    }
    transform(points, count / 2, 2 * stride, out);
    transform(points + stride, count / 2, 2 * stride, out + count / 2);
    for (int i = 0; i < count / 2; i++) {
        double angle = -2 * 3.14159265358979 * i / count;
        double complex turned = (cos(angle) + I * sin(angle)) * out[i + count / 2];
        out[i + count / 2] = out[i] - turned;
        out[i] += turned;
    }
}

static double product(void) {
    static double a[SIDE][SIDE], b[SIDE][SIDE], c[SIDE][SIDE];
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) a[i][j] = i - j, b[i][j] = (double)i / (j + 1);
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) {
            double sum = 0;
            for (int k = 0; k < SIDE; k++) sum += a[i][k] * b[k][j];
            c[i][j] = sum;
        }
    return c[SIDE / 2][SIDE / 3];
}

int main(void) {
    struct body bodies[BODIES];
    for (int i = 0; i < BODIES; i++)
        bodies[i] = (struct body){{i * 3, i * i, 1 - i}, {0, 0.1 * i, 0.2}, 1.0 / (1 + i)};
    for (int step = 0; step < 400000; step++) advance(bodies, 0.001);
    static double complex points[POINTS], out[POINTS];
    for (int i = 0; i < POINTS; i++) points[i] = i % 37 + I * (i % 11);
    for (int round = 0; round < 20; round++) transform(points, POINTS, 1, out);
    double sum = product();
    for (int i = 1; i < 200000; i++) sum += exp(-i * 1e-5) * log(i) + pow(i, 0.3) + atan(i);
    printf("%.6f %.6f %.6f\n", bodies[0].x[0], creal(out[5]), sum);
    return 0;
}
