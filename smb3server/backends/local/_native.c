/* The functions of file_calls.py, in C: see there for what they mean. Tests hold one against the other.

   Each function makes its system calls without the interpreter's lock. Whatever they need of Python's objects is read
   before, and stays as it is meanwhile: bytes do not change, and the caller's references keep them. */

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Calls added after Linux 5.0 have the same number on all architectures. */
#define NUMBER_OF_OPENAT2 437
#define NUMBER_OF_GETXATTRAT 464

#define WANTED (STATX_BASIC_STATS | STATX_BTIME)
#define XATTR_ROOM 4096 /* larger values are read a second time */
#define TRIES 64        /* of openat2, while renames race with a ".." */

struct how {
    uint64_t flags, mode, resolve;
};

struct value {
    uint64_t buffer;
    uint32_t size, flags;
};

/* The type of the results: a NamedTuple of Python, imported when this module is. */
struct state {
    PyTypeObject *statx_type;
    int have_getxattrat;
};

static struct state *state_of(PyObject *module)
{
    return (struct state *)PyModule_GetState(module);
}

/* -- arguments and errors */

static int number_of(PyObject *argument, int *number)
{
    long value = PyLong_AsLong(argument);

    if (value == -1 && PyErr_Occurred())
        return -1;
    if (value < INT32_MIN || value > INT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "no descriptor");
        return -1;
    }
    *number = (int)value;
    return 0;
}

static int expect(Py_ssize_t given, Py_ssize_t least, Py_ssize_t most)
{
    if (given >= least && given <= most)
        return 0;
    PyErr_Format(PyExc_TypeError, "%zd arguments given", given);
    return -1;
}

/* Return the text of a bytes object without NUL bytes, or NULL with an exception. */
static const char *text_of(PyObject *argument)
{
    char *text;

    /* Without a place for the length, PyBytes_AsStringAndSize raises ValueError for NUL bytes. */
    return PyBytes_AsStringAndSize(argument, &text, NULL) ? NULL : text;
}

/* Raise OSError for errno, with the name of a file if it is known. */
static PyObject *failed(const char *name)
{
    int code = errno;
    PyObject *filename;

    if (name == NULL)
        return PyErr_SetFromErrno(PyExc_OSError);
    filename = PyUnicode_DecodeFSDefault(name);
    if (filename == NULL)
        return NULL;
    errno = code;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, filename);
    Py_DECREF(filename);
    return NULL;
}

/* -- statx */

static PyObject *nanoseconds(const struct statx_timestamp *time)
{
    return PyLong_FromLongLong((long long)time->tv_sec * 1000000000LL + time->tv_nsec);
}

static PyObject *new_statx(PyTypeObject *type, const struct statx *found)
{
    PyObject *fields[] = {
        PyLong_FromLong(found->stx_mode),
        PyLong_FromUnsignedLongLong(found->stx_ino),
        PyLong_FromUnsignedLongLong((uint64_t)found->stx_dev_major << 20 | found->stx_dev_minor),
        PyLong_FromUnsignedLong(found->stx_nlink),
        PyLong_FromUnsignedLong(found->stx_uid),
        PyLong_FromUnsignedLong(found->stx_gid),
        PyLong_FromUnsignedLongLong(found->stx_size),
        PyLong_FromUnsignedLongLong(found->stx_blocks),
        PyLong_FromUnsignedLong(found->stx_blksize),
        nanoseconds(&found->stx_atime),
        found->stx_mask & STATX_BTIME ? nanoseconds(&found->stx_btime) : PyLong_FromLong(-1),
        nanoseconds(&found->stx_ctime),
        nanoseconds(&found->stx_mtime),
        PyBool_FromLong((found->stx_attributes & STATX_ATTR_COMPRESSED) != 0),
    };
    const Py_ssize_t count = sizeof fields / sizeof *fields;
    /* A new tuple of a subclass, as tuple.__new__ makes it, but to be filled here. */
    PyObject *result = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, count);
    Py_ssize_t i;

    for (i = 0; i < count; i++)
        if (fields[i] == NULL || result == NULL)
            break;
    if (i < count) {
        for (i = 0; i < count; i++)
            Py_XDECREF(fields[i]);
        Py_XDECREF(result);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    for (i = 0; i < count; i++)
        PyTuple_SetItem(result, i, fields[i]);
    return result;
}

static PyObject *statx_of(PyObject *module, PyObject *argument)
{
    struct statx found;
    int descriptor, result;

    if (number_of(argument, &descriptor))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = statx(descriptor, "", AT_EMPTY_PATH, WANTED, &found);
    Py_END_ALLOW_THREADS
    return result ? failed(NULL) : new_statx(state_of(module)->statx_type, &found);
}

static PyObject *statx_at(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct statx found;
    int directory, result;
    const char *name;

    if (expect(count, 2, 2) || number_of(arguments[0], &directory) || (name = text_of(arguments[1])) == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    result = statx(directory, name, AT_SYMLINK_NOFOLLOW, WANTED, &found);
    Py_END_ALLOW_THREADS
    return result ? failed(name) : new_statx(state_of(module)->statx_type, &found);
}

/* -- openat2 */

/* Call it without the interpreter's lock. */
static int open_at(int directory, const char *path, const struct how *how)
{
    int tries = TRIES, descriptor;

    do
        descriptor = (int)syscall(NUMBER_OF_OPENAT2, directory, path, how, sizeof *how);
    while (descriptor < 0 && (errno == EAGAIN || errno == EINTR) && --tries);
    return descriptor;
}

static int how_of(struct how *how, PyObject *flags, PyObject *resolve, PyObject *mode)
{
    how->flags = PyLong_AsUnsignedLongLong(flags) | O_CLOEXEC;
    how->resolve = PyLong_AsUnsignedLongLong(resolve);
    how->mode = mode == NULL ? 0 : PyLong_AsUnsignedLongLong(mode);
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *openat2_(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct how how;
    int directory, descriptor;
    const char *path;

    (void)module;
    if (expect(count, 4, 5) || number_of(arguments[0], &directory) || (path = text_of(arguments[1])) == NULL
        || how_of(&how, arguments[2], arguments[3], count > 4 ? arguments[4] : NULL))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    descriptor = open_at(directory, path, &how);
    Py_END_ALLOW_THREADS
    return descriptor < 0 ? failed(path) : PyLong_FromLong(descriptor);
}

/* Open, and fill in ``found``. If that fails nothing stays open. Call it without the interpreter's lock. */
static int open_and_look(int directory, const char *path, const struct how *how, struct statx *found)
{
    int descriptor = open_at(directory, path, how), code;

    if (descriptor < 0 || statx(descriptor, "", AT_EMPTY_PATH, WANTED, found) == 0)
        return descriptor;
    code = errno;
    close(descriptor);
    errno = code;
    return -1;
}

/* Return a tuple of ``index`` (unless it is negative), descriptor and stat. Close the descriptor if that fails. */
static PyObject *opened(PyObject *module, Py_ssize_t index, int descriptor, const struct statx *found)
{
    PyObject *stat = new_statx(state_of(module)->statx_type, found), *result = NULL;

    if (stat != NULL)
        result = index < 0 ? Py_BuildValue("iN", descriptor, stat) : Py_BuildValue("niN", index, descriptor, stat);
    if (result == NULL)
        close(descriptor);
    return result;
}

static PyObject *openat2_stat(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct how how;
    struct statx found;
    int directory, descriptor;
    const char *path;

    if (expect(count, 4, 4) || number_of(arguments[0], &directory) || (path = text_of(arguments[1])) == NULL
        || how_of(&how, arguments[2], arguments[3], NULL))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    descriptor = open_and_look(directory, path, &how, &found);
    Py_END_ALLOW_THREADS
    return descriptor < 0 ? failed(path) : opened(module, -1, descriptor, &found);
}

static PyObject *openat2_first(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct how how;
    struct statx found;
    int directory, descriptor = -1;
    const char *path = NULL;
    PyObject *paths, *result = NULL;
    Py_ssize_t index, amount;

    if (expect(count, 4, 4) || number_of(arguments[0], &directory)
        || how_of(&how, arguments[2], arguments[3], NULL))
        return NULL;
    paths = PySequence_Tuple(arguments[1]);
    if (paths == NULL)
        return NULL;
    amount = PyTuple_Size(paths);
    if (amount == 0)
        PyErr_SetString(PyExc_ValueError, "no path");
    for (index = 0; index < amount; index++) {
        path = text_of(PyTuple_GetItem(paths, index));
        if (path == NULL)
            break;
        Py_BEGIN_ALLOW_THREADS
        descriptor = open_and_look(directory, path, &how, &found);
        Py_END_ALLOW_THREADS
        if (descriptor >= 0) {
            result = opened(module, index, descriptor, &found);
            break;
        }
        if (errno != ENOENT || index == amount - 1) {
            failed(path);
            break;
        }
    }
    Py_DECREF(paths);
    return result;
}

/* -- extended attributes */

/* Read an attribute in one of three ways: of a descriptor, of a path, or of a directory's entry. */
struct source {
    int descriptor;     /* of the file, or of the directory; not for a path */
    const char *path;   /* of the file; NULL for a descriptor */
    int is_entry;       /* whether ``path`` is an entry of the directory */
    int have_getxattrat;
};

/* Call it without the interpreter's lock. */
static ssize_t read_attribute(const struct source *from, const char *name, void *buffer, size_t size)
{
    char path[64 + 4 * 255 + 1]; /* names of 255 characters, of up to four bytes */
    struct value value = {(uintptr_t)buffer, (uint32_t)size, 0};

    if (from->path == NULL)
        return fgetxattr(from->descriptor, name, buffer, size);
    if (!from->is_entry)
        return getxattr(from->path, name, buffer, size);
    if (from->have_getxattrat)
        return syscall(NUMBER_OF_GETXATTRAT, from->descriptor, from->path, AT_SYMLINK_NOFOLLOW, name, &value,
                       sizeof value);
    if (snprintf(path, sizeof path, "/proc/self/fd/%d/%s", from->descriptor, from->path) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return lgetxattr(path, name, buffer, size);
}

static PyObject *attribute(const struct source *from, const char *name)
{
    char room[XATTR_ROOM], *large = NULL;
    const char *value = room;
    size_t size = 0;
    ssize_t length;
    PyObject *result;

    Py_BEGIN_ALLOW_THREADS
    length = read_attribute(from, name, room, sizeof room);
    /* Until it fits: it may grow between two calls. */
    while (length < 0 && errno == ERANGE) {
        length = read_attribute(from, name, NULL, 0);
        if (length < 0)
            break;
        free(large);
        size = (size_t)length + 1;
        value = large = malloc(size);
        if (large == NULL) {
            length = -1;
            errno = ENOMEM;
            break;
        }
        length = read_attribute(from, name, large, size);
    }
    Py_END_ALLOW_THREADS
    if (length >= 0)
        result = PyBytes_FromStringAndSize(value, length);
    else if (errno == ENODATA) {
        Py_INCREF(Py_None);
        result = Py_None;
    } else
        result = failed(NULL);
    free(large);
    return result;
}

static PyObject *fgetxattr_(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct source from = {0};
    const char *name;

    (void)module;
    if (expect(count, 2, 2) || number_of(arguments[0], &from.descriptor) || (name = text_of(arguments[1])) == NULL)
        return NULL;
    return attribute(&from, name);
}

static PyObject *getxattr_(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct source from = {0};
    const char *name;
    PyObject *path, *result;

    (void)module;
    if (expect(count, 2, 2) || (name = text_of(arguments[1])) == NULL)
        return NULL;
    path = PyUnicode_EncodeFSDefault(arguments[0]);
    if (path == NULL)
        return NULL;
    from.path = text_of(path);
    result = from.path == NULL ? NULL : attribute(&from, name);
    Py_DECREF(path);
    return result;
}

static PyObject *getxattr_at(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct source from = {0};
    const char *name;

    if (expect(count, 3, 3) || number_of(arguments[0], &from.descriptor) || (from.path = text_of(arguments[1])) == NULL
        || (name = text_of(arguments[2])) == NULL)
        return NULL;
    from.is_entry = 1;
    from.have_getxattrat = state_of(module)->have_getxattrat;
    return attribute(&from, name);
}

/* -- the module */

static int fill(PyObject *module)
{
    struct state *state = state_of(module);
    struct source root = {AT_FDCWD, "/", 1, 1};
    PyObject *calls = PyImport_ImportModule("smb3server.backends.local.file_calls");

    if (calls == NULL)
        return -1;
    state->statx_type = (PyTypeObject *)PyObject_GetAttrString(calls, "Statx");
    Py_DECREF(calls);
    if (state->statx_type == NULL)
        return -1;
    /* Linux 6.13 and later have getxattrat(2). It costs half as much as /proc does. */
    errno = 0;
    read_attribute(&root, "user.none", NULL, 0);
    state->have_getxattrat = errno == ENODATA || errno == EOPNOTSUPP;
    return PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    Py_VISIT(state_of(module)->statx_type);
    return 0;
}

static int clear(PyObject *module)
{
    Py_CLEAR(state_of(module)->statx_type);
    return 0;
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

static PyMethodDef methods[] = {
    {"openat2", FAST(openat2_), NULL},
    {"openat2_stat", FAST(openat2_stat), NULL},
    {"openat2_first", FAST(openat2_first), NULL},
    {"statx", statx_of, METH_O, NULL},
    {"statx_at", FAST(statx_at), NULL},
    {"fgetxattr", FAST(fgetxattr_), NULL},
    {"getxattr", FAST(getxattr_), NULL},
    {"getxattr_at", FAST(getxattr_at), NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "smb3server.backends.local._native",
    .m_size = sizeof(struct state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
