/* Compresses a file in small blocks by zlib: `deflate FILE`. */
#include <stdio.h>
#include <stdlib.h>
#include <zlib.h>

#define BLOCK 256

static unsigned long written;

__attribute__((noinline)) void compress_block(z_stream *stream, unsigned char *block, size_t size)
{
    unsigned char out[2 * BLOCK + 64];
    stream->next_in = block;
    stream->avail_in = size;
    stream->next_out = out;
    stream->avail_out = sizeof out;
    deflate(stream, Z_SYNC_FLUSH);
    written += sizeof out - stream->avail_out;
}

int main(int argc, char **argv)
{
    unsigned char block[BLOCK];
    z_stream stream = { 0 };
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!file || deflateInit(&stream, 9) != Z_OK)
        return 2;
    size_t size;
    while ((size = fread(block, 1, sizeof block, file)) > 0)
        compress_block(&stream, block, size);
    printf("%lu\n", written);
    deflateEnd(&stream);
    return 0;
}
