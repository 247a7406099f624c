// What `procedures.txt` was compiled from: aarch64-linux-gnu-gcc-12 -O2, by
// `aarch64-linux-gnu-objdump`. Without calls and tables of jumps.
#include <stddef.h>
#include <stdint.h>

void copy(uint64_t *to, const uint64_t *from, size_t count) {
    for (size_t i = 0; i < count; i++) to[i] = from[i];
}

uint32_t hash(const unsigned char *text, size_t length) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; i++) {
        unsigned char c = text[i];
        if (c >= 'A' && c <= 'Z') c += 32;
        else if (c == '_' || c == '-') continue;
        hash = (hash ^ c) * 16777619u;
    }
    return hash;
}

size_t search(const int64_t *sorted, size_t count, int64_t key) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sorted[middle] == key) return middle;
        if (sorted[middle] < key) low = middle + 1; else high = middle;
    }
    return low;
}

void insertion(int *values, int count) {
    for (int i = 1; i < count; i++) {
        int value = values[i], j = i;
        while (j > 0 && values[j - 1] > value) { values[j] = values[j - 1]; j--; }
        values[j] = value;
    }
}

void multiply(double *c, const double *a, const double *b, int n) {
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int k = 0; k < n; k++) sum += a[i * n + k] * b[k * n + j];
            c[i * n + j] = sum;
        }
}

struct node { struct node *left, *right; long key, value; };
long lookup(struct node *node, long key, long *steps) {
    long count = 0;
    while (node) {
        count++;
        if (node->key == key) { *steps += count; return node->value; }
        node = key < node->key ? node->left : node->right;
        if (count > 64) break;
    }
    *steps += count;
    return -1;
}

size_t match(const unsigned char *a, const unsigned char *b, const unsigned char *end,
             size_t *longest) {
    size_t best = 0;
    while (b < end) {
        size_t length = 0;
        while (b + length < end && a[length] == b[length]) length++;
        if (length > best) { best = length; *longest = (size_t)b; }
        b += length ? length : 1;
    }
    return best;
}

int utf8(const unsigned char *text, size_t length, uint32_t *out) {
    int count = 0;
    for (size_t i = 0; i < length;) {
        unsigned char c = text[i];
        uint32_t value;
        if (c < 0x80) { value = c; i += 1; }
        else if (c < 0xe0) { value = (c & 31) << 6 | (text[i + 1] & 63); i += 2; }
        else if (c < 0xf0) {
            value = (c & 15) << 12 | (text[i + 1] & 63) << 6 | (text[i + 2] & 63);
            i += 3;
        }
        else {
            value = (c & 7) << 18 | (text[i + 1] & 63) << 12 | (text[i + 2] & 63) << 6
                | (text[i + 3] & 63);
            i += 4;
        }
        if (value >= 0xd800 && value < 0xe000) return -1;
        out[count++] = value;
    }
    return count;
}

uint64_t gcd(uint64_t a, uint64_t b) {
    while (b) { uint64_t rest = a % b; a = b; b = rest; }
    return a;
}

long parse(const char *text, long *sum, int *bad) {
    long count = 0, total = 0;
    for (;;) {
        while (*text == ' ' || *text == '\t') text++;
        if (!*text) break;
        int negative = 0;
        if (*text == '-') { negative = 1; text++; }
        if (*text < '0' || *text > '9') {
            (*bad)++;
            while (*text && *text != ' ') text++;
            continue;
        }
        long value = 0;
        while (*text >= '0' && *text <= '9') value = value * 10 + (*text++ - '0');
        total += negative ? -value : value;
        count++;
    }
    *sum = total;
    return count;
}

void smooth(float *to, const float *from, int width, int height, float weight) {
    for (int y = 1; y < height - 1; y++)
        for (int x = 1; x < width - 1; x++) {
            const float *at = from + y * width + x;
            float mean = (at[-1] + at[1] + at[-width] + at[width]) * 0.25f;
            float value = at[0] + weight * (mean - at[0]);
            to[y * width + x] = value < 0 ? 0 : value > 1 ? value / (1 + value) : value;
        }
}

uint32_t crc(const unsigned char *bytes, size_t length) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return ~crc;
}

int interpret(const unsigned char *code, long *stack, long limit) {
    long *top = stack;
    long steps = 0;
    for (;;) {
        unsigned char c = *code++;
        if (++steps > limit) return -2;
        if (c == 0) return (int)steps;
        if (c == 1) *top++ = (signed char)*code++;
        else if (c == 2) { top--; top[-1] += top[0]; }
        else if (c == 3) { top--; top[-1] *= top[0]; }
        else if (c == 4) { long v = *--top; if (v) code += (signed char)*code; else code++; }
        else if (c == 5) { top[0] = top[-1]; top++; }
        else return -1;
    }
}
