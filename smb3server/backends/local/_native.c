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
#include <string.h>
#include <sys/fsuid.h>
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

/* What belongs to this module: types of the results (NamedTuples of Python), and what the kernel can do. */
struct state {
    PyTypeObject *statx_type, *info_type, *key_type;
    PyObject *file, *directory; /* members of the enumeration Kind */
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

/* -- credentials of the thread */

static int id_of(PyObject *argument, unsigned int *number)
{
    unsigned long value = PyLong_AsUnsignedLong(argument);

    if (value == (unsigned long)-1 && PyErr_Occurred())
        return -1;
    if (value > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "no id");
        return -1;
    }
    *number = (unsigned int)value;
    return 0;
}

/* Whom to act as for one call, and who the server is. */
struct ids {
    int given;
    unsigned int uid, gid, own_uid, own_gid;
};

static int ids_of(PyObject *argument, struct ids *ids)
{
    unsigned int *const fields[] = {&ids->uid, &ids->gid, &ids->own_uid, &ids->own_gid};
    Py_ssize_t i;

    ids->given = argument != Py_None;
    if (!ids->given)
        return 0;
    if (!PyTuple_Check(argument) || PyTuple_Size(argument) != 4) {
        PyErr_SetString(PyExc_TypeError, "not four ids");
        return -1;
    }
    for (i = 0; i < 4; i++)
        if (id_of(PyTuple_GetItem(argument, i), fields[i]))
            return -1;
    return 0;
}

static void act_as(const struct ids *ids)
{
    if (ids->given) {
        setfsuid(ids->uid);
        setfsgid(ids->gid);
    }
}

/* Become the server again. Return whether the kernel had refused the user's ids. */
static int act_no_more(const struct ids *ids)
{
    unsigned int uid, gid;

    if (!ids->given)
        return 0;
    uid = (unsigned int)setfsuid(ids->own_uid);
    gid = (unsigned int)setfsgid(ids->own_gid);
    return uid != ids->uid || gid != ids->gid;
}

/* -- statx */

/* Whether nanoseconds since 1970 are a number of 64 bits: until the year 2262. */
static int is_near(const struct statx_timestamp *time)
{
    return time->tv_sec > -9223372036LL && time->tv_sec < 9223372036LL;
}

static int64_t near_nanoseconds(const struct statx_timestamp *time)
{
    return time->tv_sec * 1000000000LL + time->tv_nsec;
}

static PyObject *nanoseconds(const struct statx_timestamp *time)
{
    PyObject *seconds, *billion, *product = NULL, *rest, *sum = NULL;

    if (is_near(time))
        return PyLong_FromLongLong(near_nanoseconds(time));
    seconds = PyLong_FromLongLong(time->tv_sec);
    billion = PyLong_FromLong(1000000000);
    rest = PyLong_FromUnsignedLong(time->tv_nsec);
    if (seconds != NULL && billion != NULL && rest != NULL)
        product = PyNumber_Multiply(seconds, billion);
    if (product != NULL)
        sum = PyNumber_Add(product, rest);
    Py_XDECREF(seconds);
    Py_XDECREF(billion);
    Py_XDECREF(rest);
    Py_XDECREF(product);
    return sum;
}

/* Make a NamedTuple of objects, any of which may be NULL with an exception set. It takes them over, also if it fails. */
static PyObject *new_record(PyTypeObject *type, PyObject *const *fields, Py_ssize_t count)
{
    /* As tuple.__new__ does it for a subclass, but the result is filled here. */
    PyObject *result = ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, count);
    Py_ssize_t i;

    for (i = 0; i < count; i++)
        if (fields[i] == NULL || result == NULL)
            break;
    if (i < count) {
        for (i = 0; i < count; i++)
            Py_XDECREF(fields[i]);
        Py_XDECREF(result);
        return NULL;
    }
    for (i = 0; i < count; i++)
        PyTuple_SetItem(result, i, fields[i]);
    return result;
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
    return new_record(type, fields, sizeof fields / sizeof *fields);
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

static PyObject *openat2_stat(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct how how;
    struct statx found;
    int directory, descriptor;
    const char *path;
    PyObject *stat, *result;

    if (expect(count, 4, 4) || number_of(arguments[0], &directory) || (path = text_of(arguments[1])) == NULL
        || how_of(&how, arguments[2], arguments[3], NULL))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    descriptor = open_and_look(directory, path, &how, &found);
    Py_END_ALLOW_THREADS
    if (descriptor < 0)
        return failed(path);
    stat = new_statx(state_of(module)->statx_type, &found);
    result = stat == NULL ? NULL : Py_BuildValue("iN", descriptor, stat);
    if (result == NULL)
        close(descriptor);
    return result;
}

/* Open the data of a file or directory that ``descriptor`` (O_PATH) is. Call it without the interpreter's lock. */
static int open_data(int descriptor, int is_directory, int flags)
{
    char path[32];
    int data;

    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    do
        data = is_directory ? openat(descriptor, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                            : open(path, flags | O_CLOEXEC);
    while (data < 0 && errno == EINTR);
    return data;
}

/* What find_file is to do once it has a file. */
struct wish {
    int data_flags; /* of open(2); negative: its data is not wanted */
    int folder;     /* whether a directory is opened as well */
};

/* Put the data of the file in the place of ``descriptor``, if it is wanted. Return whether that was done; -1 on failure,
   when nothing stays open. Call it without the interpreter's lock. */
static int take_data(int *descriptor, const struct statx *found, const struct wish *wish)
{
    const int kind = found->stx_mode & S_IFMT, is_directory = kind == S_IFDIR;
    int data, code;

    if (is_directory ? !wish->folder : kind != S_IFREG || wish->data_flags < 0)
        return 0;
    data = open_data(*descriptor, is_directory, wish->data_flags);
    code = errno;
    close(*descriptor);
    errno = code;
    *descriptor = data;
    return data < 0 ? -1 : 1;
}

static PyObject *find_file(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    const char *texts[2];
    struct how how;
    struct wish wish;
    struct ids ids;
    struct statx found;
    int directory, descriptor = -1, refused, has_data = 0, code;
    PyObject *paths, *stat, *result = NULL;
    Py_ssize_t index, amount;

    if (expect(count, 7, 7) || number_of(arguments[0], &directory)
        || how_of(&how, arguments[2], arguments[3], NULL) || number_of(arguments[4], &wish.data_flags)
        || number_of(arguments[5], &wish.folder) || ids_of(arguments[6], &ids)
        || (paths = PySequence_Tuple(arguments[1])) == NULL)
        return NULL;
    amount = PyTuple_Size(paths);
    if (amount < 1 || amount > 2)
        PyErr_SetString(PyExc_ValueError, "one path or two");
    for (index = 0; index < amount && !PyErr_Occurred(); index++)
        texts[index] = text_of(PyTuple_GetItem(paths, index));
    if (PyErr_Occurred()) {
        Py_DECREF(paths);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    act_as(&ids);
    for (index = 0; index < amount; index++) {
        descriptor = open_and_look(directory, texts[index], &how, &found);
        if (descriptor >= 0 || errno != ENOENT)
            break;
    }
    if (descriptor >= 0 && index == 0)
        has_data = take_data(&descriptor, &found, &wish);
    code = errno;
    refused = act_no_more(&ids);
    if (refused && descriptor >= 0)
        close(descriptor);
    Py_END_ALLOW_THREADS
    errno = refused ? EPERM : code;
    if (refused || descriptor < 0)
        failed(texts[refused || index == 0 ? 0 : amount - 1]);
    else if ((stat = new_statx(state_of(module)->statx_type, &found)) == NULL
             || (result = Py_BuildValue("niNN", index, descriptor, PyBool_FromLong(has_data), stat)) == NULL)
        close(descriptor);
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

/* -- entries of a directory */

/* Values of smb3server/wire/attributes.py. */
enum {
    READONLY = 0x1,
    DIRECTORY = 0x10,
    ARCHIVE = 0x20,
    NORMAL = 0x80,
    SPARSE = 0x200,
    REPARSE_POINT = 0x400,
    COMPRESSED = 0x800,
    SETTABLE = 0x3327,
};

#define FILETIME_OF_1970 116444736000000000LL

/* The small attribute of a file, as metadata.py packs it. Two items follow, if ``flags`` says so: a key of 16 bytes,
   which listings do not need, and a struct change. */
struct __attribute__((packed)) small {
    uint8_t version, flags;
    uint16_t present, beside, unused;
    uint32_t attributes, ea_size, reparse_tag;
    int64_t creation;
    uint64_t inode;
};

struct __attribute__((packed)) change {
    int64_t time, until;
};

enum { VERSION = 3, HAS_ATTRIBUTES = 1, HAS_KEY = 2, HAS_CHANGE = 4 };
enum { KEY_SIZE = 16, EA_PRESENT = 2, REPARSE_PRESENT = 4, IN_ATTRIBUTES = 7 };

struct entry {
    const char *name;
    struct statx stat;
    int is_ordinary;
    ssize_t length; /* of ``value``; negative: there is no attribute */
    unsigned char value[sizeof(struct small) + KEY_SIZE + sizeof(struct change) + 1];
};

/* Look at an entry. Call it without the interpreter's lock. */
static void look(struct entry *entry, const struct source *from, const char *attribute)
{
    int kind;

    entry->is_ordinary = 0;
    if (statx(from->descriptor, entry->name, AT_SYMLINK_NOFOLLOW, WANTED, &entry->stat))
        return;
    kind = entry->stat.stx_mode & S_IFMT;
    if (kind != S_IFREG && kind != S_IFDIR)
        return;
    entry->length = read_attribute(from, attribute, entry->value, sizeof entry->value);
    entry->is_ordinary = entry->length >= 0 || errno == ENODATA;
}

/* Take the small attribute apart. Return -1 if there is anything unusual about it. */
static int unpack(const struct entry *entry, struct small *small, struct change *change)
{
    const size_t length = (size_t)entry->length;
    size_t expected = sizeof *small;

    memset(small, 0, sizeof *small);
    memset(change, 0, sizeof *change);
    if (entry->length < 0)
        return 0;
    if (length < sizeof *small)
        return -1;
    memcpy(small, entry->value, sizeof *small);
    if (small->flags & HAS_KEY)
        expected += KEY_SIZE;
    if (small->flags & HAS_CHANGE)
        expected += sizeof *change;
    if (small->version != VERSION || length != expected || small->inode != entry->stat.stx_ino || small->creation < 0)
        return -1;
    if (small->flags & HAS_CHANGE)
        memcpy(change, entry->value + length - sizeof *change, sizeof *change);
    return change->time < 0 ? -1 : 0;
}

static int64_t filetime(const struct statx_timestamp *time)
{
    return FILETIME_OF_1970 + time->tv_sec * 10000000LL + time->tv_nsec / 100;
}

/* Do what metadata.file_info does for an ordinary file or directory. Return None for any other. ``block``: bytes that
 * attributes in blocks of their own take, or 0. */
static PyObject *info_of(struct state *state, const struct entry *entry, uint64_t block)
{
    const struct statx *stat = &entry->stat;
    const int is_directory = (stat->stx_mode & S_IFMT) == S_IFDIR;
    struct small small;
    struct change change;
    uint32_t attributes;
    uint64_t size = 0, allocation = 0;
    const struct statx_timestamp *born = &stat->stx_btime;
    PyObject *kind = is_directory ? state->directory : state->file;

    if (!entry->is_ordinary || unpack(entry, &small, &change) || !is_near(&stat->stx_atime)
        || !is_near(&stat->stx_mtime) || !is_near(&stat->stx_ctime) || !is_near(&stat->stx_btime)
        || stat->stx_size > INT64_MAX / 2 || stat->stx_blocks > INT64_MAX / 1024) {
        Py_INCREF(Py_None);
        return Py_None;
    }
    if (small.flags & HAS_ATTRIBUTES)
        attributes = small.attributes & SETTABLE;
    else
        attributes = is_directory ? 0 : stat->stx_mode & 0222 ? ARCHIVE : ARCHIVE | READONLY;
    if (is_directory)
        attributes |= DIRECTORY;
    else {
        size = stat->stx_size;
        allocation = stat->stx_blocks * 512;
        if (small.present & ~small.beside & IN_ATTRIBUTES)
            allocation -= allocation < block ? allocation : block;
        if (size > allocation && !(attributes & SPARSE))
            allocation = (size + 4095) / 4096 * 4096;
    }
    if (!(small.present & EA_PRESENT))
        small.ea_size = 0;
    if (!(small.present & REPARSE_PRESENT))
        small.reparse_tag = 0;
    if (small.reparse_tag)
        attributes |= REPARSE_POINT;
    if (stat->stx_attributes & STATX_ATTR_COMPRESSED)
        attributes |= COMPRESSED;
    if (!(stat->stx_mask & STATX_BTIME) || born->tv_sec < 0)
        born = near_nanoseconds(&stat->stx_mtime) < near_nanoseconds(&stat->stx_ctime) ? &stat->stx_mtime
                                                                                      : &stat->stx_ctime;
    if (near_nanoseconds(&stat->stx_ctime) <= 0 || near_nanoseconds(&stat->stx_ctime) > change.until)
        change.time = filetime(&stat->stx_ctime);

    PyObject *key[] = {
        PyLong_FromUnsignedLongLong((uint64_t)stat->stx_dev_major << 20 | stat->stx_dev_minor),
        PyLong_FromUnsignedLongLong(stat->stx_ino),
    };
    Py_INCREF(kind);
    PyObject *fields[] = {
        new_record(state->key_type, key, 2),
        kind,
        PyLong_FromUnsignedLong(attributes ? attributes : NORMAL),
        PyLong_FromLongLong(small.creation ? small.creation : filetime(born)),
        PyLong_FromLongLong(filetime(&stat->stx_atime)),
        PyLong_FromLongLong(filetime(&stat->stx_mtime)),
        PyLong_FromLongLong(change.time),
        PyLong_FromUnsignedLongLong(size),
        PyLong_FromUnsignedLongLong(allocation),
        PyLong_FromUnsignedLong(stat->stx_nlink),
        PyLong_FromUnsignedLong(small.ea_size),
        PyLong_FromUnsignedLong(small.reparse_tag),
        PyLong_FromLong(stat->stx_mode),
        PyLong_FromUnsignedLong(stat->stx_uid),
        PyLong_FromUnsignedLong(stat->stx_gid),
    };
    return new_record(state->info_type, fields, sizeof fields / sizeof *fields);
}

/* Return a tuple of the names as bytes, which it keeps alive, and fill in ``entries``. */
static PyObject *encoded(PyObject *names, struct entry *entries, Py_ssize_t amount)
{
    PyObject *raw = PyTuple_New(amount), *name;
    Py_ssize_t i;

    for (i = 0; raw != NULL && i < amount; i++) {
        name = PyUnicode_EncodeFSDefault(PyTuple_GetItem(names, i));
        if (name == NULL || PyTuple_SetItem(raw, i, name) || (entries[i].name = text_of(name)) == NULL)
            Py_CLEAR(raw);
    }
    return raw;
}

static PyObject *ordinary_entries(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    struct state *state = state_of(module);
    struct source from = {0};
    struct entry *entries = NULL;
    const char *attribute;
    PyObject *names, *raw = NULL, *result = NULL, *info;
    Py_ssize_t amount, i;
    int block;

    if (expect(count, 4, 4) || number_of(arguments[0], &from.descriptor) || (attribute = text_of(arguments[2])) == NULL
        || number_of(arguments[3], &block))
        return NULL;
    from.is_entry = 1;
    from.have_getxattrat = state->have_getxattrat;
    names = PySequence_Tuple(arguments[1]);
    if (names == NULL)
        return NULL;
    amount = PyTuple_Size(names);
    entries = PyMem_Malloc((amount ? amount : 1) * sizeof *entries);
    if (entries == NULL)
        PyErr_NoMemory();
    else
        raw = encoded(names, entries, amount);
    if (raw != NULL) {
        Py_BEGIN_ALLOW_THREADS
        for (i = 0; i < amount; i++) {
            from.path = entries[i].name;
            look(&entries[i], &from, attribute);
        }
        Py_END_ALLOW_THREADS
        result = PyList_New(amount);
    }
    for (i = 0; result != NULL && i < amount; i++) {
        info = info_of(state, &entries[i], (uint64_t)block);
        if (info == NULL || PyList_SetItem(result, i, info))
            Py_CLEAR(result);
    }
    PyMem_Free(entries);
    Py_XDECREF(raw);
    Py_DECREF(names);
    return result;
}

/* These calls are as quick as giving up the interpreter's lock would be. */
static PyObject *switch_ids(PyObject *module, PyObject *const *arguments, Py_ssize_t count)
{
    unsigned int uid, gid;

    (void)module;
    if (expect(count, 2, 2) || id_of(arguments[0], &uid) || id_of(arguments[1], &gid))
        return NULL;
    uid = (unsigned int)setfsuid(uid);
    gid = (unsigned int)setfsgid(gid);
    return Py_BuildValue("(II)", uid, gid);
}

static PyObject *switch_uid(PyObject *module, PyObject *argument)
{
    unsigned int uid;

    (void)module;
    return id_of(argument, &uid) ? NULL : PyLong_FromUnsignedLong((unsigned int)setfsuid(uid));
}

/* -- the module */

/* Return an attribute of a module. */
static PyObject *from_module(const char *module, const char *name)
{
    PyObject *imported = PyImport_ImportModule(module), *found = NULL;

    if (imported != NULL)
        found = PyObject_GetAttrString(imported, name);
    Py_XDECREF(imported);
    return found;
}

static int fill(PyObject *module)
{
    struct state *state = state_of(module);
    struct source root = {AT_FDCWD, "/", 1, 1};
    PyObject *kinds = from_module("smb3server.backends.base", "Kind");

    state->statx_type = (PyTypeObject *)from_module("smb3server.backends.local.file_calls", "Statx");
    state->info_type = (PyTypeObject *)from_module("smb3server.backends.base", "FileInfo");
    state->key_type = (PyTypeObject *)from_module("smb3server.backends.base", "FileKey");
    if (kinds != NULL) {
        state->file = PyObject_GetAttrString(kinds, "FILE");
        state->directory = PyObject_GetAttrString(kinds, "DIRECTORY");
        Py_DECREF(kinds);
    }
    if (PyErr_Occurred())
        return -1;
    /* Linux 6.13 and later have getxattrat(2). It costs half as much as /proc does. */
    errno = 0;
    read_attribute(&root, "user.none", NULL, 0);
    state->have_getxattrat = errno == ENODATA || errno == EOPNOTSUPP;
    return PyModule_AddStringConstant(module, "SOURCE", SOURCE);
}

static int traverse(PyObject *module, visitproc visit, void *arg)
{
    struct state *state = state_of(module);

    Py_VISIT(state->statx_type);
    Py_VISIT(state->info_type);
    Py_VISIT(state->key_type);
    Py_VISIT(state->file);
    Py_VISIT(state->directory);
    return 0;
}

static int clear(PyObject *module)
{
    struct state *state = state_of(module);

    Py_CLEAR(state->statx_type);
    Py_CLEAR(state->info_type);
    Py_CLEAR(state->key_type);
    Py_CLEAR(state->file);
    Py_CLEAR(state->directory);
    return 0;
}

#define FAST(function) (PyCFunction)(void (*)(void))function, METH_FASTCALL

static PyMethodDef methods[] = {
    {"switch_ids", FAST(switch_ids), NULL},
    {"switch_uid", switch_uid, METH_O, NULL},
    {"openat2", FAST(openat2_), NULL},
    {"openat2_stat", FAST(openat2_stat), NULL},
    {"find_file", FAST(find_file), NULL},
    {"statx", statx_of, METH_O, NULL},
    {"statx_at", FAST(statx_at), NULL},
    {"fgetxattr", FAST(fgetxattr_), NULL},
    {"getxattr", FAST(getxattr_), NULL},
    {"getxattr_at", FAST(getxattr_at), NULL},
    {"ordinary_entries", FAST(ordinary_entries), NULL},
    {NULL, NULL, 0, NULL},
};

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
