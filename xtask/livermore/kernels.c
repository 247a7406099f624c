/* The 24 Livermore loops, written from their mathematics (F. H. McMahon, "The Livermore Fortran
   kernels: a computer test of the numerical performance range", UCRL-53745, 1986). One statement a
   line: events are added to lines. */
#include "kernels.h"

double x[N1 + 64], y[N1 + 64], z[N1 + 64], u[N1 + 64], v[2 * N1 + 64], w[N1 + 64];
double b[64][64], c[64][64], p[512][4], px[101][25], cx[101][25], grid[64][64];
double b5[N1], sa[N1], sb[N1];
double u1[2][101][5], u2[2][101][5], u3[2][101][5], du1[101], du2[101], du3[101];
double za[7][101], zb[7][101], zm[7][101], zp[7][101], zq[7][101], zr[7][101], zu[7][101];
double zv[7][101], zz[7][101], matrix_a[25][101], matrix_b[25][25], matrix_c[25][101];
double vx[N1 + 64], xx[N1 + 64], grad[N1 + 64], rx[N1 + 64], rh[2 * N1 + 64];
double dex[N1 + 64], ex[N1 + 64];
int ix[N1 + 64], ir[N1 + 64], ie[512], je[512], zone[1024];
double result;

const double q = 0.05, r = 0.02, t = 0.01;

void loop_1(void) { /* hydrodynamics fragment */
    for (int k = 0; k < N1; k++)
        x[k] = q + y[k] * (r * z[k + 10] + t * z[k + 11]);
}

void loop_2(void) { /* incomplete Cholesky conjugate gradient: each sweep halves what is left */
    int left = N2, next = 0, first, to;
    do {
        first = next;
        next += left;
        left /= 2;
        to = next;
        for (int k = first + 1; k < next; k += 2) {
            x[to] = x[k] - v[k] * x[k - 1] - v[k + 1] * x[k + 1];
            to++;
        }
    } while (left > 1);
}

void loop_3(void) { /* inner product */
    double sum = 0;
    for (int k = 0; k < N1; k++)
        sum += z[k] * x[k];
    result = sum;
}

void loop_4(void) { /* banded linear equations */
    for (int k = 6; k < N1; k += (N1 - 7) / 2) {
        double sum = x[k - 1];
        for (int j = 4, l = k - 6; j < N1 - 5; j += 5, l++)
            sum -= x[l < N1 ? l : l - N1] * y[j];
        x[k - 1] = y[4] * sum;
    }
}

void loop_5(void) { /* elimination of a tridiagonal system, below the diagonal */
    for (int i = 1; i < N1; i++)
        x[i] = z[i] * (y[i] - x[i - 1]);
}

void loop_6(void) { /* general linear recurrence */
    for (int i = 1; i < 64; i++) {
        double sum = 0.01;
        for (int k = 0; k < i; k++)
            sum += b[k][i] * w[i - k - 1];
        w[i] = sum;
    }
}

void loop_7(void) { /* equation of state */
    for (int k = 0; k < N1 - 6; k++)
        x[k] = u[k] + r * (z[k] + r * y[k])
             + t * (u[k + 3] + r * (u[k + 2] + r * u[k + 1])
             + t * (u[k + 6] + q * (u[k + 5] + q * u[k + 4])));
}

void loop_8(void) { /* implicit integration in alternating directions */
    for (int i = 1; i < 3; i++)
        for (int j = 1; j < 100; j++) {
            du1[j] = u1[0][j + 1][i] - u1[0][j - 1][i];
            du2[j] = u2[0][j + 1][i] - u2[0][j - 1][i];
            du3[j] = u3[0][j + 1][i] - u3[0][j - 1][i];
            u1[1][j][i] = u1[0][j][i] + .1 * du1[j] + .2 * du2[j] + .3 * du3[j]
                + q * (u1[0][j][i + 1] - 2 * u1[0][j][i] + u1[0][j][i - 1]);
            u2[1][j][i] = u2[0][j][i] + .2 * du1[j] + .3 * du2[j] + .1 * du3[j]
                + q * (u2[0][j][i + 1] - 2 * u2[0][j][i] + u2[0][j][i - 1]);
            u3[1][j][i] = u3[0][j][i] + .3 * du1[j] + .1 * du2[j] + .2 * du3[j]
                + q * (u3[0][j][i + 1] - 2 * u3[0][j][i] + u3[0][j][i - 1]);
        }
}

void loop_9(void) { /* integration by predictors */
    for (int i = 0; i < 101; i++)
        px[i][0] = .1 * px[i][12] + .2 * px[i][11] + .3 * px[i][10] + .1 * px[i][9]
                 + .2 * px[i][8] + .3 * px[i][7] + .1 * px[i][6]
                 + q * (px[i][4] + px[i][5]) + px[i][2];
}

void loop_10(void) { /* differences of predictors: each new one pushes the old ones down */
    for (int i = 0; i < 101; i++) {
        double new = cx[i][4], old;
        for (int k = 4; k < 13; k++) {
            old = px[i][k];
            px[i][k] = new;
            new -= old;
        }
        px[i][13] = new;
    }
}

void loop_11(void) { /* first sum */
    x[0] = y[0];
    for (int k = 1; k < N1; k++)
        x[k] = x[k - 1] + y[k];
}

void loop_12(void) { /* first difference */
    for (int k = 0; k < N1; k++)
        x[k] = y[k + 1] - y[k];
}

void loop_13(void) { /* particles in a plane */
    for (int i = 0; i < 128; i++) {
        int i1 = (int)p[i][0] & 63, j1 = (int)p[i][1] & 63;
        p[i][2] += b[j1][i1];
        p[i][3] += c[j1][i1];
        p[i][0] += p[i][2];
        p[i][1] += p[i][3];
        int i2 = (int)p[i][0] & 63, j2 = (int)p[i][1] & 63;
        p[i][0] += y[i2 + 32];
        p[i][1] += z[j2 + 32];
        i2 = (i2 + ie[i2]) & 63;
        j2 = (j2 + je[j2]) & 63;
        grid[j2][i2] += 1;
    }
}

void loop_14(void) { /* particles on a line */
    for (int k = 0; k < N1; k++) {
        ix[k] = (int)grad[k];
        vx[k] = ex[ix[k]] - dex[ix[k]] * ix[k];
    }
    for (int k = 0; k < N1; k++) {
        vx[k] += ex[ix[k]] + (xx[k] - ix[k]) * dex[ix[k]];
        xx[k] += vx[k] + .1;
        ir[k] = (int)xx[k];
        rx[k] = xx[k] - ir[k];
        ir[k] = ir[k] & 1023;
        xx[k] = rx[k] + ir[k];
    }
    for (int k = 0; k < N1; k++) {
        rh[ir[k]] += 1 - rx[k];
        rh[ir[k] + 1] += rx[k];
    }
}

void loop_15(void) { /* branches as they come in plain Fortran */
    for (int j = 1; j < 7; j++)
        for (int k = 1; k < 100; k++) {
            double a, s;
            if (j == 6) {
                zr[j][k] = 0;
                continue;
            }
            if (zb[j + 1][k] > zb[j][k])
                a = .053;
            else
                a = .073;
            if (zm[j][k] < zm[j][k - 1])
                s = zm[j][k - 1] > zm[j + 1][k - 1] ? zm[j][k - 1] : zm[j + 1][k - 1];
            else
                s = zm[j][k] > zm[j + 1][k] ? zm[j][k] : zm[j + 1][k];
            zr[j][k] = a * s * (zb[j][k] + zq[j][k]) / (zu[j][k] + 1);
            if (zz[j][k] < 0)
                zv[j][k] = s;
            else
                zv[j][k] = a * zz[j][k];
        }
}

void loop_16(void) { /* Monte Carlo search: zones are tried until one fits */
    int m = 0, tried = 0, found = 0;
    for (int step = 0; step < 400; step++) {
        int at = zone[m] & 255;
        tried++;
        double d = sa[at] - q;
        if (d < 0) {
            if (sb[at] < t)
                m = (m + 1) & 1023;
            else
                m = (m + 7) & 1023;
        } else if (d > r) {
            if (sb[at] > r)
                m = (m + 3) & 1023;
            else {
                found++;
                m = (m + 11) & 1023;
            }
        } else
            m = (m + 1) & 1023;
    }
    result = tried + found;
}

void loop_17(void) { /* implicit conditional computation */
    double scale = 5. / 3, last = .02, above = .01;
    int i = 100;
    while (i >= 0) {
        double e3 = last * u[i] + v[i];
        double e6 = above;
        if (e6 > e3 || x[i] > e3 * scale) {
            last = e3 * .3 + e6 * .2;
            w[i] = last;
        } else {
            above = e3 + e6 * .1;
            last = above * .2;
            w[i] = e3 + e3 - above;
        }
        z[i] = last;
        i--;
    }
}

void loop_18(void) { /* explicit hydrodynamics in the plane */
    for (int k = 1; k < 6; k++)
        for (int j = 1; j < 100; j++) {
            za[k][j] = (zp[k + 1][j - 1] + zq[k + 1][j - 1] - zp[k][j - 1] - zq[k][j - 1])
                * (zr[k][j] + zr[k][j - 1]) / (zm[k][j - 1] + zm[k + 1][j - 1]);
            zb[k][j] = (zp[k][j - 1] + zq[k][j - 1] - zp[k][j] - zq[k][j])
                * (zr[k][j] + zr[k - 1][j]) / (zm[k][j] + zm[k][j - 1]);
        }
    for (int k = 1; k < 6; k++)
        for (int j = 1; j < 100; j++) {
            zu[k][j] += q * (za[k][j] * (zz[k][j] - zz[k][j + 1])
                - za[k][j - 1] * (zz[k][j] - zz[k][j - 1])
                - zb[k][j] * (zz[k][j] - zz[k - 1][j])
                + zb[k + 1][j] * (zz[k][j] - zz[k + 1][j]));
            zv[k][j] += q * (za[k][j] * (zr[k][j] - zr[k][j + 1])
                - za[k][j - 1] * (zr[k][j] - zr[k][j - 1])
                - zb[k][j] * (zr[k][j] - zr[k - 1][j])
                + zb[k + 1][j] * (zr[k][j] - zr[k + 1][j]));
        }
    for (int k = 1; k < 6; k++)
        for (int j = 1; j < 100; j++) {
            zr[k][j] += t * zu[k][j];
            zz[k][j] += t * zv[k][j];
        }
}

void loop_19(void) { /* linear recurrence, forwards and backwards */
    double carry = .01;
    for (int k = 0; k < 101; k++) {
        b5[k] = sa[k] + carry * sb[k];
        carry = b5[k] - carry;
    }
    for (int k = 100; k >= 0; k--) {
        b5[k] = sa[k] + carry * sb[k];
        carry = b5[k] - carry;
    }
}

void loop_20(void) { /* transport by discrete ordinates */
    for (int k = 0; k < N1; k++) {
        double di = y[k] - x[k] / (xx[k] + 4);
        double dn = .2;
        if (di > .01) {
            dn = z[k] / di;
            if (dn > .2)
                dn = .2;
            if (dn < .1)
                dn = .1;
        }
        x[k] = ((w[k] + u[k] * dn) * .5 + v[k]) / (vx[k] + u[k] * dn + 1);
        xx[k + 1] = (x[k] - xx[k]) * dn + xx[k];
    }
}

void loop_21(void) { /* product of matrices */
    for (int k = 0; k < 25; k++)
        for (int i = 0; i < 25; i++)
            for (int j = 0; j < 101; j++)
                matrix_c[i][j] += matrix_b[i][k] * matrix_a[k][j];
}

void loop_22(void) { /* Planck's distribution */
    for (int k = 0; k < 101; k++) {
        y[k] = u[k] / (v[k] + 1);
        w[k] = x[k] / (exponential(y[k]) - .9);
    }
}

void loop_23(void) { /* implicit hydrodynamics in the plane */
    for (int j = 1; j < 6; j++)
        for (int k = 1; k < 100; k++) {
            double qa = za[j + 1][k] * zr[j][k] + za[j - 1][k] * zb[j][k]
                + za[j][k + 1] * zu[j][k] + za[j][k - 1] * zv[j][k] + zz[j][k];
            za[j][k] += .175 * (qa - za[j][k]);
        }
}

void loop_24(void) { /* place of the first minimum */
    int least = 0;
    for (int k = 1; k < N1; k++)
        if (x[k] < x[least])
            least = k;
    result = least;
}

void (*const loops[25])(void) = {
    0,       loop_1,  loop_2,  loop_3,  loop_4,  loop_5,  loop_6,  loop_7,  loop_8,
    loop_9,  loop_10, loop_11, loop_12, loop_13, loop_14, loop_15, loop_16, loop_17,
    loop_18, loop_19, loop_20, loop_21, loop_22, loop_23, loop_24,
};
