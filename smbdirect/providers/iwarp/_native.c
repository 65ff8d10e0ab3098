/* The functions of frame_calls.py, in C: see there for what they mean. Tests hold one against the other.

   Every length and place that a caller or a peer gives is checked against the buffers before anything is read or
   written. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#define TAGGED_SIZE 16   /* bytes of a tagged header, with the length field */
#define UNTAGGED_SIZE 20 /* the same of an untagged header */
#define LENGTH_FIELD 2
#define CRC_FIELD 4
#define LONGEST_HEADER 64
#define MOST_ULPDU 0xFFFF
#define MOST_SEGMENTS 64
#define MOST_BYTES ((1 << 20) + (1 << 16)) /* of a chain */
#define MOST_FPDUS 256
#define MOST_SINK (1 << 30) /* of a Read */
#define READ_REQUEST_SIZE 46 /* ULPDU_Length of a Read Request */
#define READ_REQUEST_FPDU 52
#define READ_QUEUE 1
#define LAST 0x40
#define WHOLE 0x41       /* LAST, version 1, untagged */
#define LAST_TAGGED 0xC1 /* LAST, version 1, tagged */
#define RDMA_WRITE 0x40  /* RDMAP version 1 and its opcodes */
#define READ_REQUEST 0x41
#define RESPONSE 0x42
#define SEND 0x43
#define SEND_INVALIDATE 0x44

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

static void write_word(uint8_t *at, uint32_t value)
{
    for (int byte = 3; byte >= 0; byte--, value >>= 8)
        at[byte] = (uint8_t)value;
}

static Py_ssize_t padding(Py_ssize_t length)
{
    return -(length + LENGTH_FIELD) & 3;
}

static Py_ssize_t fpdu_size(Py_ssize_t length)
{
    return LENGTH_FIELD + length + padding(length) + CRC_FIELD;
}

/* What the functions know of Python: names of attributes, and how a record is made. */
struct known {
    PyObject *segments, *remote, *invalidate, *stag, *base, *total, *received, *new_record, *is_intact, *crc32c;
};

/* Read the attribute of an object as a number. */
static int number_of(PyObject *object, PyObject *name, uint64_t *value)
{
    PyObject *found = PyObject_GetAttr(object, name);

    if (found == NULL)
        return -1;
    *value = PyLong_AsUnsignedLongLong(found);
    Py_DECREF(found);
    return *value == (uint64_t)-1 && PyErr_Occurred() ? -1 : 0;
}

/* -- what arrives */

/* Whether the checksum of the FPDU in "stream" is right. Only if "crc" is set it has one. */
static int is_intact(const struct known *known, int crc, PyObject *stream, Py_ssize_t start, Py_ssize_t end)
{
    PyObject *found;
    int result;

    if (!crc)
        return 1;
    found = PyObject_CallFunction(known->is_intact, "Onn", stream, start, end);
    if (found == NULL)
        return -1;
    result = PyObject_IsTrue(found);
    Py_DECREF(found);
    return result;
}

/* Place "count" bytes in "memory", from "start" on. Return 0 if they do not fit, or if it has not "total" bytes; -1 of
   these means any number. */
static int place(PyObject *memory, Py_ssize_t start, const uint8_t *data, Py_ssize_t count, Py_ssize_t total)
{
    Py_buffer buffer;
    int fits;

    if (PyObject_GetBuffer(memory, &buffer, PyBUF_CONTIG))
        return -1;
    fits = start <= buffer.len && count <= buffer.len - start && (total < 0 || total == buffer.len);
    if (fits)
        memmove((uint8_t *)buffer.buf + start, data, (size_t)count);
    PyBuffer_Release(&buffer);
    return fits;
}

/* Place a Send of "count" bytes in the memory of one receive, and add the record that says so. */
static int add_send(const struct known *known, PyObject *made, PyObject *receives, PyObject *kind, const uint8_t *data,
                    Py_ssize_t count)
{
    PyObject *receive = PySequence_GetItem(receives, PyList_Size(made)), *fields, *record;
    int result;

    if (receive == NULL)
        return -1;
    if (!PyTuple_Check(receive) || PyTuple_Size(receive) != 2) {
        Py_DECREF(receive);
        PyErr_SetString(PyExc_ValueError, "a receive is memory and a context");
        return -1;
    }
    result = place(PyTuple_GetItem(receive, 0), 0, data, count, -1);
    if (result == 1) {
        fields = Py_BuildValue("OOOnO", PyTuple_GetItem(kind, 1), PyTuple_GetItem(kind, 2),
                               PyTuple_GetItem(receive, 1), count, Py_None);
        record = fields == NULL ? NULL
                                : PyObject_CallFunctionObjArgs(known->new_record, PyTuple_GetItem(kind, 0), fields,
                                                               NULL);
        Py_XDECREF(fields);
        if (record == NULL || PyList_Append(made, record))
            result = -1;
        Py_XDECREF(record);
    }
    Py_DECREF(receive);
    return result;
}

/* Place the payload of an FPDU if it is the next that a Read waits for, in its one segment. Return 2 if that was the
   last of the Read. */
static int answer(const struct known *known, PyObject *read, const uint8_t *header, Py_ssize_t count)
{
    uint64_t stag, base, total, received;
    PyObject *segments, *memory, *number;
    int result = 0, last = header[2] == LAST_TAGGED;

    if (number_of(read, known->stag, &stag) || number_of(read, known->base, &base) ||
        number_of(read, known->total, &total) || number_of(read, known->received, &received))
        return -1;
    if (stag != read_word(header + 4) || total > MOST_SINK || received > total || base > UINT64_MAX - received ||
        base + received != read_long(header + 8) || (uint64_t)count > total - received || (!count && total) ||
        last != (received + (uint64_t)count == total))
        return 0;
    segments = PyObject_GetAttr(read, known->segments);
    if (segments == NULL)
        return -1;
    if (PySequence_Size(segments) == 1) {
        memory = PySequence_GetItem(segments, 0);
        result = memory == NULL
                     ? -1
                     : place(memory, (Py_ssize_t)received, header + TAGGED_SIZE, count, (Py_ssize_t)total);
        Py_XDECREF(memory);
    }
    Py_DECREF(segments);
    if (result == 1) {
        number = PyLong_FromUnsignedLongLong(received + (uint64_t)count);
        if (number == NULL || PyObject_SetAttr(read, known->received, number))
            result = -1;
        Py_XDECREF(number);
    }
    return PyErr_Occurred() ? -1 : result + (result == 1 && last);
}

static PyObject *arrived(PyObject *module, PyObject *arguments)
{
    const struct known *known = PyModule_GetState(module);
    Py_buffer stream;
    Py_ssize_t start, tail, posted, begun, bytes = 0, responses = 0, parts = 0, bytes_read = 0;
    unsigned long msn;
    PyObject *view, *receives, *reads, *kind, *read, *made = NULL, *result = NULL;
    int crc;

    if (!PyArg_ParseTuple(arguments, "OnnkOOO!p:arrived", &view, &start, &tail, &msn, &receives, &reads,
                          &PyTuple_Type, &kind, &crc) ||
        PyObject_GetBuffer(view, &stream, PyBUF_SIMPLE))
        return NULL;
    if (start < 0 || tail < start || tail > stream.len || PyTuple_Size(kind) != 3) {
        PyErr_SetString(PyExc_ValueError, "outside of the stream");
        goto end;
    }
    posted = PySequence_Size(receives);
    begun = PySequence_Size(reads);
    if (posted < 0 || begun < 0 || (made = PyList_New(0)) == NULL)
        goto end;
    while (tail - start >= UNTAGGED_SIZE + CRC_FIELD) {
        const uint8_t *header = (const uint8_t *)stream.buf + start;
        Py_ssize_t length = header[0] << 8 | header[1], payload;
        Py_ssize_t size = fpdu_size(length);
        int placed;

        if (size > tail - start)
            break;
        if ((header[2] | LAST) == LAST_TAGGED && header[3] == RESPONSE) {
            payload = length + LENGTH_FIELD - TAGGED_SIZE;
            if (payload < 0 || responses >= begun)
                break;
            read = PySequence_GetItem(reads, responses);
            if (read == NULL)
                goto end;
            placed = is_intact(known, crc, view, start, start + size);
            if (placed == 1)
                placed = answer(known, read, header, payload);
            Py_DECREF(read);
            if (placed > 0) {
                responses += placed == 2;
                bytes_read += payload;
                parts++;
            }
        } else {
            payload = length + LENGTH_FIELD - UNTAGGED_SIZE;
            /* Queue, message number and offset are one word each. */
            if (header[2] != WHOLE || header[3] != SEND || read_word(header + 8) != 0 ||
                read_word(header + 12) != (uint32_t)msn || read_word(header + 16) != 0 || payload < 0 ||
                PyList_Size(made) >= posted)
                break;
            placed = is_intact(known, crc, view, start, start + size);
            if (placed == 1)
                placed = add_send(known, made, receives, kind, header + UNTAGGED_SIZE, payload);
            if (placed == 1) {
                bytes += payload;
                msn = (msn + 1) & 0xFFFFFFFF;
            }
        }
        if (placed < 0)
            goto end;
        if (!placed)
            break;
        start += size;
    }
    result = Py_BuildValue("nOnnnn", start, made, bytes, responses, parts, bytes_read);
end:
    Py_XDECREF(made);
    PyBuffer_Release(&stream);
    return result;
}

static PyObject *run(PyObject *module, PyObject *arguments)
{
    const struct known *known = PyModule_GetState(module);
    Py_buffer stream, memory;
    Py_ssize_t start, tail, position, limit, count = 0, bytes = 0;
    int whole, crc, operation, fine = 1;
    unsigned long token;
    unsigned long long expected;
    PyObject *view;

    if (!PyArg_ParseTuple(arguments, "Onnw*nnpikKp:run", &view, &start, &tail, &memory, &position, &limit, &whole,
                          &operation, &token, &expected, &crc))
        return NULL;
    if (PyObject_GetBuffer(view, &stream, PyBUF_SIMPLE)) {
        PyBuffer_Release(&memory);
        return NULL;
    }
    if (start < 0 || tail < start || tail > stream.len || position < 0 || position > memory.len ||
        limit > memory.len) {
        PyErr_SetString(PyExc_ValueError, "outside of the memory");
        fine = -1;
    }
    while (fine == 1 && tail - start >= TAGGED_SIZE + CRC_FIELD) {
        const uint8_t *header = (const uint8_t *)stream.buf + start;
        Py_ssize_t length = header[0] << 8 | header[1], payload = length + LENGTH_FIELD - TAGGED_SIZE;
        Py_ssize_t size = fpdu_size(length);

        if ((header[2] != (LAST_TAGGED & ~LAST) && !(whole && header[2] == LAST_TAGGED)) || header[3] != operation ||
            read_word(header + 4) != token || read_long(header + 8) != expected || payload <= 0 ||
            size > tail - start || payload > limit - position)
            break;
        fine = is_intact(known, crc, view, start, start + size);
        if (fine != 1)
            break;
        memmove((uint8_t *)memory.buf + position, header + TAGGED_SIZE, (size_t)payload);
        start += size;
        position += payload;
        expected += (unsigned long long)payload;
        bytes += payload;
        count++;
    }
    PyBuffer_Release(&stream);
    PyBuffer_Release(&memory);
    return fine < 0 ? NULL : Py_BuildValue("nnn", start, count, bytes);
}

static PyObject *follow(PyObject *module, PyObject *arguments)
{
    Py_buffer memory, between;
    Py_ssize_t start, payload, most, filled, before, gap, whole = 0;
    unsigned long long kind, offset;
    int descriptor, blocked = 0, failure = 0;
    const uint8_t *header;

    (void)module;
    if (!PyArg_ParseTuple(arguments, "iw*nnw*nKKn:follow", &descriptor, &memory, &start, &payload, &between, &most,
                          &kind, &offset, &filled))
        return NULL;
    gap = between.len;
    before = filled;
    if (payload <= 0 || gap < TAGGED_SIZE || start < 0 || most < 0 || filled < 0 ||
        payload > PY_SSIZE_T_MAX - gap || filled >= payload + gap || start > memory.len ||
        most > (memory.len - start) / payload) {
        PyErr_SetString(PyExc_ValueError, "outside of the memory");
        goto end;
    }
    header = (const uint8_t *)between.buf + gap - TAGGED_SIZE;
    Py_BEGIN_ALLOW_THREADS
    while (whole < most) {
        Py_ssize_t behind = filled > payload ? filled - payload : 0, count;
        struct iovec parts[2] = {
            {(uint8_t *)memory.buf + start + filled, filled < payload ? (size_t)(payload - filled) : 0},
            {(uint8_t *)between.buf + behind, (size_t)(gap - behind)},
        };

        count = readv(descriptor, parts + !parts[0].iov_len, 1 + !!parts[0].iov_len);
        if (count <= 0) {
            if (count < 0 && errno == EINTR)
                continue;
            failure = count < 0 ? errno : 0;
            break;
        }
        filled += count;
        if (filled < payload + gap)
            continue;
        offset += (unsigned long long)payload;
        if (read_long(header) != kind || read_long(header + 8) != offset)
            break;
        whole++;
        start += payload;
        filled = before = 0;
    }
    Py_END_ALLOW_THREADS
    blocked = failure == EAGAIN || failure == EWOULDBLOCK;
    if (failure && !blocked) {
        errno = failure;
        PyErr_SetFromErrno(PyExc_OSError);
    }
end:
    PyBuffer_Release(&between);
    PyBuffer_Release(&memory);
    return PyErr_Occurred() ? NULL : Py_BuildValue("nnO", whole, filled - before, blocked ? Py_True : Py_False);
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

/* One request: its headers, and its payload. */
struct message {
    uint8_t header[LONGEST_HEADER];
    Py_ssize_t size; /* of the headers */
    Py_buffer buffers[MOST_SEGMENTS];
    Py_ssize_t opened, total;
};

/* What is asked of "cut", and what it has found so far. */
struct chain {
    const struct known *known;
    PyObject *kinds, *reads;
    Py_ssize_t max_ulpdu, segment, joined, position, fpdus, begun, sends, bytes_send, bytes_write;
    unsigned long msn, read_msn;
    int crc;
};

/* Continue the checksum of an FPDU, unless there are none. */
static int add_to_crc(const struct chain *chain, uint32_t *value, const uint8_t *data, Py_ssize_t count)
{
    PyObject *view, *found;

    if (!chain->crc || !count)
        return 0;
    view = PyMemoryView_FromMemory((char *)data, count, PyBUF_READ);
    if (view == NULL)
        return -1;
    found = PyObject_CallFunction(chain->known->crc32c, "Ok", view, (unsigned long)*value);
    Py_DECREF(view);
    if (found == NULL)
        return -1;
    *value = (uint32_t)PyLong_AsUnsignedLong(found);
    Py_DECREF(found);
    return PyErr_Occurred() ? -1 : 0;
}

/* Add the FPDUs of a message. */
static int add_message(struct output *output, struct message *message, const struct chain *chain)
{
    Py_ssize_t size = message->size, room = chain->max_ulpdu + LENGTH_FIELD - size, left = message->total;
    Py_ssize_t index = 0, at = 0;
    uint8_t *header = message->header;
    uint64_t offset = read_long(header + 8); /* of a tagged message */

    do {
        Py_ssize_t payload = left < room ? left : room, length = size - LENGTH_FIELD + payload;
        uint8_t trailer[3 + CRC_FIELD] = {0};
        Py_ssize_t pad = padding(length);
        uint32_t crc = 0;

        left -= payload;
        header[0] = (uint8_t)(length >> 8);
        header[1] = (uint8_t)length;
        if (size == TAGGED_SIZE) {
            header[2] = left ? LAST_TAGGED & ~LAST : LAST_TAGGED;
            write_long(header + 8, offset);
            offset += (uint64_t)payload;
        }
        if (add_bytes(output, header, (size_t)size) || add_to_crc(chain, &crc, header, size))
            return -1;
        while (payload) {
            const Py_buffer *buffer = message->buffers + index;
            Py_ssize_t part = buffer->len - at;

            if (part > payload)
                part = payload;
            if (part && (add_part(output, buffer, at, part, chain->joined) ||
                         add_to_crc(chain, &crc, (const uint8_t *)buffer->buf + at, part)))
                return -1;
            payload -= part;
            at += part;
            if (at == buffer->len) {
                index++;
                at = 0;
            }
        }
        if (add_to_crc(chain, &crc, trailer, pad))
            return -1;
        for (int byte = 0; byte < CRC_FIELD; byte++)
            trailer[pad + byte] = (uint8_t)(crc >> 8 * byte);
        if (add_bytes(output, trailer, (size_t)(pad + CRC_FIELD)))
            return -1;
    } while (left);
    return 0;
}

/* Open the segments of a request. Return 0 if they are no plain bytes, too many, or more than "most" bytes. */
static int open_segments(struct message *message, PyObject *request, const struct known *known, Py_ssize_t most)
{
    PyObject *segments = PyObject_GetAttr(request, known->segments);
    Py_ssize_t number = segments == NULL ? -1 : PySequence_Size(segments);
    int result = number < 0 ? -1 : number <= MOST_SEGMENTS;

    while (result == 1 && message->opened < number) {
        Py_buffer *buffer = message->buffers + message->opened;
        PyObject *segment = PySequence_GetItem(segments, message->opened);

        if (segment == NULL || PyObject_GetBuffer(segment, buffer, PyBUF_CONTIG_RO | PyBUF_FORMAT))
            result = -1;
        else {
            message->opened++;
            if (buffer->ndim != 1 || buffer->itemsize != 1 || buffer->len > most - message->total)
                result = 0;
            else
                message->total += buffer->len;
        }
        Py_XDECREF(segment); /* the buffer keeps it */
    }
    Py_XDECREF(segments);
    return result;
}

/* Read the range of the peer's memory that a request names. Return 0 if it has no length of "length" bytes. */
static int remote_of(PyObject *request, const struct known *known, uint32_t *token, uint64_t *address, uint64_t length)
{
    PyObject *remote = PyObject_GetAttr(request, known->remote);
    unsigned long long found = 0, there = 0;
    int result = -1;

    if (remote == NULL)
        return -1;
    if (!PyTuple_Check(remote) || PyTuple_Size(remote) != 3)
        result = 0;
    else {
        found = PyLong_AsUnsignedLongLong(PyTuple_GetItem(remote, 0));
        *address = found == (unsigned long long)-1 && PyErr_Occurred()
                       ? 0
                       : PyLong_AsUnsignedLongLong(PyTuple_GetItem(remote, 1));
        if (!PyErr_Occurred())
            there = PyLong_AsUnsignedLongLong(PyTuple_GetItem(remote, 2));
        if (!PyErr_Occurred())
            result = found <= 0xFFFFFFFF && there == length;
    }
    *token = (uint32_t)found;
    Py_DECREF(remote);
    return result;
}

static int cut_write(struct chain *chain, PyObject *request, struct message *message)
{
    Py_ssize_t room = chain->max_ulpdu + LENGTH_FIELD - TAGGED_SIZE, more;
    uint32_t token;
    uint64_t address;
    int result = remote_of(request, chain->known, &token, &address, (uint64_t)message->total);

    if (result != 1 || room <= 0)
        return result < 0 ? -1 : 0;
    message->size = TAGGED_SIZE;
    message->header[3] = (PyObject *)Py_TYPE(request) == PyTuple_GetItem(chain->kinds, 3) ? RESPONSE : RDMA_WRITE;
    write_word(message->header + 4, token);
    write_long(message->header + 8, address);
    more = message->total ? (message->total - 1) / room : 0;
    chain->position += fpdu_size(chain->max_ulpdu) * more;
    chain->position += fpdu_size(message->total - more * room + TAGGED_SIZE - LENGTH_FIELD);
    chain->fpdus += more + 1;
    chain->bytes_write += message->total;
    return 1;
}

static int cut_send(struct chain *chain, PyObject *request, struct message *message)
{
    Py_ssize_t length = message->total + UNTAGGED_SIZE - LENGTH_FIELD;
    Py_ssize_t before = chain->segment ? chain->segment - chain->position % chain->segment : 0;
    unsigned long token = 0;
    PyObject *named = PyObject_GetAttr(request, chain->known->invalidate);

    if (named == NULL)
        return -1;
    message->header[3] = SEND;
    if (named != Py_None) {
        message->header[3] = SEND_INVALIDATE;
        token = PyLong_AsUnsignedLong(named);
    }
    Py_DECREF(named);
    if (PyErr_Occurred())
        return -1;
    if (length > chain->max_ulpdu || token > 0xFFFFFFFF || (before > TAGGED_SIZE && before < UNTAGGED_SIZE))
        return 0;
    message->size = UNTAGGED_SIZE;
    message->header[2] = WHOLE;
    write_word(message->header + 4, (uint32_t)token);
    write_word(message->header + 12, (uint32_t)(chain->msn + (unsigned long)chain->sends++));
    chain->position += fpdu_size(length);
    chain->fpdus++;
    chain->bytes_send += message->total;
    return 1;
}

static int cut_read(struct chain *chain, PyObject *request, struct message *message)
{
    const struct known *known = chain->known;
    uint64_t stag, base, total, address;
    uint32_t token;
    PyObject *read;
    int result;

    /* The sink: one segment of plain bytes that may be written. */
    if (message->opened != 1 || !PyMemoryView_Check(message->buffers[0].obj) || message->buffers[0].readonly ||
        !message->buffers[0].format || strcmp(message->buffers[0].format, "B") != 0)
        return 0;
    if (chain->segment && chain->position && chain->position + READ_REQUEST_FPDU > chain->segment)
        return 0;
    read = PySequence_GetItem(chain->reads, chain->begun);
    if (read == NULL)
        return -1;
    result = number_of(read, known->stag, &stag) || number_of(read, known->base, &base) ||
             number_of(read, known->total, &total);
    Py_DECREF(read);
    if (result)
        return -1;
    result = remote_of(request, known, &token, &address, (uint64_t)message->total);
    if (result != 1 || total != (uint64_t)message->total || stag > 0xFFFFFFFF || total > 0xFFFFFFFF ||
        READ_REQUEST_SIZE > chain->max_ulpdu)
        return result < 0 ? -1 : 0;
    PyBuffer_Release(message->buffers);
    message->opened = message->total = 0; /* a Read Request has no payload */
    message->size = READ_REQUEST_SIZE + LENGTH_FIELD;
    message->header[2] = WHOLE;
    message->header[3] = READ_REQUEST;
    write_word(message->header + 8, READ_QUEUE);
    write_word(message->header + 12, (uint32_t)(chain->read_msn + (unsigned long)chain->begun++));
    write_word(message->header + 20, (uint32_t)stag);
    write_long(message->header + 24, base);
    write_word(message->header + 32, (uint32_t)total);
    write_word(message->header + 36, token);
    write_long(message->header + 40, address);
    chain->position += READ_REQUEST_FPDU;
    chain->fpdus++;
    return 1;
}

/* Add the FPDUs of one request. Return 0 if it is not ordinary. */
static int cut_one(struct chain *chain, PyObject *request, struct output *output)
{
    PyObject *kind = (PyObject *)Py_TYPE(request);
    int (*cut_kind)(struct chain *, PyObject *, struct message *);
    struct message message;
    int result;

    memset(message.header, 0, sizeof message.header);
    message.opened = message.total = 0;
    if (kind == PyTuple_GetItem(chain->kinds, 0))
        cut_kind = cut_send;
    else if (kind == PyTuple_GetItem(chain->kinds, 1) || kind == PyTuple_GetItem(chain->kinds, 3))
        cut_kind = cut_write;
    else if (kind == PyTuple_GetItem(chain->kinds, 2))
        cut_kind = cut_read;
    else
        return 0;
    result = open_segments(&message, request, chain->known, cut_kind == cut_read ? MOST_SINK : MOST_BYTES);
    if (result == 1)
        result = cut_kind(chain, request, &message);
    if (result == 1 && (chain->position > MOST_BYTES || chain->fpdus > MOST_FPDUS))
        result = 0;
    if (result == 1 && add_message(output, &message, chain))
        result = -1;
    while (message.opened)
        PyBuffer_Release(message.buffers + --message.opened);
    return result;
}

static PyObject *cut(PyObject *module, PyObject *arguments)
{
    struct output output = {0};
    struct chain chain = {.known = PyModule_GetState(module)};
    PyObject *requests, *result = NULL;
    Py_ssize_t number;
    int fine = 1;

    if (!PyArg_ParseTuple(arguments, "O!OOnnkknp:cut", &PyTuple_Type, &chain.kinds, &requests, &chain.reads,
                          &chain.max_ulpdu, &chain.segment, &chain.msn, &chain.read_msn, &chain.joined,
                          &chain.crc))
        return NULL;
    if (chain.max_ulpdu < 0 || chain.max_ulpdu > MOST_ULPDU || chain.joined < 0 || chain.segment < 0 ||
        PyTuple_Size(chain.kinds) != 4) {
        PyErr_SetString(PyExc_ValueError, "no length of a ULPDU");
        return NULL;
    }
    number = PySequence_Size(requests);
    if (number < 0 || (output.list = PyList_New(0)) == NULL)
        return NULL;
    for (Py_ssize_t index = 0; fine == 1 && index < number; index++) {
        PyObject *request = PySequence_GetItem(requests, index);

        fine = request == NULL ? -1 : cut_one(&chain, request, &output);
        Py_XDECREF(request);
    }
    if (fine == 1 && end_run(&output))
        fine = -1;
    PyMem_Free(output.run);
    if (fine < 0 && PyErr_ExceptionMatches(PyExc_BufferError)) {
        PyErr_Clear(); /* memory that is not contiguous */
        fine = 0;
    }
    if (fine == 1 && number)
        result = Py_BuildValue("Onnnnn", output.list, chain.position, chain.fpdus, chain.sends, chain.bytes_send,
                               chain.bytes_write);
    else if (fine >= 0)
        result = Py_NewRef(Py_None);
    Py_DECREF(output.list);
    return result;
}

/* -- the module */

static PyObject *attribute_of(const char *name, const char *attribute)
{
    PyObject *module = PyImport_ImportModule(name), *found;

    if (module == NULL)
        return NULL;
    found = PyObject_GetAttrString(module, attribute);
    Py_DECREF(module);
    return found;
}

static int prepare(PyObject *module)
{
    struct known *known = PyModule_GetState(module);

    known->segments = PyUnicode_InternFromString("segments");
    known->remote = PyUnicode_InternFromString("remote");
    known->invalidate = PyUnicode_InternFromString("invalidate");
    known->stag = PyUnicode_InternFromString("stag");
    known->base = PyUnicode_InternFromString("base");
    known->total = PyUnicode_InternFromString("total");
    known->received = PyUnicode_InternFromString("received");
    known->new_record = PyObject_GetAttrString((PyObject *)&PyTuple_Type, "__new__");
    known->crc32c = attribute_of("crc32c", "crc32c");
    known->is_intact = attribute_of("smbdirect.providers.iwarp.mpa", "is_intact");
    return PyErr_Occurred() ? -1 : PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyMethodDef methods[] = {
    {"arrived", arrived, METH_VARARGS, NULL},
    {"run", run, METH_VARARGS, NULL},
    {"follow", follow, METH_VARARGS, NULL},
    {"cut", cut, METH_VARARGS, NULL},
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
    .m_size = sizeof(struct known),
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
