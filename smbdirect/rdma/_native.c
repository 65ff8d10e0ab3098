/* The functions of chain_calls.py, in C: see there for what they mean. Tests hold one against the other. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* What the functions know of Python: names of attributes, and how a record is made. */
struct known {
    PyObject *segments, *remote, *context, *signalled, *new_record;
};

/* Make a record of a NamedTuple's class. Takes the reference to its fields, which may be NULL. */
static PyObject *record_of(const struct known *known, PyObject *kind, PyObject *fields)
{
    PyObject *record = fields == NULL ? NULL : PyObject_CallFunctionObjArgs(known->new_record, kind, fields, NULL);

    Py_XDECREF(fields);
    return record;
}

/* -- transfers */

/* Return the bytes of all segments: 0 if they are too many, -1 with an error. */
static Py_ssize_t length_of(PyObject *segments, Py_ssize_t number, Py_ssize_t most)
{
    Py_ssize_t length = 0;

    for (Py_ssize_t index = 0; index < number; index++) {
        PyObject *segment = PySequence_GetItem(segments, index);
        Py_ssize_t size = segment == NULL ? -1 : PyObject_Size(segment);

        Py_XDECREF(segment);
        if (size < 0)
            return -1;
        if (size > most - length)
            return 0;
        length += size;
    }
    return length;
}

/* Return the remote segment of a transfer of "total" bytes: NULL without an error if its descriptor is too short. */
static PyObject *remote_of(const struct known *known, PyObject *remote, PyObject *kind, Py_ssize_t total)
{
    PyObject *descriptor = PySequence_GetItem(remote, 0), *segment = NULL;
    unsigned long long address, length;

    if (descriptor == NULL)
        return NULL;
    if (!PyTuple_Check(descriptor) || PyTuple_Size(descriptor) != 3)
        PyErr_SetString(PyExc_ValueError, "a descriptor has an address, a token and a length");
    else {
        address = PyLong_AsUnsignedLongLong(PyTuple_GetItem(descriptor, 0));
        length = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(PyTuple_GetItem(descriptor, 2));
        /* What ends with the address space has the end 0. */
        if (!PyErr_Occurred() && (unsigned long long)total <= length && (!address || length <= -address))
            segment = record_of(known, kind,
                                Py_BuildValue("OOn", PyTuple_GetItem(descriptor, 1), PyTuple_GetItem(descriptor, 0),
                                              total));
        else if (PyErr_ExceptionMatches(PyExc_OverflowError))
            PyErr_Clear(); /* no number that a descriptor can have: the general path says so */
    }
    Py_DECREF(descriptor);
    return segment;
}

/* Append a work request of the kind to what waits. */
static int add_request(const struct known *known, PyObject *waiting, PyObject *kind, PyObject *local,
                       PyObject *segment, PyObject *on_done)
{
    PyObject *type = PyTuple_GetItem(kind, 0), *request, *entry;
    int failed;

    if (!PyType_Check(type)) {
        PyErr_SetString(PyExc_TypeError, "no class");
        return -1;
    }
    request = PyType_GenericNew((PyTypeObject *)type, NULL, NULL);
    if (request == NULL || PyObject_SetAttr(request, known->segments, local) ||
        PyObject_SetAttr(request, known->remote, segment) || PyObject_SetAttr(request, known->context, Py_None) ||
        PyObject_SetAttr(request, known->signalled, PyTuple_GetItem(kind, 2))) {
        Py_XDECREF(request);
        return -1;
    }
    entry = Py_BuildValue("NOi", request, on_done, 0);
    failed = entry == NULL || PyList_Append(waiting, entry);
    Py_XDECREF(entry);
    return failed ? -1 : 0;
}

static PyObject *transfer(PyObject *module, PyObject *arguments)
{
    const struct known *known = PyModule_GetState(module);
    PyObject *waiting, *kind, *remote, *local, *on_done, *segment;
    Py_ssize_t most, pieces, total, number, descriptors;
    int failed;

    if (!PyArg_ParseTuple(arguments, "O!O!OOOnn:transfer", &PyList_Type, &waiting, &PyTuple_Type, &kind, &remote,
                          &local, &on_done, &most, &pieces))
        return NULL;
    number = PySequence_Size(local);
    descriptors = PySequence_Size(remote);
    if (PyTuple_Size(kind) != 3 && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a kind has a request, a segment and whether it is signalled");
    if (PyErr_Occurred())
        return NULL;
    if (descriptors != 1 || number > pieces)
        return PyLong_FromLong(0);
    total = length_of(local, number, most < UINT32_MAX ? most : UINT32_MAX);
    if (total <= 0)
        return total ? NULL : PyLong_FromLong(0);
    segment = remote_of(known, remote, PyTuple_GetItem(kind, 1), total);
    if (segment == NULL)
        return PyErr_Occurred() ? NULL : PyLong_FromLong(0);
    failed = add_request(known, waiting, kind, local, segment, on_done);
    Py_DECREF(segment);
    return failed ? NULL : PyLong_FromSsize_t(total);
}

/* -- chains */

/* The group that is being collected. */
struct group {
    const struct known *known;
    PyObject *kinds, *endings; /* NULL: there is none */
    Py_ssize_t size, length, most;
};

/* Make a request the signalled one that ends the group. "fetched" is what is called for it alone, or None. */
static int end_group(struct group *group, PyObject *request, PyObject *fetched)
{
    PyObject *endings = group->endings == NULL ? PyTuple_New(0) : group->endings, *record;
    int failed;

    group->endings = NULL;
    record = endings == NULL ? NULL
                             : record_of(group->known, PyTuple_GetItem(group->kinds, 2),
                                         Py_BuildValue("nNnO", group->size, endings, group->length, fetched));
    failed = record == NULL || PyObject_SetAttr(request, group->known->context, record) ||
             PyObject_SetAttr(request, group->known->signalled, Py_True);
    Py_XDECREF(record);
    group->size = group->length = 0;
    return failed ? -1 : 0;
}

/* Add one entry of what waits to the group. */
static int add_entry(struct group *group, PyObject *entry, int is_last)
{
    PyObject *request, *on_done, *type;
    Py_ssize_t length;

    if (!PyTuple_Check(entry) || PyTuple_Size(entry) != 3) {
        PyErr_SetString(PyExc_ValueError, "an entry is a request, what is called, and a length");
        return -1;
    }
    request = PyTuple_GetItem(entry, 0);
    on_done = PyTuple_GetItem(entry, 1);
    length = PyLong_AsSsize_t(PyTuple_GetItem(entry, 2));
    if (length == -1 && PyErr_Occurred())
        return -1;
    group->size++;
    group->length += length;
    type = (PyObject *)Py_TYPE(request);
    if (type == PyTuple_GetItem(group->kinds, 0) || type == PyTuple_GetItem(group->kinds, 1)) {
        if (on_done != Py_None) {
            if (group->endings == NULL && (group->endings = PyList_New(0)) == NULL)
                return -1;
            if (PyList_Append(group->endings, on_done))
                return -1;
        }
        if (group->size < group->most && (!is_last || group->endings == NULL))
            return 0;
        on_done = Py_None;
    }
    return end_group(group, request, on_done);
}

static PyObject *chain(PyObject *module, PyObject *arguments)
{
    struct group group = {.known = PyModule_GetState(module)};
    PyObject *waiting, *found, *result = NULL;
    Py_ssize_t count, index;

    if (!PyArg_ParseTuple(arguments, "O!nnnO!:chain", &PyList_Type, &waiting, &count, &group.size, &group.most,
                          &PyTuple_Type, &group.kinds))
        return NULL;
    if (PyTuple_Size(group.kinds) != 3 || count < 0 || count > PyList_Size(waiting)) {
        PyErr_SetString(PyExc_ValueError, "no part of what waits");
        return NULL;
    }
    if ((found = PyList_New(0)) == NULL)
        return NULL;
    for (index = 0; index < count; index++) {
        PyObject *entry = PySequence_GetItem(waiting, index);
        int failed = entry == NULL || add_entry(&group, entry, index + 1 == count) ||
                     PyList_Append(found, PyTuple_GetItem(entry, 0));

        Py_XDECREF(entry);
        if (failed)
            goto end;
    }
    if (!PyList_SetSlice(waiting, 0, count, NULL))
        result = Py_BuildValue("Onn", found, group.size, group.length);
end:
    Py_XDECREF(group.endings);
    Py_DECREF(found);
    return result;
}

/* -- the module */

static int prepare(PyObject *module)
{
    struct known *known = PyModule_GetState(module);

    known->segments = PyUnicode_InternFromString("segments");
    known->remote = PyUnicode_InternFromString("remote");
    known->context = PyUnicode_InternFromString("context");
    known->signalled = PyUnicode_InternFromString("signalled");
    known->new_record = PyObject_GetAttrString((PyObject *)&PyTuple_Type, "__new__");
    return PyErr_Occurred() ? -1 : PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static PyMethodDef methods[] = {
    {"chain", chain, METH_VARARGS, NULL},
    {"transfer", transfer, METH_VARARGS, NULL},
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
