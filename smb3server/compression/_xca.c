/* The functions of lznt1.py, lz77.py and lz77_huffman.py, in C: see there for the formats. Tests hold one against the
   other. [MS-XCA 2.1 to 2.5]

   Every length that comes out of compressed data is compared with what is left before a byte is read or written. A
   decompressor reads each byte of its input once: who shares the memory cannot change what was checked. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Bytes from which the work is done without the interpreter's lock. Below, taking it back may cost more. */
#define UNLOCKED_FROM 16384

#define HASH_BITS 14
#define NONE UINT32_MAX
#define MIN_MATCH 3

/* Positions that did not match before the search goes on in larger steps, as a power of two: data that cannot be
   compressed is passed over quickly. */
#define PATIENCE 6

static uint32_t load16(const uint8_t *at)
{
    return at[0] | (uint32_t)at[1] << 8;
}

static uint32_t load32(const uint8_t *at)
{
    return load16(at) | load16(at + 2) << 16;
}

static void store16(uint8_t *at, uint32_t value)
{
    at[0] = value & 0xFF;
    at[1] = value >> 8 & 0xFF;
}

static void store32(uint8_t *at, uint32_t value)
{
    store16(at, value);
    store16(at + 2, value >> 16);
}

/* Repeat ``length`` bytes from ``distance`` bytes before ``to``. The two may overlap: each byte may be one that was
   written just before. */
static void repeat(uint8_t *to, size_t distance, size_t length)
{
    const uint8_t *from = to - distance;

    if (distance >= length) {
        memcpy(to, from, length);
        return;
    }
    if (distance == 1) {
        memset(to, *from, length);
        return;
    }
    while (length > distance) {
        memcpy(to, from, distance);
        to += distance;
        length -= distance;
        distance *= 2;
    }
    memcpy(to, from, length);
}

/* -- finding matches */

/* Where sequences of three bytes began: the last place by hash, and for each place the one before it. */
struct finder {
    const uint8_t *data;
    size_t end, window; /* largest distance; a power of two, or one less than one */
    unsigned depth;     /* places looked at */
    size_t misses, skip;
    uint32_t last[1 << HASH_BITS];
    uint32_t before[65536];
};

struct match {
    size_t length, distance;
};

static void begin(struct finder *finder, const uint8_t *data, size_t end, size_t window, unsigned depth)
{
    finder->data = data;
    finder->end = end;
    finder->window = window;
    finder->depth = depth;
    finder->misses = 1 << PATIENCE;
    finder->skip = 0;
    memset(finder->last, 0xFF, sizeof finder->last);
}

static uint32_t hash(const uint8_t *at)
{
    return ((at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16) * 2654435761u) >> (32 - HASH_BITS);
}

static void note(struct finder *finder, size_t position)
{
    uint32_t *last = &finder->last[hash(finder->data + position)];

    finder->before[position & 0xFFFF] = *last;
    *last = (uint32_t)position;
}

static size_t same(const uint8_t *one, const uint8_t *other, size_t limit)
{
    size_t length = 0;

    while (length + 8 <= limit) {
        uint64_t left, right;

        memcpy(&left, one + length, 8);
        memcpy(&right, other + length, 8);
        if (left != right)
            break;
        length += 8;
    }
    while (length < limit && one[length] == other[length])
        length++;
    return length;
}

/* Return the longest match of ``position`` that begins at ``first`` or later, of at most ``limit`` bytes; length 0:
   there is none, or it was not looked for, as many before did not match. Of two as long, the nearer one. Note the
   position. */
static struct match find(struct finder *finder, size_t position, size_t first, size_t limit)
{
    struct match best = {0, 0};
    const uint8_t *data = finder->data;
    uint32_t candidate;
    unsigned tries = finder->depth;

    if (finder->skip) {
        finder->skip--;
        return best;
    }
    if (limit < MIN_MATCH)
        return best;
    candidate = finder->last[hash(data + position)];
    note(finder, position);
    while (candidate != NONE && candidate >= first && tries--) {
        size_t distance = position - candidate;

        if (distance > finder->window)
            break;
        if (!best.length || data[candidate + best.length] == data[position + best.length]) {
            size_t length = same(data + candidate, data + position, limit);

            if (length >= MIN_MATCH && length > best.length) {
                best.length = length;
                best.distance = distance;
                if (length == limit)
                    break;
            }
        }
        if (finder->before[candidate & 0xFFFF] >= candidate)
            break; /* it was noted so long ago that its place has been taken */
        candidate = finder->before[candidate & 0xFFFF];
    }
    if (best.length)
        finder->misses = 1 << PATIENCE;
    else
        finder->skip = (finder->misses++ >> PATIENCE) - 1;
    return best;
}

/* Note the positions of a match, but for the first, which ``find`` has noted. Of a long one only some at its end. */
static void note_match(struct finder *finder, size_t position, size_t length)
{
    size_t end = position + length, at = length > 32 ? end - 16 : position + 1;

    for (; at < end && at + MIN_MATCH <= finder->end; at++)
        note(finder, at);
}

/* -- LZNT1 [MS-XCA 2.5] */

#define CHUNK 4096

/* Return the bits of a compressed word that are its displacement, ``done`` bytes after the start of the chunk. */
static unsigned displacement_bits(size_t done)
{
    unsigned bits = 4;

    while (bits < 12 && ((size_t)1 << bits) < done)
        bits++;
    return bits;
}

static size_t lznt1_chunk(struct finder *finder, size_t from, size_t end, uint8_t *out, size_t room)
{
    size_t at = from, flags_at = 0, used = 0;
    unsigned count = 8;

    while (at < end) {
        unsigned bits = displacement_bits(at - from);
        size_t limit = ((size_t)1 << (16 - bits)) + 2;
        struct match match;

        if (count == 8) {
            if (used >= room)
                return 0;
            flags_at = used++;
            out[flags_at] = 0;
            count = 0;
        }
        match = find(finder, at, from, end - at < limit ? end - at : limit);
        if (match.length) {
            if (room - used < 2)
                return 0;
            store16(out + used, (uint32_t)((match.distance - 1) << (16 - bits) | (match.length - MIN_MATCH)));
            used += 2;
            out[flags_at] |= 1 << count;
            note_match(finder, at, match.length);
            at += match.length;
        } else {
            if (used >= room)
                return 0;
            out[used++] = finder->data[at++];
        }
        count++;
    }
    return used;
}

static size_t lznt1_compress(struct finder *finder, const uint8_t *in, size_t length, uint8_t *out, size_t room)
{
    size_t used = 0;

    begin(finder, in, length, CHUNK, 2);
    for (size_t from = 0; from < length; from += CHUNK) {
        size_t size = length - from < CHUNK ? length - from : CHUNK, packed;

        if (room - used < 2)
            return 0;
        packed = room - used - 2 < size - 1 ? room - used - 2 : size - 1;
        packed = lznt1_chunk(finder, from, from + size, out + used + 2, packed);
        if (packed) {
            store16(out + used, 0xB000 | (uint32_t)(packed - 1));
        } else {
            if (room - used - 2 < size)
                return 0;
            packed = size;
            store16(out + used, 0x3000 | (uint32_t)(packed - 1));
            memcpy(out + used + 2, in + from, size);
        }
        used += 2 + packed;
    }
    return used;
}

static int lznt1_decompress(const uint8_t *in, size_t length, uint8_t *out, size_t size)
{
    size_t at = 0, done = 0;

    while (at + 2 <= length) {
        uint32_t header = load16(in + at);
        size_t end, from = done;

        at += 2;
        if (!header)
            return done == size; /* End_of_buffer */
        end = at + (header & 0xFFF) + 1;
        if ((header >> 12 & 7) != 3 || end > length)
            return 0;
        if (!(header & 0x8000)) {
            if (size - done < end - at)
                return 0;
            memcpy(out + done, in + at, end - at);
            done += end - at;
            at = end;
            continue;
        }
        while (at < end) {
            unsigned flags = in[at++];

            for (unsigned bit = 0; bit < 8 && at < end; bit++, flags >>= 1) {
                if (flags & 1) {
                    unsigned bits = displacement_bits(done - from);
                    size_t distance, count;
                    uint32_t word;

                    if (end - at < 2)
                        return 0;
                    word = load16(in + at);
                    at += 2;
                    distance = (word >> (16 - bits)) + 1;
                    count = (word & ((1u << (16 - bits)) - 1)) + MIN_MATCH;
                    if (distance > done - from || count > size - done || done - from + count > CHUNK)
                        return 0;
                    repeat(out + done, distance, count);
                    done += count;
                } else {
                    if (done == size || done - from == CHUNK)
                        return 0;
                    out[done++] = in[at++];
                }
            }
        }
    }
    return at == length && done == size;
}

/* -- Plain LZ77 [MS-XCA 2.3, 2.4] */

#define LZ77_WINDOW 8192

static size_t lz77_compress(struct finder *finder, const uint8_t *in, size_t length, uint8_t *out, size_t room)
{
    size_t at = 0, used = 4, flags_at = 0, half = 0;
    uint32_t flags = 0;
    unsigned count = 0;

    begin(finder, in, length, LZ77_WINDOW, 2);
    if (room < 8)
        return 0;
    while (at < length) {
        struct match match = find(finder, at, 0, length - at);

        /* At most 2 + 1 + 1 + 2 + 4 bytes, and the next flags. */
        if (room - used < 14)
            return 0;
        if (match.length) {
            size_t rest = match.length - MIN_MATCH;
            uint32_t word = (uint32_t)(match.distance - 1) << 3;

            store16(out + used, rest < 7 ? word | (uint32_t)rest : word | 7);
            used += 2;
            if (rest >= 7) {
                rest -= 7;
                if (!half) {
                    half = used;
                    out[used++] = rest < 15 ? (uint8_t)rest : 15;
                } else {
                    out[half] |= (rest < 15 ? (uint8_t)rest : 15) << 4;
                    half = 0;
                }
                if (rest >= 15) {
                    rest -= 15;
                    if (rest < 255) {
                        out[used++] = (uint8_t)rest;
                    } else {
                        out[used++] = 255;
                        rest += 15 + 7;
                        if (rest < 65536) {
                            store16(out + used, (uint32_t)rest);
                            used += 2;
                        } else {
                            store16(out + used, 0);
                            store32(out + used + 2, (uint32_t)rest);
                            used += 6;
                        }
                    }
                }
            }
            note_match(finder, at, match.length);
            at += match.length;
            flags = flags << 1 | 1;
        } else {
            out[used++] = in[at++];
            flags <<= 1;
        }
        if (++count == 32) {
            store32(out + flags_at, flags);
            flags_at = used;
            used += 4;
            count = 0;
        }
    }
    store32(out + flags_at, count ? flags << (32 - count) | (((uint32_t)1 << (32 - count)) - 1) : UINT32_MAX);
    return used;
}

static int lz77_decompress(const uint8_t *in, size_t length, uint8_t *out, size_t size)
{
    size_t at = 0, done = 0, half_at = 0;
    uint32_t flags = 0;
    unsigned left = 0, half = 0;

    for (;;) {
        size_t distance, count;
        uint32_t word;

        if (!left) {
            if (at == length)
                return done == size; /* an encoder may leave out flags for nothing */
            if (length - at < 4)
                return 0;
            flags = load32(in + at);
            at += 4;
            left = 32;
        }
        left--;
        if (!(flags >> left & 1)) {
            if (at == length)
                return done == size; /* Linux 6.12: flags for nothing are zeros, see lz77.py */
            if (done == size)
                return 0;
            out[done++] = in[at++];
            continue;
        }
        if (at == length)
            return done == size;
        if (length - at < 2)
            return 0;
        word = load16(in + at);
        at += 2;
        count = word & 7;
        distance = (word >> 3) + 1;
        if (count == 7) {
            if (!half_at) {
                if (at == length)
                    return 0;
                half = in[at++];
                half_at = at;
                count = half & 15;
            } else {
                count = half >> 4;
                half_at = 0;
            }
            if (count == 15) {
                if (at == length)
                    return 0;
                count = in[at++];
                if (count == 255) {
                    if (length - at < 2)
                        return 0;
                    count = load16(in + at);
                    at += 2;
                    if (!count) {
                        if (length - at < 4)
                            return 0;
                        count = load32(in + at);
                        at += 4;
                    }
                    if (count < 15 + 7)
                        return 0;
                    count -= 15 + 7;
                }
                count += 15;
            }
            count += 7;
        }
        count += MIN_MATCH;
        if (distance > done || count > size - done)
            return 0;
        repeat(out + done, distance, count);
        done += count;
    }
}

/* -- LZ77+Huffman [MS-XCA 2.1, 2.2] */

#define SYMBOLS 512
#define TABLE 256 /* bytes: the lengths of all codes, four bits each */
#define BLOCK 65536
#define LONGEST 15 /* bits of a code */
#define END 256    /* the symbol behind the data */
#define HUFFMAN_WINDOW 65535
#define FAST_BITS 10

struct item {
    uint16_t symbol; /* below 256: a byte; otherwise a match */
    uint16_t distance;
    uint32_t length;
};

struct huffman {
    struct finder finder;
    struct item items[BLOCK + 1];
    uint32_t counts[SYMBOLS];
    uint16_t codes[SYMBOLS];
    uint8_t lengths[SYMBOLS];
};

static unsigned high_bit(uint32_t value)
{
    unsigned bit = 0;

    while (value >>= 1)
        bit++;
    return bit;
}

static int by_value(const void *one, const void *other)
{
    uint32_t left = *(const uint32_t *)one, right = *(const uint32_t *)other;

    return (left > right) - (left < right);
}

/* Make lengths of the codes from counts by Huffman's algorithm with two queues, which is stable: of nodes as heavy, the
   one that was made first is joined first. If a code gets too long, frequent symbols are made less frequent. */
static void make_lengths(struct huffman *work)
{
    uint32_t leaves[SYMBOLS], weight[2 * SYMBOLS]; /* a leaf: count and symbol */
    uint16_t parent[2 * SYMBOLS];
    unsigned used = 0;

    memset(work->lengths, 0, sizeof work->lengths);
    for (unsigned symbol = 0; symbol < SYMBOLS; symbol++)
        if (work->counts[symbol])
            leaves[used++] = work->counts[symbol] * SYMBOLS + symbol;
    if (used == 1) {
        /* A table of one code is not complete. A second one, which is never used, completes it. */
        work->lengths[leaves[0] % SYMBOLS] = 1;
        work->lengths[(leaves[0] ^ 1) % SYMBOLS] = 1;
        return;
    }
    for (;;) {
        unsigned leaf = 0, node = used, nodes = used, longest = 0;

        qsort(leaves, used, sizeof *leaves, by_value);
        for (unsigned i = 0; i < used; i++)
            weight[i] = leaves[i] / SYMBOLS;
        while (nodes < 2 * used - 1) {
            uint32_t sum = 0;

            for (unsigned i = 0; i < 2; i++) {
                unsigned taken = leaf < used && (node == nodes || weight[leaf] <= weight[node]) ? leaf++ : node++;

                parent[taken] = (uint16_t)nodes;
                sum += weight[taken];
            }
            weight[nodes++] = sum;
        }
        weight[nodes - 1] = 0; /* from here on: depths, from the root down */
        for (unsigned i = nodes - 1; i--;) {
            weight[i] = weight[parent[i]] + 1;
            if (i < used && weight[i] > longest)
                longest = weight[i];
        }
        if (longest <= LONGEST) {
            for (unsigned i = 0; i < used; i++)
                work->lengths[leaves[i] % SYMBOLS] = (uint8_t)weight[i];
            return;
        }
        for (unsigned i = 0; i < used; i++)
            leaves[i] = (leaves[i] / SYMBOLS + 1) / 2 * SYMBOLS + leaves[i] % SYMBOLS;
    }
}

static void make_codes(struct huffman *work)
{
    uint32_t code = 0;

    for (unsigned bits = 1; bits <= LONGEST; bits++) {
        for (unsigned symbol = 0; symbol < SYMBOLS; symbol++)
            if (work->lengths[symbol] == bits)
                work->codes[symbol] = (uint16_t)code++;
        code <<= 1;
    }
}

/* Where bits go: words of 16, of which two are always reserved before the bytes that come between them. */
struct bits {
    uint8_t *out;
    size_t room, used, first, second; /* invariant: first, second < used <= room */
    uint32_t word;
    unsigned free;
    int failed;
};

static void put_bits(struct bits *bits, unsigned count, uint32_t value)
{
    if (bits->free >= count) {
        bits->free -= count;
        bits->word = bits->word << count | value;
        return;
    }
    bits->word = bits->word << bits->free | value >> (count - bits->free);
    store16(bits->out + bits->first, bits->word);
    if (bits->room - bits->used < 2) {
        bits->failed = 1;
        return;
    }
    bits->first = bits->second;
    bits->second = bits->used;
    bits->used += 2;
    bits->free += 16 - count;
    bits->word = value;
}

static void put_bytes(struct bits *bits, unsigned count, uint32_t value)
{
    if (bits->room - bits->used < count) {
        bits->failed = 1;
        return;
    }
    bits->out[bits->used] = value & 0xFF;
    if (count == 2)
        bits->out[bits->used + 1] = value >> 8 & 0xFF;
    bits->used += count;
}

/* Find the items of one block, and count their symbols. Return how many there are. */
static size_t find_items(struct huffman *work, size_t from, size_t end)
{
    struct finder *finder = &work->finder;
    size_t at = from, items = 0;

    memset(work->counts, 0, sizeof work->counts);
    while (at < end) {
        struct match match = find(finder, at, 0, end - at);
        struct item *item = &work->items[items++];

        if (match.length) {
            size_t rest = match.length - MIN_MATCH;

            item->symbol = (uint16_t)(256 + (rest < 15 ? rest : 15) + 16 * high_bit((uint32_t)match.distance));
            item->distance = (uint16_t)match.distance;
            item->length = (uint32_t)match.length;
            note_match(finder, at, match.length);
            at += match.length;
        } else {
            item->symbol = finder->data[at++];
        }
        work->counts[item->symbol]++;
    }
    return items;
}

static size_t huffman_compress(struct huffman *work, const uint8_t *in, size_t length, uint8_t *out, size_t room)
{
    size_t used = 0, from = 0;

    begin(&work->finder, in, length, HUFFMAN_WINDOW, 4);
    do {
        size_t end = length - from < BLOCK ? length : from + BLOCK;
        size_t items = find_items(work, from, end);
        struct bits bits = {0};

        if (end == length) {
            work->items[items++].symbol = END;
            work->items[items - 1].distance = 0;
            work->counts[END]++;
        }
        make_lengths(work);
        make_codes(work);
        if (room - used < TABLE + 4)
            return 0;
        bits.out = out + used;
        bits.room = room - used;
        bits.first = TABLE;
        bits.second = TABLE + 2;
        bits.used = TABLE + 4;
        bits.free = 16;
        for (unsigned i = 0; i < TABLE; i++)
            bits.out[i] = work->lengths[2 * i] | work->lengths[2 * i + 1] << 4;
        for (size_t i = 0; i < items && !bits.failed; i++) {
            const struct item *item = &work->items[i];

            put_bits(&bits, work->lengths[item->symbol], work->codes[item->symbol]);
            if (item->symbol < 256 || (item->symbol == END && !item->distance))
                continue;
            if (item->length - MIN_MATCH >= 15) {
                uint32_t rest = item->length - MIN_MATCH - 15;

                put_bytes(&bits, 1, rest < 255 ? rest : 255);
                if (rest >= 255)
                    put_bytes(&bits, 2, item->length - MIN_MATCH);
            }
            put_bits(&bits, high_bit(item->distance), item->distance - (1u << high_bit(item->distance)));
        }
        if (bits.failed)
            return 0;
        store16(bits.out + bits.first, bits.word << bits.free);
        store16(bits.out + bits.second, 0);
        used += bits.used;
        from = end;
    } while (from < length);
    return used;
}

/* Codes of at most FAST_BITS bits are found at once. The others are found by the first code of each length. */
struct decoder {
    uint16_t fast[1 << FAST_BITS]; /* symbol << 4 | length; 0: longer */
    uint16_t sorted[SYMBOLS];      /* symbols by length, then by value */
    uint32_t first[LONGEST + 2];   /* the first code of a length, in LONGEST bits; behind the last: 1 << LONGEST */
    uint32_t index[LONGEST + 1];   /* where its symbol is in ``sorted`` */
};

static int read_table(struct decoder *decoder, const uint8_t *table)
{
    uint8_t lengths[SYMBOLS];
    uint32_t code = 0, index = 0;

    for (unsigned i = 0; i < TABLE; i++) {
        uint8_t pair = table[i];

        lengths[2 * i] = pair & 15;
        lengths[2 * i + 1] = pair >> 4;
    }
    memset(decoder->fast, 0, sizeof decoder->fast);
    for (unsigned bits = 1; bits <= LONGEST; bits++) {
        uint32_t step = 1u << (LONGEST - bits);

        decoder->first[bits] = code;
        decoder->index[bits] = index;
        for (unsigned symbol = 0; symbol < SYMBOLS; symbol++) {
            if (lengths[symbol] != bits)
                continue;
            if (code + step > 1u << LONGEST)
                return 0;
            decoder->sorted[index++] = (uint16_t)symbol;
            if (bits <= FAST_BITS)
                for (uint32_t at = code >> (LONGEST - FAST_BITS), end = (code + step) >> (LONGEST - FAST_BITS); at < end; at++)
                    decoder->fast[at] = (uint16_t)(symbol << 4 | bits);
            code += step;
        }
    }
    decoder->first[LONGEST + 1] = code;
    return code == 1u << LONGEST;
}

static int huffman_decompress(struct decoder *decoder, const uint8_t *in, size_t length, uint8_t *out, size_t size)
{
    size_t at = 0, done = 0;

    while (done < size) {
        size_t block_end = done + BLOCK;
        uint32_t next;
        int extra = 16;

        if (length - at < TABLE + 4 || !read_table(decoder, in + at))
            return 0;
        at += TABLE;
        next = load16(in + at) << 16 | load16(in + at + 2);
        at += 4;
        while (done < block_end && done < size) {
            uint32_t symbol = decoder->fast[next >> (32 - FAST_BITS)], bits = symbol & 15, bit_count;
            size_t count, distance;

            if (bits) {
                symbol >>= 4;
            } else {
                uint32_t code = next >> (32 - LONGEST);

                for (bits = FAST_BITS + 1; bits < LONGEST && code >= decoder->first[bits + 1]; bits++)
                    ;
                symbol = decoder->sorted[decoder->index[bits] + ((code - decoder->first[bits]) >> (LONGEST - bits))];
            }
            next <<= bits;
            extra -= (int)bits;
            if (extra < 0) {
                if (length - at < 2)
                    return 0;
                next |= load16(in + at) << -extra;
                at += 2;
                extra += 16;
            }
            if (symbol < 256) {
                out[done++] = (uint8_t)symbol;
                continue;
            }
            count = symbol & 15;
            bit_count = (symbol - 256) >> 4;
            if (count == 15) {
                if (at == length)
                    return 0;
                count = in[at++];
                if (count == 255) {
                    if (length - at < 2)
                        return 0;
                    count = load16(in + at);
                    at += 2;
                    if (count < 15)
                        return 0;
                    count -= 15;
                }
                count += 15;
            }
            count += MIN_MATCH;
            distance = bit_count ? next >> (32 - bit_count) : 0;
            distance += (size_t)1 << bit_count;
            next <<= bit_count;
            extra -= (int)bit_count;
            if (extra < 0) {
                if (length - at < 2)
                    return 0;
                next |= load16(in + at) << -extra;
                at += 2;
                extra += 16;
            }
            if (distance > done || count > size - done)
                return 0;
            repeat(out + done, distance, count);
            done += count;
        }
    }
    return 1;
}

/* -- Python */

enum algorithm { LZNT1 = 1, LZ77 = 2, LZ77_HUFFMAN = 3 };

static int algorithm_of(PyObject *argument)
{
    long algorithm = PyLong_AsLong(argument);

    if (algorithm == -1 && PyErr_Occurred())
        return -1;
    if (algorithm < LZNT1 || algorithm > LZ77_HUFFMAN) {
        PyErr_SetString(PyExc_ValueError, "not an algorithm of MS-XCA");
        return -1;
    }
    return (int)algorithm;
}

static size_t pack(int algorithm, void *work, const uint8_t *in, size_t length, uint8_t *out, size_t room)
{
    if (algorithm == LZNT1)
        return lznt1_compress(work, in, length, out, room);
    if (algorithm == LZ77)
        return lz77_compress(work, in, length, out, room);
    return huffman_compress(work, in, length, out, room);
}

static int unpack(int algorithm, const uint8_t *in, size_t length, uint8_t *out, size_t size)
{
    struct decoder decoder;

    if (algorithm == LZNT1)
        return lznt1_decompress(in, length, out, size);
    if (algorithm == LZ77)
        return lz77_decompress(in, length, out, size);
    return huffman_decompress(&decoder, in, length, out, size);
}

/* compress(algorithm, data, room) -> bytes | None */
static PyObject *compress(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    PyObject *result = NULL;
    Py_buffer data;
    Py_ssize_t room;
    size_t used = 0;
    int algorithm;
    uint8_t *out;
    void *work;

    (void)module;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "three arguments, not %zd", count);
    algorithm = algorithm_of(args[0]);
    if (algorithm < 0)
        return NULL;
    room = PyLong_AsSsize_t(args[2]);
    if (room == -1 && PyErr_Occurred())
        return NULL;
    if (PyObject_GetBuffer(args[1], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    if (room <= 0 || !data.len || (uint64_t)data.len >= NONE) {
        PyBuffer_Release(&data);
        Py_RETURN_NONE;
    }
    work = malloc(algorithm == LZ77_HUFFMAN ? sizeof(struct huffman) : sizeof(struct finder));
    out = malloc((size_t)room);
    if (!work || !out) {
        PyErr_NoMemory();
    } else {
        if (data.len >= UNLOCKED_FROM) {
            Py_BEGIN_ALLOW_THREADS
            used = pack(algorithm, work, data.buf, (size_t)data.len, out, (size_t)room);
            Py_END_ALLOW_THREADS
        } else {
            used = pack(algorithm, work, data.buf, (size_t)data.len, out, (size_t)room);
        }
        result = used ? PyBytes_FromStringAndSize((const char *)out, (Py_ssize_t)used) : Py_NewRef(Py_None);
    }
    free(out);
    free(work);
    PyBuffer_Release(&data);
    return result;
}

/* decompress(algorithm, data, into) -> bool */
static PyObject *decompress(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Py_buffer data, into;
    int algorithm, right = 0;

    (void)module;
    if (count != 3)
        return PyErr_Format(PyExc_TypeError, "three arguments, not %zd", count);
    algorithm = algorithm_of(args[0]);
    if (algorithm < 0 || PyObject_GetBuffer(args[1], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    if (PyObject_GetBuffer(args[2], &into, PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&data);
        return NULL;
    }
    if (into.len >= UNLOCKED_FROM) {
        Py_BEGIN_ALLOW_THREADS
        right = unpack(algorithm, data.buf, (size_t)data.len, into.buf, (size_t)into.len);
        Py_END_ALLOW_THREADS
    } else {
        right = unpack(algorithm, data.buf, (size_t)data.len, into.buf, (size_t)into.len);
    }
    PyBuffer_Release(&into);
    PyBuffer_Release(&data);
    return PyBool_FromLong(right);
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

static PyMethodDef methods[] = {
    {"compress", FAST(compress), NULL},
    {"decompress", FAST(decompress), NULL},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    return PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
#ifdef Py_GIL_DISABLED
    /* Nothing of the module changes after fill(), and a call changes only what it has made. */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "smb3server.compression._xca",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__xca(void)
{
    return PyModuleDef_Init(&definition);
}
