/* The functions of batch_calls.py, in C: see there for what they mean. Tests hold one against the other.

   Every length and place that a caller gives is checked against the buffers before anything is read or written. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define HEAD 8       /* bytes of a BTH in front of the word with the PSN */
#define HEADERS 12   /* bytes of a BTH */
#define ICRC 4
#define MIN_PACKET (HEADERS + ICRC)
#define PSN_MASK 0xFFFFFFu
#define ACK_REQUEST 0x80000000u
#define RESIDUE 0x2144DF1Cu

/* -- CRC-32 */

#if defined(__x86_64__)
#include <immintrin.h>

static uint32_t table[256];

static void fill_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;

        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
        table[byte] = crc;
    }
}

static int is_fast(void)
{
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

/* Multiply both halves of a state by the powers of x in "by", and add the next 16 bytes. */
#define FOLD(state, by, next)                                                                                          \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(state, by, 0x00), _mm_clmulepi64_si128(state, by, 0x11)), next)
#define LOAD(at) _mm_loadu_si128((const __m128i *)(at))

/* Return the CRC register after "length" bytes, at least 64 and a multiple of 16, by carry-less multiplication. The
   method and the constants (x to the power of the distance, modulo the polynomial, bits reflected) are those of Gopal et
   al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t folded(uint32_t crc, const uint8_t *data, size_t length)
{
    const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i polynomial = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i a = _mm_xor_si128(LOAD(data), _mm_cvtsi32_si128((int)crc));
    __m128i b = LOAD(data + 16), c = LOAD(data + 32), d = LOAD(data + 48), rest;

    for (data += 64, length -= 64; length >= 64; data += 64, length -= 64) {
        a = FOLD(a, by_64, LOAD(data));
        b = FOLD(b, by_64, LOAD(data + 16));
        c = FOLD(c, by_64, LOAD(data + 32));
        d = FOLD(d, by_64, LOAD(data + 48));
    }
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

        crc = folded(crc, data, most);
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

/* -- what leaves */

static PyObject *seal(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer head, memory;
    Py_ssize_t mtu, number, index, ask_at, ask_every, size;
    unsigned long psn;
    PyObject *states, *result = NULL;
    const uint8_t *payload;
    uint8_t *packet;

    if (!PyArg_ParseTuple(arguments, "y*ky*nnO!nnn:seal", &head, &psn, &memory, &mtu, &number, &PyTuple_Type, &states,
                          &index, &ask_at, &ask_every))
        return NULL;
    size = mtu + MIN_PACKET;
    if (head.len != HEAD || mtu < 1 || mtu > 0xFFFF || number < 0 || number > memory.len / mtu || index < 0 ||
        index > PyTuple_Size(states) || number > PyTuple_Size(states) - index || ask_at < 0 || ask_every < 0) {
        bad("not so many packets");
        goto end;
    }
    result = PyBytes_FromStringAndSize(NULL, number * size);
    if (result == NULL)
        goto end;
    packet = (uint8_t *)PyBytes_AsString(result);
    payload = memory.buf;
    for (Py_ssize_t place = 0; place < number; place++, packet += size, payload += mtu) {
        uint32_t word = (uint32_t)(psn + (unsigned long)place) & PSN_MASK, crc;

        if (state_at(states, index + place, &crc) < 0) {
            Py_CLEAR(result);
            goto end;
        }
        if (ask_every && place >= ask_at && (place - ask_at) % ask_every == 0)
            word |= ACK_REQUEST;
        memcpy(packet, head.buf, HEAD);
        for (int byte = 0; byte < 4; byte++)
            packet[HEAD + byte] = (uint8_t)(word >> (24 - 8 * byte));
        memcpy(packet + HEADERS, payload, (size_t)mtu);
        crc = crc32_of(crc, packet + HEAD, (size_t)(HEADERS - HEAD + mtu));
        for (int byte = 0; byte < 4; byte++)
            packet[HEADERS + mtu + byte] = (uint8_t)(crc >> (8 * byte));
    }
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
