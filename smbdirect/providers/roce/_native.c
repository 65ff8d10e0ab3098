/* The functions of batch_calls.py, in C: see there for what they mean. Tests hold one against the other.

   Every length and place that a caller gives is checked against the buffers before anything is read or written. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#define HEAD 8       /* bytes of a BTH in front of the word with the PSN */
#define HEADERS 12   /* bytes of a BTH */
#define ICRC 4
#define MIN_PACKET (HEADERS + ICRC)
#define PSN_MASK 0xFFFFFFu
#define ACK_REQUEST 0x80000000u
#define RESIDUE 0x2144DF1Cu
#define MOST_STATES 128   /* the most packets of a batch */
#define MOST_BYTES 0xFFFF /* of a batch */
#define CONTROL 128       /* bytes of ancillary data */
#define UDP_SEGMENT_OPTION 103
#define UDP_GRO_OPTION 104
#define CONGESTION 3 /* the congestion mark in a TOS */

/* -- CRC-32 */

#if defined(__x86_64__)
#include <immintrin.h>

static uint32_t table[256];
static int wide;

static int is_wide(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

static void fill_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;

        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        table[byte] = crc;
    }
    wide = is_wide();
}

static int is_fast(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

/* Multiply both halves of a state by the powers of x in "by", and add the next 16 bytes. */
#define FOLD(state, by, next)                                                                                          \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(state, by, 0x00), _mm_clmulepi64_si128(state, by, 0x11)), next)
#define LOAD(at) _mm_loadu_si128((const __m128i *)(at))
#define TARGET "pclmul,sse4.1"
#define WIDE_TARGET "pclmul,sse4.1,avx512f,vpclmulqdq"

/* Return the CRC register after the 64 bytes of four states and "length" more, a multiple of 16, by carry-less
   multiplication. The method and the constants (x to the power of the distance, modulo the polynomial, bits reflected)
   are those of Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009. */
__attribute__((target(TARGET), always_inline)) static inline uint32_t reduced(__m128i a, __m128i b, __m128i c,
                                                                              __m128i d, const uint8_t *data,
                                                                              size_t length)
{
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i polynomial = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i rest;

    a = FOLD(a, by_16, b);
    a = FOLD(a, by_16, c);
    a = FOLD(a, by_16, d);
    for (; length; data += 16, length -= 16)
        a = FOLD(a, by_16, LOAD(data));
    /* From 128 bits to 64, and by Barrett's reduction to 32. */
    a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_16, 0x10));
    a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, low), by_8, 0x00));
    rest = _mm_and_si128(_mm_clmulepi64_si128(_mm_and_si128(a, low), polynomial, 0x10), low);
    a = _mm_xor_si128(a, _mm_clmulepi64_si128(rest, polynomial, 0x00));
    return (uint32_t)_mm_extract_epi32(a, 1);
}

/* Return the CRC register after "length" bytes, at least 64 and a multiple of 16. */
__attribute__((target(TARGET))) static uint32_t folded(uint32_t crc, const uint8_t *data, size_t length)
{
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    __m128i a = _mm_xor_si128(LOAD(data), _mm_cvtsi32_si128((int)crc));
    __m128i b = LOAD(data + 16), c = LOAD(data + 32), d = LOAD(data + 48);

    for (data += 64, length -= 64; length >= 64; data += 64, length -= 64) {
        a = FOLD(a, by_64, LOAD(data));
        b = FOLD(b, by_64, LOAD(data + 16));
        c = FOLD(c, by_64, LOAD(data + 32));
        d = FOLD(d, by_64, LOAD(data + 48));
    }
    return reduced(a, b, c, d, data, length);
}

#define WIDE_FOLD(state, by, next)                                                                                     \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(state, by, 0x00), _mm512_clmulepi64_epi128(state, by, 0x11),    \
                              next, 0x96)
#define WIDE_LOAD(at) _mm512_loadu_si512((const void *)(at))

/* The same for at least 256 bytes, four times as many at once. */
__attribute__((target(WIDE_TARGET))) static uint32_t folded_wide(uint32_t crc, const uint8_t *data, size_t length)
{
    const __m512i by_256 = _mm512_set4_epi64(0x01322d1430, 0x011542778a, 0x01322d1430, 0x011542778a);
    const __m512i by_64 = _mm512_set4_epi64(0x01c6e41596, 0x0154442bd4, 0x01c6e41596, 0x0154442bd4);
    __m512i a = _mm512_xor_si512(WIDE_LOAD(data), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = WIDE_LOAD(data + 64), c = WIDE_LOAD(data + 128), d = WIDE_LOAD(data + 192);

    for (data += 256, length -= 256; length >= 256; data += 256, length -= 256) {
        a = WIDE_FOLD(a, by_256, WIDE_LOAD(data));
        b = WIDE_FOLD(b, by_256, WIDE_LOAD(data + 64));
        c = WIDE_FOLD(c, by_256, WIDE_LOAD(data + 128));
        d = WIDE_FOLD(d, by_256, WIDE_LOAD(data + 192));
    }
    a = WIDE_FOLD(a, by_64, b);
    a = WIDE_FOLD(a, by_64, c);
    a = WIDE_FOLD(a, by_64, d);
    for (; length >= 64; data += 64, length -= 64)
        a = WIDE_FOLD(a, by_64, WIDE_LOAD(data));
    return reduced(_mm512_extracti32x4_epi32(a, 0), _mm512_extracti32x4_epi32(a, 1), _mm512_extracti32x4_epi32(a, 2),
                   _mm512_extracti32x4_epi32(a, 3), data, length);
}

#else

static void fill_table(void)
{
}

static int is_fast(void)
{
    return 0;
}

#endif

/* Return what zlib.crc32 returns. */
static uint32_t crc32_of(uint32_t crc, const uint8_t *data, size_t length)
{
    crc = ~crc;
#if defined(__x86_64__)
    if (length >= 64) {
        size_t most = length & ~(size_t)15;

        crc = wide && most >= 256 ? folded_wide(crc, data, most) : folded(crc, data, most);
        data += most;
        length -= most;
    }
    for (; length; length--)
        crc = crc >> 8 ^ table[(crc ^ *data++) & 0xFF];
#endif
    return ~crc;
}

/* -- bytes */

static uint32_t read_word(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* Read item "index" of a tuple of CRCs. Return -1 with an exception if there is none. */
static int state_at(PyObject *states, Py_ssize_t index, uint32_t *state)
{
    PyObject *item = PyTuple_GetItem(states, index);
    unsigned long value;

    if (item == NULL)
        return -1;
    value = PyLong_AsUnsignedLong(item);
    if (value == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    *state = (uint32_t)value;
    return 0;
}

static PyObject *bad(const char *text)
{
    PyErr_SetString(PyExc_ValueError, text);
    return NULL;
}

/* -- what arrives */

static PyObject *similar(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer batch;
    Py_ssize_t size, number = 0;
    uint32_t words = 0, first = 0;

    if (!PyArg_ParseTuple(arguments, "y*n:similar", &batch, &size))
        return NULL;
    if (size < MIN_PACKET) {
        PyBuffer_Release(&batch);
        return bad("no packet is that short");
    }
    for (const uint8_t *data = batch.buf; batch.len / size > number; number++) {
        const uint8_t *packet = data + number * size;
        uint32_t word = read_word(packet + HEAD);

        if (!number)
            first = word;
        else if (memcmp(packet, data, HEAD) != 0 || ((word ^ (first + (uint32_t)number)) & PSN_MASK))
            break;
        words |= word;
    }
    PyBuffer_Release(&batch);
    return Py_BuildValue("nk", number, (unsigned long)words);
}

static PyObject *intact(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer packets;
    Py_ssize_t size, number, index;
    PyObject *states, *result = Py_True;

    if (!PyArg_ParseTuple(arguments, "y*nnO!n:intact", &packets, &size, &number, &PyTuple_Type, &states, &index))
        return NULL;
    if (size < MIN_PACKET || number < 0 || index < 0 || number > packets.len / size) {
        PyBuffer_Release(&packets);
        return bad("not so many packets");
    }
    if (index > PyTuple_Size(states) || number > PyTuple_Size(states) - index)
        result = Py_False;
    for (Py_ssize_t place = 0; result == Py_True && place < number; place++) {
        const uint8_t *packet = (const uint8_t *)packets.buf + place * size;
        uint32_t state;

        if (state_at(states, index + place, &state) < 0)
            result = NULL;
        else if (crc32_of(state, packet + HEAD, (size_t)(size - HEAD)) != RESIDUE)
            result = Py_False;
    }
    PyBuffer_Release(&packets);
    if (result != NULL)
        Py_INCREF(result);
    return result;
}

static PyObject *place(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer packets, memory;
    Py_ssize_t length, stride, number, position;
    int fits;

    if (!PyArg_ParseTuple(arguments, "y*nnnw*n:place", &packets, &length, &stride, &number, &memory, &position))
        return NULL;
    fits = length >= 0 && length <= packets.len - HEADERS && stride >= 1 && number >= 0 && position >= 0 &&
           position <= memory.len;
    /* Behind the first packet there is room for (number - 1) strides. */
    fits = fits && (number <= 1 || number - 1 <= (packets.len - HEADERS - length) / stride);
    fits = fits && (!length || number <= (memory.len - position) / length);
    for (Py_ssize_t index = 0; fits && index < number; index++)
        memmove((char *)memory.buf + position + index * length, (char *)packets.buf + index * stride + HEADERS,
                (size_t)length);
    PyBuffer_Release(&packets);
    PyBuffer_Release(&memory);
    if (!fits)
        return bad("outside of the memory");
    Py_RETURN_NONE;
}

/* -- sockets */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* Read an address as Python's sockets have it: host and port; for IPv6 flow information and scope, too. Return its
   length; 0 with an exception if it is none. */
static socklen_t read_address(PyObject *tuple, union address *address)
{
    const char *host;
    unsigned int port, flow = 0, scope = 0;
    int known;

    memset(address, 0, sizeof *address);
    if (!PyTuple_Check(tuple) || (PyTuple_Size(tuple) != 2 && PyTuple_Size(tuple) != 4)) {
        bad("no address");
        return 0;
    }
    if (!PyArg_ParseTuple(tuple, "sI|II:address", &host, &port, &flow, &scope))
        return 0;
    if (PyTuple_Size(tuple) == 2) {
        address->v4.sin_family = AF_INET;
        address->v4.sin_port = htons((uint16_t)port);
        known = inet_pton(AF_INET, host, &address->v4.sin_addr);
    } else {
        address->v6.sin6_family = AF_INET6;
        address->v6.sin6_port = htons((uint16_t)port);
        address->v6.sin6_flowinfo = htonl(flow);
        address->v6.sin6_scope_id = scope;
        known = inet_pton(AF_INET6, host, &address->v6.sin6_addr);
    }
    if (known != 1 || port > 0xFFFF) {
        bad("no address");
        return 0;
    }
    return address->any.sa_family == AF_INET ? sizeof address->v4 : sizeof address->v6;
}

/* Return an address as Python's sockets have it, or None. */
static PyObject *address_of(const union address *address, socklen_t length)
{
    char host[INET6_ADDRSTRLEN] = "";

    if (length >= sizeof address->v4 && address->any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof host);
        return Py_BuildValue("si", host, (int)ntohs(address->v4.sin_port));
    }
    if (length >= sizeof address->v6 && address->any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof host);
        return Py_BuildValue("siII", host, (int)ntohs(address->v6.sin6_port),
                             (unsigned int)ntohl(address->v6.sin6_flowinfo), (unsigned int)address->v6.sin6_scope_id);
    }
    Py_RETURN_NONE;
}

static int same_address(const union address *one, const union address *other, socklen_t length)
{
    if (one->any.sa_family != other->any.sa_family)
        return 0;
    if (one->any.sa_family == AF_INET)
        return length >= sizeof one->v4 && one->v4.sin_port == other->v4.sin_port &&
               one->v4.sin_addr.s_addr == other->v4.sin_addr.s_addr;
    return one->any.sa_family == AF_INET6 && length >= sizeof one->v6 && one->v6.sin6_port == other->v6.sin6_port &&
           one->v6.sin6_scope_id == other->v6.sin6_scope_id &&
           memcmp(&one->v6.sin6_addr, &other->v6.sin6_addr, sizeof one->v6.sin6_addr) == 0;
}

/* Read "number" CRCs from item "index" of a tuple on. Return -1 with an exception if there are not so many. */
static int read_states(PyObject *states, Py_ssize_t index, Py_ssize_t number, uint32_t *into)
{
    for (Py_ssize_t place = 0; place < number; place++)
        if (state_at(states, index + place, into + place) < 0)
            return -1;
    return 0;
}

/* -- what arrives in the middle of a message */

/* What follows of a message: see "Awaited" in batch_calls.py. */
struct awaited {
    Py_buffer head, memory;
    unsigned long psn;
    Py_ssize_t position, size, number;
    uint32_t states[MOST_STATES];
    Py_ssize_t known; /* how many states there are */
};

static void forget(struct awaited *awaited)
{
    PyBuffer_Release(&awaited->head);
    PyBuffer_Release(&awaited->memory);
}

/* Read what is awaited. Return -1 with an exception if it is not valid. Else the caller has to "forget" it. */
static int read_awaited(PyObject *tuple, struct awaited *awaited)
{
    PyObject *states;

    if (!PyTuple_Check(tuple)) {
        bad("nothing that can be awaited");
        return -1;
    }
    if (!PyArg_ParseTuple(tuple, "y*kw*nnnO!:awaited", &awaited->head, &awaited->psn, &awaited->memory,
                          &awaited->position, &awaited->size, &awaited->number, &PyTuple_Type, &states))
        return -1;
    awaited->known = PyTuple_Size(states);
    if (awaited->known > MOST_STATES)
        awaited->known = MOST_STATES;
    if (awaited->head.len != HEAD || awaited->size < 1 || awaited->size > MOST_BYTES || awaited->number < 0 ||
        awaited->position < 0 || awaited->position > awaited->memory.len ||
        awaited->number > (awaited->memory.len - awaited->position) / awaited->size) {
        bad("outside of the memory");
        goto failed;
    }
    if (!read_states(states, 0, awaited->known, awaited->states))
        return 0;
failed:
    forget(awaited);
    return -1;
}

/* Place the packets at the begin of "batch" that are awaited. Return how many there were, and await what is behind. */
static Py_ssize_t placed_of(const uint8_t *batch, Py_ssize_t length, Py_ssize_t size, struct awaited *awaited,
                            uint32_t *words)
{
    Py_ssize_t most = awaited->number, count = 0;

    if (size != awaited->size + MIN_PACKET)
        return 0;
    if (most > length / size)
        most = length / size;
    if (most > awaited->known)
        most = awaited->known;
    for (; count < most; count++, batch += size) {
        uint32_t word = read_word(batch + HEAD);

        if (memcmp(batch, awaited->head.buf, HEAD) != 0 || ((word ^ awaited->psn) & PSN_MASK) ||
            crc32_of(awaited->states[count], batch + HEAD, (size_t)(size - HEAD)) != RESIDUE)
            break;
        memcpy((uint8_t *)awaited->memory.buf + awaited->position, batch + HEADERS, (size_t)awaited->size);
        awaited->position += awaited->size;
        awaited->psn++;
        awaited->number--;
        *words |= word;
    }
    return count;
}

static PyObject *follow(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    struct awaited awaited;
    Py_buffer batch;
    Py_ssize_t size, count;
    PyObject *tuple, *result = NULL;
    uint32_t words = 0;

    if (!PyArg_ParseTuple(arguments, "y*nO:follow", &batch, &size, &tuple))
        return NULL;
    if (!read_awaited(tuple, &awaited)) {
        count = placed_of(batch.buf, batch.len, size, &awaited, &words);
        result = Py_BuildValue("nk", count, (unsigned long)words);
        forget(&awaited);
    }
    PyBuffer_Release(&batch);
    return result;
}

/* What one call of recvmsg(2) brings. */
struct message {
    union address sender;
    socklen_t sender_length;
    Py_ssize_t length, size; /* "length" is an error below 0 */
    int marked, cut;
    uint8_t local[16];
    Py_ssize_t local_length;
};

static void read_control(struct msghdr *header, struct message *message)
{
    for (struct cmsghdr *item = CMSG_FIRSTHDR(header); item != NULL; item = CMSG_NXTHDR(header, item)) {
        const uint8_t *data = CMSG_DATA(item);
        size_t length = item->cmsg_len - CMSG_LEN(0);
        int value;

        if (item->cmsg_level == IPPROTO_UDP && item->cmsg_type == UDP_GRO_OPTION && length >= sizeof value) {
            memcpy(&value, data, sizeof value);
            message->size = value;
        } else if (item->cmsg_level == IPPROTO_IP && item->cmsg_type == IP_TOS && length >= 1) {
            message->marked = (data[0] & 3) == CONGESTION;
        } else if (item->cmsg_level == IPPROTO_IPV6 && item->cmsg_type == IPV6_TCLASS && length >= sizeof value) {
            memcpy(&value, data, sizeof value);
            message->marked = (value & 3) == CONGESTION;
        } else if (item->cmsg_level == IPPROTO_IP && item->cmsg_type == IP_PKTINFO &&
                   length >= sizeof(struct in_pktinfo)) {
            message->local_length = sizeof(struct in_addr);
            memcpy(message->local, data + offsetof(struct in_pktinfo, ipi_addr), sizeof(struct in_addr));
        } else if (item->cmsg_level == IPPROTO_IPV6 && item->cmsg_type == IPV6_PKTINFO &&
                   length >= sizeof(struct in6_addr)) {
            message->local_length = sizeof(struct in6_addr);
            memcpy(message->local, data, sizeof(struct in6_addr));
        }
    }
}

static void receive(int descriptor, Py_buffer *body, struct message *message)
{
    union {
        struct cmsghdr aligned;
        char bytes[CONTROL];
    } control;
    struct iovec part = {body->buf, (size_t)body->len};
    struct msghdr header = {
        .msg_name = &message->sender,
        .msg_namelen = sizeof message->sender,
        .msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control,
    };
    ssize_t length = recvmsg(descriptor, &header, MSG_DONTWAIT);

    message->marked = 0;
    message->local_length = 0;
    message->length = length < 0 ? -(Py_ssize_t)errno : length;
    message->size = length;
    message->sender_length = length < 0 ? 0 : header.msg_namelen;
    message->cut = header.msg_flags & (MSG_TRUNC | MSG_CTRUNC);
    if (length >= 0)
        read_control(&header, message);
}

static PyObject *take(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    struct awaited awaited;
    struct message message = {.length = -EAGAIN};
    union address sender;
    Py_buffer body, local;
    Py_ssize_t budget, placed = 0, begin = 0;
    PyObject *socket, *from, *tuple, *result = NULL, *source, *own;
    uint32_t words = 0;
    int descriptor, follows;

    if (!PyArg_ParseTuple(arguments, "Ow*nOy*O:take", &socket, &body, &budget, &from, &local, &tuple))
        return NULL;
    follows = tuple != Py_None;
    descriptor = PyObject_AsFileDescriptor(socket);
    if (descriptor < 0 || (follows && (!read_address(from, &sender) || read_awaited(tuple, &awaited))))
        goto end;
    Py_BEGIN_ALLOW_THREADS
    while (budget > 0) {
        begin = 0;
        receive(descriptor, &body, &message);
        if (message.length < 0)
            break;
        budget -= message.length;
        if (follows && !message.marked && !message.cut &&
            same_address(&message.sender, &sender, message.sender_length) &&
            (!message.local_length ||
             (message.local_length == local.len && memcmp(message.local, local.buf, (size_t)local.len) == 0)))
            begin = placed_of(body.buf, message.length, message.size, &awaited, &words);
        placed += begin;
        if (!begin || begin * message.size < message.length)
            break;
        message.length = -EAGAIN;
    }
    Py_END_ALLOW_THREADS
    if (follows)
        forget(&awaited);
    if (message.length < 0) {
        begin = message.size = message.local_length = message.sender_length = 0;
        message.marked = 0;
    }
    if (message.local_length) {
        own = PyBytes_FromStringAndSize((const char *)message.local, message.local_length);
    } else {
        Py_INCREF(Py_None);
        own = Py_None;
    }
    source = address_of(&message.sender, message.sender_length);
    if (own != NULL && source != NULL)
        result = Py_BuildValue("nknnnOOO", placed, (unsigned long)words, begin, message.length, message.size,
                               message.marked ? Py_True : Py_False, own, source);
    Py_XDECREF(own);
    Py_XDECREF(source);
end:
    PyBuffer_Release(&body);
    PyBuffer_Release(&local);
    return result;
}

/* -- what leaves */

/* Write the packets that carry "number" pieces of "mtu" bytes to "packet". "place" is that of the first one, counted as
   "ask_at" is. */
static void write_packets(uint8_t *packet, const uint8_t *head, unsigned long psn, const uint8_t *payload,
                          Py_ssize_t mtu, Py_ssize_t number, const uint32_t *states, Py_ssize_t place,
                          Py_ssize_t ask_at, Py_ssize_t ask_every)
{
    for (Py_ssize_t end = place + number; place < end; place++, packet += mtu + MIN_PACKET, payload += mtu) {
        uint32_t word = (uint32_t)(psn + (unsigned long)place) & PSN_MASK, crc = *states++;

        if (ask_every && place >= ask_at && (place - ask_at) % ask_every == 0)
            word |= ACK_REQUEST;
        memcpy(packet, head, HEAD);
        for (int byte = 0; byte < 4; byte++)
            packet[HEAD + byte] = (uint8_t)(word >> (24 - 8 * byte));
        memcpy(packet + HEADERS, payload, (size_t)mtu);
        crc = crc32_of(crc, packet + HEAD, (size_t)(HEADERS - HEAD + mtu));
        for (int byte = 0; byte < 4; byte++)
            packet[HEADERS + mtu + byte] = (uint8_t)(crc >> (8 * byte));
    }
}

static PyObject *seal(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer head, memory;
    Py_ssize_t mtu, number, index, ask_at, ask_every;
    unsigned long psn;
    PyObject *states, *result = NULL;
    uint32_t known[MOST_STATES];

    if (!PyArg_ParseTuple(arguments, "y*ky*nnO!nnn:seal", &head, &psn, &memory, &mtu, &number, &PyTuple_Type, &states,
                          &index, &ask_at, &ask_every))
        return NULL;
    if (head.len != HEAD || mtu < 1 || mtu > MOST_BYTES || number < 0 || number > memory.len / mtu || index < 0 ||
        index > PyTuple_Size(states) || number > PyTuple_Size(states) - index || number > MOST_STATES || ask_at < 0 ||
        ask_every < 0) {
        bad("not so many packets");
        goto end;
    }
    if (read_states(states, index, number, known) < 0)
        goto end;
    result = PyBytes_FromStringAndSize(NULL, number * (mtu + MIN_PACKET));
    if (result != NULL)
        write_packets((uint8_t *)PyBytes_AsString(result), head.buf, psn, memory.buf, mtu, number, known, 0, ask_at,
                      ask_every);
end:
    PyBuffer_Release(&head);
    PyBuffer_Release(&memory);
    return result;
}

/* Ancillary data for sendmsg(2). */
struct control {
    union {
        struct cmsghdr aligned;
        char bytes[CONTROL];
    } room;
    size_t length;
};

static int add_control(struct control *control, int level, int kind, const void *data, size_t length)
{
    struct cmsghdr *item = (struct cmsghdr *)(control->room.bytes + control->length);

    if (length > CONTROL || CMSG_SPACE(length) > CONTROL - control->length)
        return -1;
    memset(item, 0, CMSG_SPACE(length));
    item->cmsg_level = level;
    item->cmsg_type = kind;
    item->cmsg_len = CMSG_LEN(length);
    memcpy(CMSG_DATA(item), data, length);
    control->length += CMSG_SPACE(length);
    return 0;
}

/* Read ancillary data as Python's sendmsg() takes it. Return -1 with an exception if it is not valid. */
static int read_ancillary(PyObject *list, struct control *control)
{
    for (Py_ssize_t index = 0; index < PyList_Size(list); index++) {
        PyObject *item = PyList_GetItem(list, index);
        Py_buffer data;
        int level, kind, failed;

        if (item == NULL || !PyTuple_Check(item)) {
            bad("no ancillary data");
            return -1;
        }
        if (!PyArg_ParseTuple(item, "iiy*:ancillary", &level, &kind, &data))
            return -1;
        failed = add_control(control, level, kind, data.buf, (size_t)data.len);
        PyBuffer_Release(&data);
        if (failed) {
            bad("too much ancillary data");
            return -1;
        }
    }
    return 0;
}

static PyObject *launch(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer head, memory;
    Py_ssize_t mtu, number, most, ask_at, ask_every, sent = 0, size;
    unsigned long psn;
    PyObject *socket, *ancillary, *to, *states, *result = NULL;
    uint32_t known[MOST_STATES];
    union address address;
    struct control control = {.length = 0};
    struct iovec part;
    struct msghdr header = {.msg_name = &address, .msg_iov = &part, .msg_iovlen = 1};
    uint16_t segment;
    int descriptor;

    if (!PyArg_ParseTuple(arguments, "OO!Oy*ky*nnnO!nn:launch", &socket, &PyList_Type, &ancillary, &to, &head, &psn,
                          &memory, &mtu, &number, &most, &PyTuple_Type, &states, &ask_at, &ask_every))
        return NULL;
    size = mtu + MIN_PACKET;
    if (head.len != HEAD || mtu < 1 || mtu > MOST_BYTES || number < 0 || number > memory.len / mtu || most < 1 ||
        most > MOST_STATES || most > PyTuple_Size(states) || most * size > MOST_BYTES || ask_at < 0 || ask_every < 0) {
        bad("not so many packets");
        goto end;
    }
    descriptor = PyObject_AsFileDescriptor(socket);
    header.msg_namelen = read_address(to, &address);
    if (descriptor < 0 || !header.msg_namelen || read_states(states, 0, most, known) < 0 ||
        read_ancillary(ancillary, &control) < 0)
        goto end;
    segment = (uint16_t)size;
    if (most > 1 && add_control(&control, IPPROTO_UDP, UDP_SEGMENT_OPTION, &segment, sizeof segment)) {
        bad("too much ancillary data");
        goto end;
    }
    header.msg_control = control.length ? &control.room : NULL;
    header.msg_controllen = control.length;
    part.iov_base = PyMem_Malloc((size_t)(most * size));
    if (part.iov_base == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    part.iov_len = (size_t)(most * size);
    Py_BEGIN_ALLOW_THREADS
    for (; number - sent >= most; sent += most) {
        write_packets(part.iov_base, head.buf, psn, (const uint8_t *)memory.buf + sent * mtu, mtu, most, known, sent,
                      ask_at, ask_every);
        if (sendmsg(descriptor, &header, MSG_DONTWAIT) < 0)
            break;
    }
    Py_END_ALLOW_THREADS
    PyMem_Free(part.iov_base);
    result = PyLong_FromSsize_t(sent);
end:
    PyBuffer_Release(&head);
    PyBuffer_Release(&memory);
    return result;
}

/* -- the module */

static int prepare(PyObject *module)
{
    if (!is_fast()) {
        PyErr_SetString(PyExc_ImportError, "this processor has no carry-less multiplication that is used here");
        return -1;
    }
    fill_table();
    return PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyMethodDef methods[] = {
    {"similar", similar, METH_VARARGS, NULL},
    {"intact", intact, METH_VARARGS, NULL},
    {"place", place, METH_VARARGS, NULL},
    {"seal", seal, METH_VARARGS, NULL},
    {"follow", follow, METH_VARARGS, NULL},
    {"take", take, METH_VARARGS, NULL},
    {"launch", launch, METH_VARARGS, NULL},
    {NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
#ifdef Py_GIL_DISABLED
    /* The table does not change after prepare(), and a call changes only what it was given and what it has made. */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
