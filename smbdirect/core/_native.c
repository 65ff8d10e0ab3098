/* The functions of short_calls.py, in C: see there for what they mean. Tests hold one against the other.

   Every length that a peer gives is checked against the message before anything is read. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

#define HEADER_SIZE 24 /* bytes of a Data Transfer header with its padding: DataOffset */
#define JOINED 1024    /* bytes of a message up to which its pieces are copied behind the header */
#define MOST_GRANTED 0xFFFF
#define COMPLETION_FIELDS 5

/* What the functions know of Python: names of attributes. */
struct known {
    PyObject *view, *transport, *buffer, *invalidated, *segments, *context, *invalidate, *signalled, *credits,
        *send_queue, *send_immediate, *role, *max_send_size, *max_send_segments, *send_credits, *receives_posted,
        *receive_credits, *send_credit_target, *receive_credit_target, *max_receive_size, *max_message_size,
        *max_fragmented_receive_size, *invalidated_token, *reassembler, *active, *keepalive_interval, *idle_deadline,
        *keepalive_requested;
};

static uint16_t read_short(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t read_word(const uint8_t *at)
{
    return (uint32_t)read_short(at) | (uint32_t)read_short(at + 2) << 16;
}

static void write_number(uint8_t *at, uint64_t value, int bytes)
{
    for (int byte = 0; byte < bytes; byte++, value >>= 8)
        at[byte] = (uint8_t)value;
}

/* Make an object of a class with slots, without a call of Python code, and set four of them. */
static PyObject *make(PyObject *kind, PyObject *const names[4], PyObject *const values[4])
{
    PyObject *made;

    if (!PyType_Check(kind)) {
        PyErr_SetString(PyExc_TypeError, "no class");
        return NULL;
    }
    made = PyType_GenericNew((PyTypeObject *)kind, NULL, NULL);
    for (int index = 0; made != NULL && index < 4; index++)
        if (PyObject_SetAttr(made, names[index], values[index]))
            Py_CLEAR(made);
    return made;
}

/* Read or set an attribute that is a number. */
static int number_of(PyObject *object, PyObject *name, Py_ssize_t *value)
{
    PyObject *found = PyObject_GetAttr(object, name);

    if (found == NULL)
        return -1;
    *value = PyLong_AsSsize_t(found);
    Py_DECREF(found);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static int set_number(PyObject *object, PyObject *name, Py_ssize_t value)
{
    PyObject *number = PyLong_FromSsize_t(value);
    int failed = number == NULL || PyObject_SetAttr(object, name, number);

    Py_XDECREF(number);
    return failed ? -1 : 0;
}

/* Whether an attribute is true, or -1. */
static int is_true(PyObject *object, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(object, name);
    int result = found == NULL ? -1 : PyObject_IsTrue(found);

    Py_XDECREF(found);
    return result;
}

/* -- what arrives */

/* What is asked of "accepted", and what it has found so far. */
struct arrival {
    const struct known *known;
    PyObject *connection, *kind, *make, *owner, *state;
    Py_ssize_t target, credits, longest, most, count, granted, size;
    int is_read; /* whether the numbers of the connection are there */
};

/* Read the numbers of the connection. It has no credits if the short way may not be taken. */
static int read_connection(struct arrival *arrival)
{
    const struct known *known = arrival->known;
    PyObject *connection = arrival->connection, *role, *token, *reassembler;
    Py_ssize_t fragmented;
    int other, active = -1;

    role = PyObject_GetAttr(connection, known->role);
    token = PyObject_GetAttr(connection, known->invalidated_token);
    reassembler = PyObject_GetAttr(connection, known->reassembler);
    other = role != PyTuple_GetItem(arrival->kind, 0) || token != Py_None;
    if (role != NULL && token != NULL && reassembler != NULL)
        active = is_true(reassembler, known->active);
    Py_XDECREF(role);
    Py_XDECREF(token);
    Py_XDECREF(reassembler);
    if (active < 0 || number_of(arrival->state, known->receive_credit_target, &arrival->target) ||
        number_of(arrival->state, known->receive_credits, &arrival->credits) ||
        number_of(connection, known->max_receive_size, &arrival->longest) ||
        number_of(connection, known->max_message_size, &arrival->most) ||
        number_of(connection, known->max_fragmented_receive_size, &fragmented))
        return -1;
    if (fragmented < arrival->most)
        arrival->most = fragmented;
    if (other || active)
        arrival->credits = 0;
    arrival->is_read = 1;
    return 0;
}

/* Add to a number of the connection's credits. */
static int add_number(struct arrival *arrival, PyObject *name, Py_ssize_t more)
{
    Py_ssize_t value;

    return number_of(arrival->state, name, &value) || set_number(arrival->state, name, value + more) ? -1 : 0;
}

/* Let the messages have their effect on the connection. */
static int count_messages(struct arrival *arrival, PyObject *now)
{
    const struct known *known = arrival->known;
    PyObject *interval, *deadline;
    int failed;

    if (add_number(arrival, known->receives_posted, -arrival->count) ||
        add_number(arrival, known->receive_credits, -arrival->count) ||
        add_number(arrival, known->send_credits, arrival->granted))
        return -1;
    interval = PyObject_GetAttr(arrival->connection, known->keepalive_interval);
    deadline = interval == NULL ? NULL : PyNumber_Add(now, interval);
    failed = deadline == NULL || PyObject_SetAttr(arrival->connection, known->idle_deadline, deadline) ||
             PyObject_SetAttr(arrival->connection, known->keepalive_requested, PyTuple_GetItem(arrival->kind, 1));
    Py_XDECREF(interval);
    Py_XDECREF(deadline);
    return failed ? -1 : 0;
}

/* Return the message in a receive's memory, or NULL without an error if it is none of the short way. */
static PyObject *message_of(struct arrival *arrival, PyObject *buffer, Py_ssize_t length)
{
    const struct known *known = arrival->known;
    PyObject *memory = PyObject_GetAttr(buffer, known->view), *begin, *end, *slice, *view, *message;
    Py_buffer bytes;
    uint64_t payload = 0;
    uint16_t granted = 0;

    if (memory == NULL)
        return NULL;
    if (PyObject_GetBuffer(memory, &bytes, PyBUF_SIMPLE)) {
        Py_DECREF(memory);
        return NULL;
    }
    if (length >= HEADER_SIZE && length <= arrival->longest && length <= bytes.len) {
        const uint8_t *header = bytes.buf;

        /* Flags, Reserved and RemainingDataLength are 0. */
        if (read_short(header) == arrival->target && !read_word(header + 4) && !read_word(header + 8) &&
            read_word(header + 12) == HEADER_SIZE)
            payload = read_word(header + 16);
        granted = read_short(header + 2);
    }
    PyBuffer_Release(&bytes);
    if (!payload || payload > (uint64_t)(length - HEADER_SIZE) || payload > (uint64_t)arrival->most) {
        Py_DECREF(memory);
        return NULL;
    }
    begin = PyLong_FromLong(HEADER_SIZE);
    end = PyLong_FromSsize_t(HEADER_SIZE + (Py_ssize_t)payload);
    slice = begin == NULL || end == NULL ? NULL : PySlice_New(begin, end, NULL);
    Py_XDECREF(begin);
    Py_XDECREF(end);
    view = slice == NULL ? NULL : PyObject_GetItem(memory, slice);
    Py_XDECREF(slice);
    Py_DECREF(memory);
    if (view == NULL)
        return NULL;
    PyObject *const names[4] = {known->transport, known->view, known->buffer, known->invalidated};
    PyObject *const values[4] = {arrival->owner, view, buffer, Py_None};
    message = make(arrival->make, names, values);
    Py_DECREF(view);
    if (message != NULL) {
        arrival->count++;
        arrival->granted += granted;
        arrival->size += (Py_ssize_t)payload;
    }
    return message;
}

/* Return what takes the place of one item, or NULL: without an error, the short way ends here. */
static PyObject *accept_one(struct arrival *arrival, PyObject *item)
{
    Py_ssize_t length;

    if (!PyTuple_Check(item) || PyTuple_Size(item) != COMPLETION_FIELDS) {
        PyErr_SetString(PyExc_ValueError, "no completion");
        return NULL;
    }
    if (PyTuple_GetItem(item, 0) != PyTuple_GetItem(arrival->kind, 2))
        return Py_NewRef(item);
    if (!arrival->is_read && read_connection(arrival))
        return NULL;
    if (PyTuple_GetItem(item, 1) != PyTuple_GetItem(arrival->kind, 3) || PyTuple_GetItem(item, 4) != Py_None ||
        arrival->count >= arrival->credits)
        return NULL;
    length = PyLong_AsSsize_t(PyTuple_GetItem(item, 3));
    if (length == -1 && PyErr_Occurred())
        return NULL;
    return message_of(arrival, PyTuple_GetItem(item, 2), length);
}

/* Return the items, with messages in the place of their receives. */
static PyObject *accept_all(struct arrival *arrival, PyObject *items)
{
    Py_ssize_t number = PySequence_Size(items);
    PyObject *found = number < 0 ? NULL : PyList_New(0);
    int ended = 0;

    for (Py_ssize_t index = 0; found != NULL && index < number; index++) {
        PyObject *item = PySequence_GetItem(items, index), *taken = NULL;

        if (item != NULL && !ended)
            taken = accept_one(arrival, item);
        ended = taken == NULL;
        if (item != NULL && taken == NULL && !PyErr_Occurred())
            taken = Py_NewRef(item);
        Py_XDECREF(item);
        if (taken == NULL || PyList_Append(found, taken))
            Py_CLEAR(found);
        Py_XDECREF(taken);
    }
    return found;
}

static PyObject *accepted(PyObject *module, PyObject *arguments)
{
    struct arrival arrival = {.known = PyModule_GetState(module)};
    PyObject *items, *now, *found, *result = NULL;

    if (!PyArg_ParseTuple(arguments, "OO!OOOO:accepted", &arrival.connection, &PyTuple_Type, &arrival.kind, &items,
                          &arrival.make, &arrival.owner, &now))
        return NULL;
    if (PyTuple_Size(arrival.kind) != 4) {
        PyErr_SetString(PyExc_ValueError, "a kind is two states, an operation and a status");
        return NULL;
    }
    arrival.state = PyObject_GetAttr(arrival.connection, arrival.known->credits);
    if (arrival.state == NULL)
        return NULL;
    found = accept_all(&arrival, items);
    if (found != NULL && (!arrival.count || !count_messages(&arrival, now)))
        result = Py_BuildValue("Onn", found, arrival.count, arrival.size);
    Py_XDECREF(found);
    Py_DECREF(arrival.state);
    return result;
}

/* -- what leaves */

/* Return the bytes of all segments, or -1. */
static Py_ssize_t length_of(PyObject *segments, Py_ssize_t number)
{
    Py_ssize_t length = 0;

    for (Py_ssize_t index = 0; index < number; index++) {
        PyObject *segment = PySequence_GetItem(segments, index);
        Py_ssize_t size = segment == NULL ? -1 : PyObject_Size(segment);

        Py_XDECREF(segment);
        if (size < 0)
            return -1;
        if (size > PY_SSIZE_T_MAX - length) {
            PyErr_NoMemory();
            return -1;
        }
        length += size;
    }
    return length;
}

/* Copy the segments behind the header. Return -1 if their lengths are not what they were. */
static int join(uint8_t *at, Py_ssize_t left, PyObject *segments, Py_ssize_t number)
{
    for (Py_ssize_t index = 0; index < number; index++) {
        PyObject *segment = PySequence_GetItem(segments, index);
        Py_buffer bytes;
        int failed = segment == NULL || PyObject_GetBuffer(segment, &bytes, PyBUF_SIMPLE);

        Py_XDECREF(segment); /* the buffer keeps it */
        if (failed)
            return -1;
        if (bytes.len > left) {
            PyErr_SetString(PyExc_ValueError, "no plain bytes");
            failed = 1;
        } else {
            memcpy(at, bytes.buf, (size_t)bytes.len);
            at += bytes.len;
            left -= bytes.len;
        }
        PyBuffer_Release(&bytes);
        if (failed)
            return -1;
    }
    if (left)
        PyErr_SetString(PyExc_ValueError, "no plain bytes");
    return left ? -1 : 0;
}

/* Return the list of buffers of one Send. */
static PyObject *buffers_of(const uint8_t *header, Py_ssize_t length, PyObject *segments, Py_ssize_t number)
{
    Py_ssize_t behind = length <= JOINED ? length : 0;
    PyObject *first = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + behind), *list = NULL;
    uint8_t *at = first == NULL ? NULL : (uint8_t *)PyBytes_AsString(first);

    if (at != NULL) {
        memcpy(at, header, HEADER_SIZE);
        if (!behind || !join(at + HEADER_SIZE, behind, segments, number))
            list = PyList_New(0);
    }
    if (list != NULL && PyList_Append(list, first))
        Py_CLEAR(list);
    Py_XDECREF(first);
    for (Py_ssize_t index = 0; list != NULL && !behind && index < number; index++) {
        PyObject *segment = PySequence_GetItem(segments, index);

        if (segment == NULL || PyList_Append(list, segment))
            Py_CLEAR(list);
        Py_XDECREF(segment);
    }
    return list;
}

/* What is asked of "whole", and the numbers of the connection. */
struct departure {
    const struct known *known;
    PyObject *connection, *kind, *segments, *state;
    Py_ssize_t credits, posted, promised, target, number, length, granted;
};

/* Return whether the message may go out at once as one Send, or -1. */
static int may_go(struct departure *message)
{
    const struct known *known = message->known;
    PyObject *role = PyObject_GetAttr(message->connection, known->role);
    int established = role == PyTuple_GetItem(message->kind, 0), waits;
    Py_ssize_t room, pieces;

    Py_XDECREF(role);
    if (role == NULL || number_of(message->state, known->send_credits, &message->credits))
        return -1;
    if (!established || message->credits <= 1)
        return 0;
    waits = is_true(message->connection, known->send_queue);
    if (!waits)
        waits = is_true(message->connection, known->send_immediate);
    if (waits)
        return waits < 0 ? -1 : 0;
    message->number = PySequence_Size(message->segments);
    message->length = message->number < 0 ? -1 : length_of(message->segments, message->number);
    if (message->length < 0 || number_of(message->connection, known->max_send_size, &room) ||
        number_of(message->connection, known->max_send_segments, &pieces))
        return -1;
    return message->length > 0 && message->length <= room - HEADER_SIZE && message->number < pieces;
}

/* Return the Send. */
static PyObject *send_of(struct departure *message, PyObject *invalidate)
{
    const struct known *known = message->known;
    uint8_t header[HEADER_SIZE] = {0};
    PyObject *buffers, *send;

    if (number_of(message->state, known->receives_posted, &message->posted) ||
        number_of(message->state, known->receive_credits, &message->promised) ||
        number_of(message->state, known->send_credit_target, &message->target))
        return NULL;
    message->granted = message->posted - message->promised;
    if (message->granted > MOST_GRANTED)
        message->granted = MOST_GRANTED;
    if (message->granted < 0 || message->target < 0 || message->target > MOST_GRANTED ||
        message->length > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "no number of the header");
        return NULL;
    }
    write_number(header, (uint64_t)message->target, 2);
    write_number(header + 2, (uint64_t)message->granted, 2);
    write_number(header + 12, HEADER_SIZE, 4);
    write_number(header + 16, (uint64_t)message->length, 4);
    buffers = buffers_of(header, message->length, message->segments, message->number);
    if (buffers == NULL)
        return NULL;
    PyObject *const names[4] = {known->segments, known->context, known->invalidate, known->signalled};
    PyObject *const values[4] = {buffers, Py_None, invalidate, Py_False};
    send = make(PyTuple_GetItem(message->kind, 1), names, values);
    Py_DECREF(buffers);
    return send;
}

static PyObject *whole(PyObject *module, PyObject *arguments)
{
    struct departure message = {.known = PyModule_GetState(module)};
    PyObject *invalidate, *on_done, *send, *result = NULL;
    int goes;

    if (!PyArg_ParseTuple(arguments, "OO!OOO:whole", &message.connection, &PyTuple_Type, &message.kind,
                          &message.segments, &invalidate, &on_done))
        return NULL;
    if (PyTuple_Size(message.kind) != 2) {
        PyErr_SetString(PyExc_ValueError, "a kind is a role and a class");
        return NULL;
    }
    message.state = PyObject_GetAttr(message.connection, message.known->credits);
    if (message.state == NULL)
        return NULL;
    goes = may_go(&message);
    if (goes == 1 && (send = send_of(&message, invalidate)) != NULL)
        result = Py_BuildValue("NOn", send, on_done, message.length);
    else if (!goes)
        result = Py_NewRef(Py_None);
    if (goes == 1 && result != NULL &&
        (set_number(message.state, message.known->send_credits, message.credits - 1) ||
         set_number(message.state, message.known->receive_credits, message.promised + message.granted)))
        Py_CLEAR(result);
    Py_DECREF(message.state);
    return result;
}

/* -- the module */

static int prepare(PyObject *module)
{
    struct known *known = PyModule_GetState(module);

    known->view = PyUnicode_InternFromString("view");
    known->transport = PyUnicode_InternFromString("transport");
    known->buffer = PyUnicode_InternFromString("buffer");
    known->invalidated = PyUnicode_InternFromString("invalidated");
    known->segments = PyUnicode_InternFromString("segments");
    known->context = PyUnicode_InternFromString("context");
    known->invalidate = PyUnicode_InternFromString("invalidate");
    known->signalled = PyUnicode_InternFromString("signalled");
    known->credits = PyUnicode_InternFromString("credits");
    known->send_queue = PyUnicode_InternFromString("send_queue");
    known->send_immediate = PyUnicode_InternFromString("send_immediate");
    known->role = PyUnicode_InternFromString("role");
    known->max_send_size = PyUnicode_InternFromString("max_send_size");
    known->max_send_segments = PyUnicode_InternFromString("max_send_segments");
    known->send_credits = PyUnicode_InternFromString("send_credits");
    known->receives_posted = PyUnicode_InternFromString("receives_posted");
    known->receive_credits = PyUnicode_InternFromString("receive_credits");
    known->send_credit_target = PyUnicode_InternFromString("send_credit_target");
    known->receive_credit_target = PyUnicode_InternFromString("receive_credit_target");
    known->max_receive_size = PyUnicode_InternFromString("max_receive_size");
    known->max_message_size = PyUnicode_InternFromString("max_message_size");
    known->max_fragmented_receive_size = PyUnicode_InternFromString("max_fragmented_receive_size");
    known->invalidated_token = PyUnicode_InternFromString("invalidated_token");
    known->reassembler = PyUnicode_InternFromString("reassembler");
    known->active = PyUnicode_InternFromString("active");
    known->keepalive_interval = PyUnicode_InternFromString("keepalive_interval");
    known->idle_deadline = PyUnicode_InternFromString("idle_deadline");
    known->keepalive_requested = PyUnicode_InternFromString("keepalive_requested");
    return PyErr_Occurred() ? -1 : PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyMethodDef methods[] = {
    {"accepted", accepted, METH_VARARGS, NULL},
    {"whole", whole, METH_VARARGS, NULL},
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
