/* The functions of frame_calls.py, in C: see there for what they mean. Tests hold one against the other.

   Every length and place that a caller or a peer gives is checked against the buffers before anything is read or
   written. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define TAGGED_SIZE 16   /* bytes of a tagged header, with the length field */
#define UNTAGGED_SIZE 20 /* the same of an untagged header */
#define LENGTH_FIELD 2
#define CRC_FIELD 4
#define LONGEST_HEADER 64
#define MOST_ULPDU 0xFFFF
#define MOST_SEGMENTS 64
#define MOST_BYTES (1 << 24)
#define LAST 0x40
#define WHOLE 0x41 /* LAST, version 1, untagged */
#define SEND 0x43  /* RDMAP version 1, opcode Send */

static uint32_t read_word(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static uint64_t read_long(const uint8_t *at)
{
    return (uint64_t)read_word(at) << 32 | read_word(at + 4);
}

static void write_long(uint8_t *at, uint64_t value)
{
    for (int byte = 7; byte >= 0; byte--, value >>= 8)
        at[byte] = (uint8_t)value;
}

static Py_ssize_t padding(Py_ssize_t length)
{
    return -(length + LENGTH_FIELD) & 3;
}

/* -- what arrives */

static PyObject *sends(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    Py_buffer stream;
    Py_ssize_t start, tail, posted;
    unsigned long msn;
    PyObject *receives, *lengths = NULL, *result = NULL;

    if (!PyArg_ParseTuple(arguments, "y*nnkO:sends", &stream, &start, &tail, &msn, &receives))
        return NULL;
    if (start < 0 || tail < start || tail > stream.len) {
        PyErr_SetString(PyExc_ValueError, "outside of the stream");
        goto end;
    }
    posted = PySequence_Size(receives);
    if (posted < 0 || (lengths = PyList_New(0)) == NULL)
        goto end;
    for (Py_ssize_t number = 0; number < posted && tail - start >= UNTAGGED_SIZE + CRC_FIELD; number++) {
        const uint8_t *header = (const uint8_t *)stream.buf + start;
        Py_ssize_t length = header[0] << 8 | header[1], payload = length + LENGTH_FIELD - UNTAGGED_SIZE;
        Py_ssize_t size = LENGTH_FIELD + length + padding(length) + CRC_FIELD;
        PyObject *receive, *memory, *number_of_bytes;
        Py_buffer buffer;
        int fits, failed;

        /* Queue, message number and offset are one word each. */
        if (header[2] != WHOLE || header[3] != SEND || read_word(header + 8) != 0 ||
            read_word(header + 12) != (uint32_t)msn || read_word(header + 16) != 0 || payload < 0 ||
            size > tail - start)
            break;
        receive = PySequence_GetItem(receives, number);
        if (receive == NULL)
            goto end;
        memory = PySequence_GetItem(receive, 0);
        Py_DECREF(receive);
        if (memory == NULL)
            goto end;
        failed = PyObject_GetBuffer(memory, &buffer, PyBUF_CONTIG);
        Py_DECREF(memory);
        if (failed)
            goto end;
        fits = payload <= buffer.len;
        if (fits)
            memmove(buffer.buf, header + UNTAGGED_SIZE, (size_t)payload);
        PyBuffer_Release(&buffer);
        if (!fits)
            break;
        number_of_bytes = PyLong_FromSsize_t(payload);
        if (number_of_bytes == NULL)
            goto end;
        failed = PyList_Append(lengths, number_of_bytes);
        Py_DECREF(number_of_bytes);
        if (failed)
            goto end;
        start += size;
        msn = (msn + 1) & 0xFFFFFFFF;
    }
    result = Py_BuildValue("nO", start, lengths);
end:
    Py_XDECREF(lengths);
    PyBuffer_Release(&stream);
    return result;
}

/* -- what leaves */

/* The list that is made, and the bytes that will be its next item. */
struct output {
    PyObject *list;
    uint8_t *run;
    size_t used, size;
};

static int add_item(struct output *output, PyObject *item)
{
    int failed;

    if (item == NULL)
        return -1;
    failed = PyList_Append(output->list, item);
    Py_DECREF(item);
    return failed;
}

static int end_run(struct output *output)
{
    size_t used = output->used;

    output->used = 0;
    return used ? add_item(output, PyBytes_FromStringAndSize((const char *)output->run, (Py_ssize_t)used)) : 0;
}

static int add_bytes(struct output *output, const void *data, size_t count)
{
    if (output->size - output->used < count) {
        size_t size = (output->used + count) * 2;
        uint8_t *run = PyMem_Realloc(output->run, size);

        if (run == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        output->run = run;
        output->size = size;
    }
    if (count)
        memcpy(output->run + output->used, data, count);
    output->used += count;
    return 0;
}

/* Add "count" bytes from "at" of a segment: a view of them if they are more than "joined", else a copy. */
static int add_part(struct output *output, const Py_buffer *buffer, Py_ssize_t at, Py_ssize_t count, Py_ssize_t joined)
{
    PyObject *view, *part;

    if (count <= joined)
        return add_bytes(output, (const uint8_t *)buffer->buf + at, (size_t)count);
    if (end_run(output))
        return -1;
    view = PyMemoryView_FromObject(buffer->obj);
    if (view == NULL || (at == 0 && count == buffer->len))
        return add_item(output, view);
    part = PySequence_GetSlice(view, at, at + count);
    Py_DECREF(view);
    return add_item(output, part);
}

static void unusual(const char *text)
{
    PyErr_SetString(PyExc_ValueError, text);
}

/* Add the FPDUs of one message, whose segments have "total" bytes. */
static int add_message(struct output *output, const Py_buffer *given, const Py_buffer *buffers, Py_ssize_t total,
                       Py_ssize_t max_ulpdu, Py_ssize_t joined)
{
    Py_ssize_t size = given->len, room = max_ulpdu + LENGTH_FIELD - size, left = total, index = 0, at = 0;
    uint8_t header[LONGEST_HEADER];
    uint64_t offset;

    memcpy(header, given->buf, (size_t)size);
    offset = read_long(header + 8); /* of a tagged message */
    do {
        Py_ssize_t payload = left < room ? left : room, length = size - LENGTH_FIELD + payload;

        left -= payload;
        header[0] = (uint8_t)(length >> 8);
        header[1] = (uint8_t)length;
        if (size == TAGGED_SIZE) {
            header[2] = left ? header[2] & ~LAST : header[2] | LAST;
            write_long(header + 8, offset);
            offset += (uint64_t)payload;
        }
        if (add_bytes(output, header, (size_t)size))
            return -1;
        while (payload) {
            Py_ssize_t part = buffers[index].len - at;

            if (part > payload)
                part = payload;
            if (part && add_part(output, buffers + index, at, part, joined))
                return -1;
            payload -= part;
            at += part;
            if (at == buffers[index].len) {
                index++;
                at = 0;
            }
        }
        if (add_bytes(output, "\0\0\0\0\0\0\0", (size_t)(padding(length) + CRC_FIELD)))
            return -1;
    } while (left);
    return 0;
}

/* Check a message, and add its FPDUs. */
static int frame_one(struct output *output, PyObject *message, Py_ssize_t max_ulpdu, Py_ssize_t joined)
{
    Py_buffer header, buffers[MOST_SEGMENTS];
    PyObject *segments;
    Py_ssize_t total, most, number, found = 0, opened = 0;
    int result = -1;

    if (!PyTuple_Check(message)) {
        unusual("a message is a tuple");
        return -1;
    }
    if (!PyArg_ParseTuple(message, "y*On:frame", &header, &segments, &total))
        return -1;
    most = total;
    number = PySequence_Size(segments);
    if (number < 0)
        goto end;
    if (header.len == TAGGED_SIZE)
        most = MOST_BYTES;
    else if (header.len >= UNTAGGED_SIZE && header.len <= LONGEST_HEADER)
        most = max_ulpdu + LENGTH_FIELD - header.len;
    else
        most = -1;
    if (total < 0 || total > most || number > MOST_SEGMENTS || max_ulpdu + LENGTH_FIELD <= header.len) {
        unusual("no ordinary message");
        goto end;
    }
    for (; opened < number; opened++) {
        PyObject *segment = PySequence_GetItem(segments, opened);
        int failed = segment == NULL || PyObject_GetBuffer(segment, buffers + opened, PyBUF_CONTIG_RO);

        Py_XDECREF(segment); /* the buffer keeps it */
        if (failed)
            goto end;
        if (buffers[opened].ndim != 1 || buffers[opened].itemsize != 1 || buffers[opened].len > total - found) {
            opened++;
            unusual("other segments than the message says");
            goto end;
        }
        found += buffers[opened].len;
    }
    if (found != total)
        unusual("other segments than the message says");
    else
        result = add_message(output, &header, buffers, total, max_ulpdu, joined);
end:
    while (opened)
        PyBuffer_Release(buffers + --opened);
    PyBuffer_Release(&header);
    return result;
}

static PyObject *frame(PyObject *Py_UNUSED(module), PyObject *arguments)
{
    struct output output = {0};
    PyObject *messages;
    Py_ssize_t max_ulpdu, joined, number;
    int failed;

    if (!PyArg_ParseTuple(arguments, "Onn:frame", &messages, &max_ulpdu, &joined))
        return NULL;
    if (max_ulpdu < 0 || max_ulpdu > MOST_ULPDU || joined < 0) {
        unusual("no length of a ULPDU");
        return NULL;
    }
    number = PySequence_Size(messages);
    if (number < 0 || (output.list = PyList_New(0)) == NULL)
        return NULL;
    failed = 0;
    for (Py_ssize_t index = 0; !failed && index < number; index++) {
        PyObject *message = PySequence_GetItem(messages, index);

        failed = message == NULL || frame_one(&output, message, max_ulpdu, joined);
        Py_XDECREF(message);
    }
    failed = failed || end_run(&output);
    PyMem_Free(output.run);
    if (failed)
        Py_CLEAR(output.list);
    return output.list;
}

/* -- the module */

static int prepare(PyObject *module)
{
    return PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyMethodDef methods[] = {
    {"sends", sends, METH_VARARGS, NULL},
    {"frame", frame, METH_VARARGS, NULL},
    {NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
#ifdef Py_GIL_DISABLED
    /* A call changes only what it was given and what it has made. */
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
