/* Record areas in C: the kernels of kernels.py, for machines with a compiler.
 *
 * What these functions accept, refuse and return is defined by plain_encode, plain_walk and plain_gather, and the same
 * tests run over both; `cut` answers for plain records only and leaves all others to its caller. Every read is bounded
 * by the end of its record, every length is checked before it is used, and nothing is allocated for a count that the
 * bytes cannot hold, but for room ahead, which is at most some times what is needed. Where only raw memory is touched
 * and there is enough of it to be worth the switch, the GIL is released; the objects that own the memory are immutable
 * and are held meanwhile.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MIN_RECORD_SIZE 7
#define INT_BYTES 5
#define LONG_BYTES 8
#define MIN_TIMESTAMP_MS (-1)
#define MAX_TIMESTAMP_MS (INT64_C(9223372036854775807) / 1000 - 1)
#define RELEASE_GIL_FROM (64 * 1024)
#define RECORD_OVERHEAD 34 /* as in records.py */
#define HEADER_OVERHEAD 10

static PyObject *FormatError;
static PyTypeObject *RecordType;

/* Why bytes are refused: a literal, so that it can be set without the GIL. NULL means that all is well. */
typedef const char *reason;
static const char NO_MEMORY[] = "out of memory";

static void *refuse(reason why, Py_ssize_t position)
{
    if (why == NO_MEMORY)
        return PyErr_NoMemory();
    PyObject *error = PyObject_CallFunction(FormatError, "sn", why, position);
    if (error != NULL) {
        PyErr_SetObject(FormatError, error);
        Py_DECREF(error);
    }
    return NULL;
}

/* ---- reading ---- */

typedef struct {
    const uint8_t *data;
    Py_ssize_t size; /* -1 for null */
} slice;

typedef struct {
    int64_t timestamp_delta;
    uint64_t offset_delta; /* zigzag */
    slice key, value;
    uint32_t header_count;
    const uint8_t *headers; /* after their count */
    const uint8_t *end;
} record;

typedef struct {
    Py_buffer held; /* to be released if it has an object */
    const uint8_t *data;
    Py_ssize_t size, count;
    int64_t base_timestamp, append_timestamp;
    int appended;
} area;

static inline reason read_number(const uint8_t **at, const uint8_t *end, int max_bytes, uint64_t *out)
{
    const uint8_t *p = *at;
    if (p < end && *p < 0x80) {
        *out = *p;
        *at = p + 1;
        return NULL;
    }
    uint64_t number = 0;
    for (int index = 0; index < max_bytes; index++) {
        if (p == end)
            return "the data ends inside a varint";
        uint64_t byte = *p++;
        number |= (byte & 0x7F) << (7 * index);
        if (byte < 0x80) {
            if (max_bytes == INT_BYTES && number >> 32)
                return "a varint does not fit in 32 bits";
            *at = p;
            *out = number;
            return NULL;
        }
    }
    return "a varint is too long";
}

static inline int64_t signed_number(uint64_t number) { return (int64_t)(number >> 1) ^ -(int64_t)(number & 1); }

static inline reason read_slice(const uint8_t **at, const uint8_t *end, slice *out)
{
    uint64_t number;
    reason why = read_number(at, end, INT_BYTES, &number);
    if (why)
        return why;
    if (number & 1) {
        if (number != 1)
            return "a negative length";
        out->data = *at;
        out->size = -1;
        return NULL;
    }
    number >>= 1;
    if (number > (uint64_t)(end - *at))
        return "a length reaches past its record";
    out->data = *at;
    out->size = (Py_ssize_t)number;
    *at += number;
    return NULL;
}

/* For `index`, where compaction by key may have taken records away: the caller looks at the delta. */
#define ANY_DELTA (-1)

static reason read_any_record(const uint8_t **at, const uint8_t *end, Py_ssize_t index, record *out)
{
    uint64_t number;
    reason why = read_number(at, end, INT_BYTES, &number);
    if (why)
        return why;
    if (number & 1 || number >> 1 > (uint64_t)(end - *at))
        return "the length of a record reaches past the data";
    const uint8_t *p = *at;
    end = p + (number >> 1);
    if (p == end)
        return "a record of no bytes";
    p++; /* attributes */
    if ((why = read_number(&p, end, LONG_BYTES, &number)))
        return why;
    out->timestamp_delta = signed_number(number);
    if ((why = read_number(&p, end, INT_BYTES, &number)))
        return why;
    out->offset_delta = number;
    if (index != ANY_DELTA && number != (uint64_t)index << 1)
        return "offset deltas are not 0, 1, 2 and so on";
    if ((why = read_slice(&p, end, &out->key)) || (why = read_slice(&p, end, &out->value)))
        return why;
    if ((why = read_number(&p, end, INT_BYTES, &number)))
        return why;
    /* A header takes at least two bytes: number / 2 of them take `number`. */
    if (number & 1 || number > (uint64_t)(end - p))
        return "a record cannot hold the headers that it counts";
    if (number == 0 && p != end)
        return "a record does not end where its length says";
    out->header_count = (uint32_t)(number >> 1);
    out->headers = p;
    out->end = end;
    *at = end;
    return NULL;
}

/* One byte or two; 0 for a longer one. The caller knows that two bytes are there. */
static inline int read_short(const uint8_t **at, uint32_t *out)
{
    const uint8_t *p = *at;
    uint32_t number = p[0];
    if (number < 0x80) {
        *out = number;
        *at = p + 1;
        return 1;
    }
    *out = (number & 0x7F) | (uint32_t)p[1] << 7;
    *at = p + 2;
    return p[1] < 0x80;
}

/* Leaves at least three bytes after it, so that what follows may be read without a look. The last record of an area,
 * which has one, is read by read_any_record. */
static inline int read_short_slice(const uint8_t **at, const uint8_t *end, slice *out)
{
    uint32_t number;
    if (!read_short(at, &number))
        return 0;
    out->data = *at;
    if (number & 1) {
        out->size = -1;
        return number == 1 && end - *at >= 3;
    }
    out->size = number >> 1;
    if (out->size + 3 > end - *at)
        return 0;
    *at += out->size;
    return 1;
}

/* A record as most are: varints of one byte or two, no headers. Returns 0, having read nothing, if it is another one or
 * a wrong one. No field ends before it begins, so that one look at the end of the record covers every length in it. */
static inline int read_usual_record(const uint8_t **at, const uint8_t *end, Py_ssize_t index, record *out)
{
    const uint8_t *p = *at;
    uint32_t size, delta, number;
    if (end - p < 16 || !read_short(&p, &size))
        return 0;
    const uint8_t *start = p++; /* attributes */
    if (!read_short(&p, &delta) || !read_short(&p, &number) ||
        (index != ANY_DELTA && number != (uint64_t)index << 1) ||
        !read_short_slice(&p, end, &out->key) || !read_short_slice(&p, end, &out->value))
        return 0;
    if (*p++ != 0 || (uint64_t)(p - start) << 1 != size)
        return 0;
    out->timestamp_delta = signed_number(delta);
    out->offset_delta = number;
    out->header_count = 0;
    out->headers = out->end = *at = p;
    return 1;
}

/* Everything up to the header count; the headers themselves are read by read_header. */
static inline reason read_record(const uint8_t **at, const uint8_t *end, Py_ssize_t index, record *out)
{
    if (read_usual_record(at, end, index, out))
        return NULL;
    return read_any_record(at, end, index, out);
}

/* Strict UTF-8, as Python decodes it: no overlong forms, no surrogates, nothing past U+10FFFF. */
static int is_utf8(const uint8_t *p, Py_ssize_t size)
{
    const uint8_t *end = p + size;
    while (p < end) {
        uint8_t first = *p++;
        if (first < 0x80)
            continue;
        int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
        if (first < 0xC2 || first > 0xF4 || end - p < more)
            return 0;
        uint8_t low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        uint8_t high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        if (*p < low || *p > high)
            return 0;
        for (p++; --more; p++)
            if ((*p & 0xC0) != 0x80)
                return 0;
    }
    return 1;
}

static inline reason read_header(const uint8_t **at, const uint8_t *end, slice *key, slice *value)
{
    reason why = read_slice(at, end, key);
    if (why)
        return why;
    if (key->size < 0)
        return "a header without a key";
    if (!is_utf8(key->data, key->size))
        return "a header key is not UTF-8";
    return read_slice(at, end, value);
}

static inline reason timestamp_of(const area *from, const record *one, int64_t *stamp)
{
    /* Unsigned, because a wrong base may overflow; the range check then refuses it. */
    *stamp = from->appended ? from->append_timestamp
                            : (int64_t)((uint64_t)from->base_timestamp + (uint64_t)one->timestamp_delta);
    if (*stamp < MIN_TIMESTAMP_MS || *stamp > MAX_TIMESTAMP_MS)
        return "a timestamp that no reader can represent";
    return NULL;
}

static void close_area(area *one)
{
    if (one->held.obj != NULL)
        PyBuffer_Release(&one->held);
}

/* An `Area` tuple, which must outlive `out`. On failure nothing is held. */
static int open_area(PyObject *source, area *out)
{
    PyObject *data, *append;
    out->held.obj = NULL;
    if (!PyTuple_Check(source)) {
        PyErr_SetString(PyExc_TypeError, "an Area is needed");
        return -1;
    }
    long long base;
    if (!PyArg_ParseTuple(source, "OnLO", &data, &out->count, &base, &append))
        return -1;
    out->base_timestamp = base;
    out->appended = append != Py_None;
    out->append_timestamp = 0;
    if (out->appended) {
        out->append_timestamp = PyLong_AsLongLong(append);
        if (out->append_timestamp == -1 && PyErr_Occurred())
            return -1;
    }
    if (PyBytes_CheckExact(data)) {
        out->data = (const uint8_t *)PyBytes_AS_STRING(data);
        out->size = PyBytes_GET_SIZE(data);
    }
    else {
        if (PyObject_GetBuffer(data, &out->held, PyBUF_SIMPLE) < 0)
            return -1;
        out->data = out->held.buf;
        out->size = out->held.len;
        if (!out->held.readonly) {
            /* What was checked must not change before it is used. */
            PyErr_SetString(PyExc_TypeError, "an area must be read-only");
            close_area(out);
            return -1;
        }
    }
    if (out->count < 1 || out->count > out->size / MIN_RECORD_SIZE) {
        refuse("the bytes cannot hold as many records", 0);
        close_area(out);
        return -1;
    }
    return 0;
}

/* ---- columns ---- */

/* One Arrow column of bytes while it is being filled. Where a good bound for its size is known, the bytes are written
 * into the object that will hold them; else into scratch memory that grows, because memory touched for the first time
 * costs more than copying it once. */
typedef struct {
    int scratch;
    PyObject *offsets, *data; /* scratch: no data before the end */
    uint8_t *valid, *bytes;   /* valid: NULL until there is a null */
    int32_t *ends;
    Py_ssize_t rows, most, used, room;
} column;

/* How much room to make where `needed` is needed for so many rows of `all`: for all of them, as far as that is in
 * proportion to what is known, and at least half as much again as there was. */
static Py_ssize_t ahead(Py_ssize_t needed, Py_ssize_t rows, Py_ssize_t all, Py_ssize_t had)
{
    double share = rows >= all ? 1 : (double)all / (double)(rows ? rows : 1);
    double room = (double)needed * (share < 16 ? share : 16);
    if (share > 1)
        room += room / 32; /* the others may be a little larger */
    if (had && room < (double)had * 1.5)
        room = (double)had * 1.5;
    return room < (double)PY_SSIZE_T_MAX / 2 ? (Py_ssize_t)room : needed;
}

static int resize_bytes(PyObject **bytes, Py_ssize_t size)
{
    if (*bytes == NULL)
        return (*bytes = PyBytes_FromStringAndSize(NULL, size)) == NULL ? -1 : 0;
    return _PyBytes_Resize(bytes, size);
}

/* Room for `rows` more rows, and `size` more bytes, where there may be `all` rows in the end. */
static int column_reserve(column *to, Py_ssize_t rows, Py_ssize_t size, Py_ssize_t all)
{
    rows += to->rows;
    size += to->used;
    if (to->offsets == NULL || rows > to->most) {
        Py_ssize_t most = ahead(rows, rows, all, to->most);
        if (resize_bytes(&to->offsets, (most + 1) * (Py_ssize_t)sizeof(int32_t)) < 0)
            return -1;
        to->ends = (int32_t *)PyBytes_AS_STRING(to->offsets);
        to->ends[0] = 0;
        if (to->valid) {
            uint8_t *valid = PyMem_RawRealloc(to->valid, (most + 7) / 8);
            if (valid == NULL)
                goto no_memory;
            memset(valid + (to->most + 7) / 8, 0xFF, (most + 7) / 8 - (to->most + 7) / 8);
            to->valid = valid;
        }
        to->most = most;
    }
    if (to->bytes == NULL || size > to->room) {
        Py_ssize_t room = ahead(size, rows, all, to->room);
        if (to->scratch) {
            uint8_t *bytes = PyMem_RawRealloc(to->bytes, room ? room : 1);
            if (bytes == NULL)
                goto no_memory;
            to->bytes = bytes;
        }
        else {
            if (resize_bytes(&to->data, room) < 0)
                return -1;
            to->bytes = (uint8_t *)PyBytes_AS_STRING(to->data);
        }
        to->room = room;
    }
    return 0;
no_memory:
    PyErr_NoMemory();
    return -1;
}

static reason column_grow(column *to, Py_ssize_t size)
{
    uint8_t *bytes = to->scratch ? PyMem_RawRealloc(to->bytes, 2 * (to->room + size)) : NULL;
    if (bytes == NULL)
        return NO_MEMORY;
    to->bytes = bytes;
    to->room = 2 * (to->room + size);
    return NULL;
}

/* In raw memory, because the GIL may be released. */
static reason column_add_null(column *to)
{
    size_t size = (size_t)(to->most + 7) / 8;
    if (to->valid == NULL) {
        if ((to->valid = PyMem_RawMalloc(size)) == NULL)
            return NO_MEMORY;
        memset(to->valid, 0xFF, size);
    }
    to->valid[to->rows >> 3] &= (uint8_t)~(1 << (to->rows & 7));
    return NULL;
}

/* Two moves of a fixed size, which may overlap, are quicker than a call: keys are short. */
static inline void copy_bytes(uint8_t *to, const uint8_t *from, Py_ssize_t size)
{
    if (size < 8 || size > 32)
        memcpy(to, from, size);
    else if (size < 16) {
        memcpy(to, from, 8);
        memcpy(to + size - 8, from + size - 8, 8);
    }
    else {
        memcpy(to, from, 16);
        memcpy(to + size - 16, from + size - 16, 16);
    }
}

static inline reason column_add(column *to, const slice *from)
{
    if (to->rows == to->most) /* headers were counted before they are read: a read-only view of bytes that change */
        return "the bytes have changed while they were read";
    reason why;
    if (from->size > 0) {
        if (from->size > to->room - to->used && (why = column_grow(to, from->size)))
            return why;
        copy_bytes(to->bytes + to->used, from->data, from->size);
        to->used += from->size;
    }
    else if (from->size < 0 && (why = column_add_null(to)))
        return why;
    to->ends[++to->rows] = (int32_t)to->used;
    return NULL;
}

/* (validity or None, offsets, data)
 *
 * Arrow does not mind buffers that are longer than need be, and malloc does mind to be asked for more than is freed
 * later: it takes large pieces from the system and gives them back then, each time, and touching them costs three
 * times what the decoding does. So a little too much stays; only when a quarter would be lost is it cut off. */
static PyObject *column_close(column *from)
{
    if (from->data == NULL)
        from->data = PyBytes_FromStringAndSize((char *)from->bytes, from->used);
    else if (from->used < from->room - from->room / 4)
        _PyBytes_Resize(&from->data, from->used);
    if (from->data == NULL)
        return NULL;
    if (from->valid == NULL)
        return Py_BuildValue("OOO", Py_None, from->offsets, from->data);
    return Py_BuildValue("y#OO", (char *)from->valid, (from->rows + 7) / 8, from->offsets, from->data);
}

static void column_free(column *one)
{
    if (one->scratch)
        PyMem_RawFree(one->bytes);
    PyMem_RawFree(one->valid);
    Py_CLEAR(one->offsets);
    Py_CLEAR(one->data);
}

typedef struct {
    area from;                           /* the one that is being read */
    Py_ssize_t first, stop, seen, total; /* rows of the areas before it, bytes up to its end */
    int want_keys, want_values, want_headers;
    PyObject *stamp_bytes;
    int64_t *stamps; /* NULL if not wanted */
    column keys, values;
    PyObject *list_valid, *list_offsets; /* of the headers */
    column header_keys, header_values;
    int any_headers;                        /* in this area */
    Py_ssize_t header_count, header_bytes; /* of the rows taken */
    Py_ssize_t failed_at;
} gathering;

static inline Py_ssize_t between(Py_ssize_t low, Py_ssize_t number, Py_ssize_t high)
{
    return number < low ? low : number > high ? high : number;
}

/* How many of the rows up to that one are taken. */
static inline Py_ssize_t taken_of(const gathering *to, Py_ssize_t row)
{
    return between(to->first, row, to->stop) - to->first;
}

static reason gather_rows(gathering *to)
{
    const area *from = &to->from;
    const uint8_t *at = from->data, *end = from->data + from->size;
    Py_ssize_t row = to->seen;
    to->any_headers = 0;
    to->header_count = to->header_bytes = 0;
    for (Py_ssize_t index = 0; index < from->count; index++, row++) {
        record one;
        int64_t stamp;
        reason why = read_record(&at, end, index, &one);
        if (!why)
            why = timestamp_of(from, &one, &stamp);
        if (!why && row >= to->first && row < to->stop) {
            if (to->stamps)
                to->stamps[row - to->first] = stamp * 1000;
            if (to->want_keys)
                why = column_add(&to->keys, &one.key);
            if (to->want_values && !why)
                why = column_add(&to->values, &one.value);
            to->header_count += one.header_count;
            to->header_bytes += one.end - one.headers;
        }
        if (why) {
            to->failed_at = at - from->data;
            return why;
        }
        to->any_headers |= one.header_count > 0;
    }
    if (at != end) {
        to->failed_at = at - from->data;
        return "bytes after the last record";
    }
    return NULL;
}

/* Check the headers of a record, and add them to the columns if there are any to add to. */
static reason take_headers(const record *one, column *keys, column *values)
{
    const uint8_t *p = one->headers;
    for (uint32_t left = one->header_count; left; left--) {
        slice key, value;
        reason why = read_header(&p, one->end, &key, &value);
        if (why)
            return why;
        if (keys && ((why = column_add(keys, &key)) || (why = column_add(values, &value))))
            return why;
    }
    return p == one->end ? NULL : "a record does not end where its length says";
}

/* Headers of every record are checked, those of the rows asked for are taken. A row without headers is null. */
static reason gather_headers(gathering *to, uint8_t *valid, int32_t *ends)
{
    const area *from = &to->from;
    const uint8_t *at = from->data, *end = from->data + from->size;
    Py_ssize_t row = to->seen;
    for (Py_ssize_t index = 0; index < from->count; index++, row++) {
        record one;
        reason why = read_record(&at, end, index, &one);
        int taken = row >= to->first && row < to->stop;
        if (!why)
            why = take_headers(&one, taken ? &to->header_keys : NULL, &to->header_values);
        if (why) {
            to->failed_at = at - from->data;
            return why;
        }
        if (taken) {
            Py_ssize_t place = row - to->first;
            ends[place + 1] = (int32_t)to->header_keys.rows;
            if (one.header_count)
                valid[place >> 3] |= (uint8_t)(1 << (place & 7));
        }
    }
    return NULL;
}

/* The same for rows `from` to `to_row` where no record has any. */
static void no_headers(const gathering *to, int32_t *ends, Py_ssize_t from, Py_ssize_t to_row)
{
    for (Py_ssize_t place = from; place < to_row; place++)
        ends[place + 1] = (int32_t)to->header_keys.rows;
}

/* Room for the rows of this area in what has an entry for each row. */
static int reserve_rows(gathering *to, Py_ssize_t rows)
{
    Py_ssize_t all = to->stop - to->first, before = taken_of(to, to->seen), needed = before + rows, had;
    if (to->want_keys && column_reserve(&to->keys, rows, 16 * rows, all) < 0)
        return -1;
    /* Most of an area is values. */
    if (to->want_values && column_reserve(&to->values, rows, to->from.size, all) < 0)
        return -1;
    if (to->stamp_bytes && (had = PyBytes_GET_SIZE(to->stamp_bytes) / (Py_ssize_t)sizeof(int64_t)) < needed) {
        if (resize_bytes(&to->stamp_bytes, ahead(needed, needed, all, had) * (Py_ssize_t)sizeof(int64_t)) < 0)
            return -1;
        to->stamps = (int64_t *)PyBytes_AS_STRING(to->stamp_bytes);
    }
    if (!to->want_headers || (had = PyBytes_GET_SIZE(to->list_offsets) / (Py_ssize_t)sizeof(int32_t) - 1) >= needed)
        return 0;
    Py_ssize_t most = ahead(needed, needed, all, had), bits = PyBytes_GET_SIZE(to->list_valid);
    if (resize_bytes(&to->list_offsets, (most + 1) * (Py_ssize_t)sizeof(int32_t)) < 0 ||
        resize_bytes(&to->list_valid, (most + 7) / 8) < 0)
        return -1;
    memset(PyBytes_AS_STRING(to->list_valid) + bits, 0, (most + 7) / 8 - bits);
    return 0;
}

static int gather_area(gathering *to)
{
    Py_ssize_t before = taken_of(to, to->seen), rows = taken_of(to, to->seen + to->from.count) - before;
    if (to->from.size > INT32_MAX - to->total) {
        refuse("the areas are too large for one Arrow batch", 0);
        return -1;
    }
    to->total += to->from.size;
    if (reserve_rows(to, rows) < 0)
        return -1;
    int is_large = to->from.size >= RELEASE_GIL_FROM;
    PyThreadState *state = is_large ? PyEval_SaveThread() : NULL;
    reason why = gather_rows(to);
    if (state)
        PyEval_RestoreThread(state);
    if (!why && to->want_headers) {
        int32_t *ends = (int32_t *)PyBytes_AS_STRING(to->list_offsets);
        uint8_t *valid = (uint8_t *)PyBytes_AS_STRING(to->list_valid);
        if (!to->any_headers)
            no_headers(to, ends, before, before + rows);
        else {
            if (column_reserve(&to->header_keys, to->header_count, to->header_bytes, 0) < 0 ||
                column_reserve(&to->header_values, to->header_count, to->header_bytes, 0) < 0)
                return -1;
            state = is_large ? PyEval_SaveThread() : NULL;
            why = gather_headers(to, valid, ends);
            if (state)
                PyEval_RestoreThread(state);
        }
    }
    to->seen += to->from.count;
    if (why)
        refuse(why, to->failed_at);
    return why ? -1 : 0;
}

/* (validity, offsets, keys, values, number of headers) */
static PyObject *header_lists(gathering *to)
{
    PyObject *result = NULL, *keys = column_close(&to->header_keys);
    PyObject *values = keys == NULL ? NULL : column_close(&to->header_values);
    if (values != NULL)
        result = Py_BuildValue("OOOOn", to->list_valid, to->list_offsets, keys, values, to->header_keys.rows);
    Py_XDECREF(keys);
    Py_XDECREF(values);
    return result;
}

static int open_gathering(gathering *to, int want_stamps)
{
    to->keys.scratch = to->header_keys.scratch = to->header_values.scratch = 1;
    if (want_stamps && resize_bytes(&to->stamp_bytes, 0) < 0)
        return -1;
    if ((to->want_keys && column_reserve(&to->keys, 0, 0, 0) < 0) ||
        (to->want_values && column_reserve(&to->values, 0, 0, 0) < 0))
        return -1;
    if (!to->want_headers)
        return 0;
    if (resize_bytes(&to->list_valid, 0) < 0 || resize_bytes(&to->list_offsets, sizeof(int32_t)) < 0)
        return -1;
    *(int32_t *)PyBytes_AS_STRING(to->list_offsets) = 0;
    return column_reserve(&to->header_keys, 0, 0, 0) < 0 ? -1 : column_reserve(&to->header_values, 0, 0, 0);
}

/* The areas are asked for one by one, and let go of before the next: what makes them may use the same memory again and
 * again, which is still in the processor's cache when it is read. */
static PyObject *speed_gather(PyObject *module, PyObject *args)
{
    PyObject *areas, *source, *result = NULL, *keys = NULL, *values = NULL, *headers = NULL;
    gathering to = {0};
    int want_stamps;
    if (!PyArg_ParseTuple(args, "Onnpppp", &areas, &to.first, &to.stop, &want_stamps, &to.want_keys, &to.want_values,
                          &to.want_headers))
        return NULL;
    if ((areas = PyObject_GetIter(areas)) == NULL)
        return NULL;
    to.first = to.first < 0 ? 0 : to.first;
    to.stop = to.stop < to.first ? to.first : to.stop;
    if (open_gathering(&to, want_stamps) < 0)
        goto done;
    while ((source = PyIter_Next(areas)) != NULL) {
        int failed = open_area(source, &to.from) < 0;
        if (!failed) {
            failed = gather_area(&to) < 0;
            close_area(&to.from);
        }
        Py_DECREF(source);
        if (failed)
            goto done;
    }
    if (PyErr_Occurred())
        goto done;
    keys = to.want_keys ? column_close(&to.keys) : Py_NewRef(Py_None);
    values = keys == NULL ? NULL : to.want_values ? column_close(&to.values) : Py_NewRef(Py_None);
    headers = values == NULL ? NULL : to.want_headers ? header_lists(&to) : Py_NewRef(Py_None);
    if (headers != NULL)
        result = PyTuple_Pack(4, to.stamp_bytes ? to.stamp_bytes : Py_None, keys, values, headers);
done:
    column_free(&to.keys);
    column_free(&to.values);
    column_free(&to.header_keys);
    column_free(&to.header_values);
    Py_XDECREF(to.stamp_bytes);
    Py_XDECREF(to.list_valid);
    Py_XDECREF(to.list_offsets);
    Py_XDECREF(keys);
    Py_XDECREF(values);
    Py_XDECREF(headers);
    Py_DECREF(areas);
    return result;
}

/* ---- check ---- */

static reason check_records(const area *from, int64_t *low, int64_t *high, const uint8_t **at)
{
    const uint8_t *end = from->data + from->size;
    *low = INT64_MAX;
    *high = INT64_MIN;
    for (Py_ssize_t index = 0; index < from->count; index++) {
        record one;
        int64_t stamp;
        reason why = read_record(at, end, index, &one);
        if (why || (why = timestamp_of(from, &one, &stamp)))
            return why;
        *low = stamp < *low ? stamp : *low;
        *high = stamp > *high ? stamp : *high;
        if ((why = take_headers(&one, NULL, NULL)))
            return why;
    }
    return *at == end ? NULL : "bytes after the last record";
}

static PyObject *speed_check(PyObject *module, PyObject *source)
{
    area from;
    int64_t low, high;
    if (open_area(source, &from) < 0)
        return NULL;
    const uint8_t *at = from.data;
    reason why;
    PyThreadState *state = from.size >= RELEASE_GIL_FROM ? PyEval_SaveThread() : NULL;
    why = check_records(&from, &low, &high, &at);
    if (state)
        PyEval_RestoreThread(state);
    Py_ssize_t position = at - from.data;
    close_area(&from);
    if (why)
        return refuse(why, position);
    return Py_BuildValue("LL", (long long)low, (long long)high);
}

/* ---- records ---- */

static PyObject *bytes_of(const slice *from)
{
    if (from->size < 0)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)from->data, from->size);
}

static PyObject *headers_of(const record *one, const uint8_t *start)
{
    const uint8_t *p = one->headers;
    PyObject *headers = PyTuple_New(one->header_count);
    if (headers == NULL)
        return NULL;
    for (uint32_t index = 0; index < one->header_count; index++) {
        slice key, value;
        reason why = read_header(&p, one->end, &key, &value);
        if (why) {
            Py_DECREF(headers);
            return refuse(why, p - start);
        }
        PyObject *name = PyUnicode_DecodeUTF8((const char *)key.data, key.size, NULL);
        PyObject *content = bytes_of(&value);
        PyObject *pair = name && content ? PyTuple_Pack(2, name, content) : NULL;
        Py_XDECREF(name);
        Py_XDECREF(content);
        if (pair == NULL) {
            Py_DECREF(headers);
            return NULL;
        }
        PyTuple_SET_ITEM(headers, index, pair);
    }
    if (p != one->end) {
        Py_DECREF(headers);
        return refuse("a record does not end where its length says", p - start);
    }
    return headers;
}

static PyObject *speed_records(PyObject *module, PyObject *args)
{
    PyObject *source;
    long long base_offset;
    Py_ssize_t first, stop;
    area from;
    if (!PyArg_ParseTuple(args, "OLnn", &source, &base_offset, &first, &stop) || open_area(source, &from) < 0)
        return NULL;
    if (base_offset < 0 || base_offset > INT64_MAX - from.count) {
        close_area(&from);
        return refuse("offsets that do not fit in 63 bits", 0);
    }
    first = first < 0 ? 0 : first;
    stop = stop > from.count ? from.count : stop;
    PyObject *found = PyList_New(first < stop ? stop - first : 0);
    PyObject *none = PyTuple_New(0);
    PyObject *stamp_object = NULL;
    int64_t stamp_before = 0;
    const uint8_t *at = from.data, *end = from.data + from.size;
    if (found == NULL || none == NULL)
        goto failed;
    for (Py_ssize_t index = 0; index < from.count; index++) {
        record one;
        int64_t stamp;
        reason why = read_record(&at, end, index, &one);
        if (why || (why = timestamp_of(&from, &one, &stamp))) {
            refuse(why, at - from.data);
            goto failed;
        }
        PyObject *headers = one.header_count ? headers_of(&one, from.data) : Py_NewRef(none);
        if (headers == NULL)
            goto failed;
        if (index < first || index >= stop) {
            Py_DECREF(headers);
            continue;
        }
        if (stamp_object == NULL || stamp != stamp_before) {
            Py_XDECREF(stamp_object);
            stamp_object = PyLong_FromLongLong(stamp);
            stamp_before = stamp;
        }
        PyObject *value = bytes_of(&one.value), *key = bytes_of(&one.key);
        PyObject *offset = PyLong_FromLongLong(base_offset + index);
        PyObject *made = value && key && offset && stamp_object ? RecordType->tp_alloc(RecordType, 5) : NULL;
        if (made == NULL) {
            Py_XDECREF(value);
            Py_XDECREF(key);
            Py_DECREF(headers);
            Py_XDECREF(offset);
            goto failed;
        }
        PyTuple_SET_ITEM(made, 0, value);
        PyTuple_SET_ITEM(made, 1, key);
        PyTuple_SET_ITEM(made, 2, headers);
        PyTuple_SET_ITEM(made, 3, Py_NewRef(stamp_object));
        PyTuple_SET_ITEM(made, 4, offset);
        /* Bytes, numbers and None cannot be part of a cycle: spare the collector a look at each record. */
        if (headers == none)
            PyObject_GC_UnTrack(made);
        PyList_SET_ITEM(found, index - first, made);
    }
    if (at != end) {
        refuse("bytes after the last record", at - from.data);
        goto failed;
    }
    goto done;
failed:
    Py_CLEAR(found);
done:
    close_area(&from);
    Py_XDECREF(none);
    Py_XDECREF(stamp_object);
    return found;
}

/* ---- encoding ---- */

typedef struct {
    slice key, value;
    PyObject *headers; /* a tuple, if there are any */
    int64_t timestamp; /* then its distance from the base */
    Py_ssize_t header_count, header_size, size;
} draft;

static inline uint64_t zigzag(int64_t number) { return ((uint64_t)number << 1) ^ (uint64_t)(number >> 63); }

static inline int number_size(int64_t number)
{
    int size = 1;
    for (uint64_t rest = zigzag(number); rest > 0x7F; rest >>= 7)
        size++;
    return size;
}

static inline uint8_t *put_number(uint8_t *p, int64_t number)
{
    uint64_t rest = zigzag(number);
    while (rest > 0x7F) {
        *p++ = (uint8_t)(rest | 0x80);
        rest >>= 7;
    }
    *p++ = (uint8_t)rest;
    return p;
}

static inline uint8_t *put_slice(uint8_t *p, const slice *from)
{
    p = put_number(p, from->size);
    if (from->size > 0) {
        memcpy(p, from->data, from->size);
        p += from->size;
    }
    return p;
}

static inline Py_ssize_t slice_size(const slice *from)
{
    return number_size(from->size) + (from->size > 0 ? from->size : 0);
}

static int open_bytes(PyObject *from, slice *out)
{
    if (from == Py_None) {
        out->data = NULL;
        out->size = -1;
        return 0;
    }
    if (!PyBytes_CheckExact(from)) {
        PyErr_Format(PyExc_TypeError, "a %s where bytes or None must be", Py_TYPE(from)->tp_name);
        return -1;
    }
    out->data = (const uint8_t *)PyBytes_AS_STRING(from);
    out->size = PyBytes_GET_SIZE(from);
    return 0;
}

/* A header's bytes. The UTF-8 form of a str is cached in it, so the second call cannot fail. */
static int open_header(PyObject *pair, slice *key, slice *value)
{
    if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2 || !PyUnicode_Check(PyTuple_GET_ITEM(pair, 0))) {
        PyErr_SetString(PyExc_TypeError, "headers must be tuples of a str and bytes or None");
        return -1;
    }
    key->data = (const uint8_t *)PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(pair, 0), &key->size);
    return key->data == NULL ? -1 : open_bytes(PyTuple_GET_ITEM(pair, 1), value);
}

static int open_draft(PyObject *from, int64_t now, draft *out)
{
    if (!PyTuple_Check(from) || PyTuple_GET_SIZE(from) != 5) {
        PyErr_Format(PyExc_TypeError, "a %s where a Record must be", Py_TYPE(from)->tp_name);
        return -1;
    }
    if (open_bytes(PyTuple_GET_ITEM(from, 0), &out->value) < 0 ||
        open_bytes(PyTuple_GET_ITEM(from, 1), &out->key) < 0)
        return -1;
    PyObject *headers = PyTuple_GET_ITEM(from, 2);
    if (PyTuple_CheckExact(headers)) {
        out->headers = headers;
        out->header_count = PyTuple_GET_SIZE(headers);
    }
    else {
        int some = PyObject_IsTrue(headers); /* None and an empty list are no headers either */
        if (some > 0)
            PyErr_SetString(PyExc_TypeError, "headers must be a tuple");
        if (some)
            return -1;
        out->header_count = 0;
    }
    out->header_size = number_size(out->header_count);
    for (Py_ssize_t n = 0; n < out->header_count; n++) {
        slice key, value;
        if (open_header(PyTuple_GET_ITEM(headers, n), &key, &value) < 0)
            return -1;
        out->header_size += slice_size(&key) + slice_size(&value);
    }
    PyObject *stamp = PyTuple_GET_ITEM(from, 3);
    if (stamp == Py_None)
        out->timestamp = now;
    else if (!PyLong_CheckExact(stamp)) {
        PyErr_Format(PyExc_TypeError, "a %s where a timestamp must be", Py_TYPE(stamp)->tp_name);
        return -1;
    }
    else {
        out->timestamp = PyLong_AsLongLong(stamp);
        if (out->timestamp == -1 && PyErr_Occurred())
            return -1;
    }
    if (out->timestamp < MIN_TIMESTAMP_MS || out->timestamp > MAX_TIMESTAMP_MS) {
        PyErr_Format(PyExc_ValueError, "a timestamp of %lld ms", (long long)out->timestamp);
        return -1;
    }
    return 0;
}

static void put_drafts(uint8_t *p, const draft *drafts, Py_ssize_t count)
{
    for (Py_ssize_t n = 0; n < count; n++) {
        const draft *one = &drafts[n];
        p = put_number(p, one->size);
        *p++ = 0; /* attributes */
        p = put_number(p, one->timestamp);
        p = put_number(p, n);
        p = put_slice(p, &one->key);
        p = put_slice(p, &one->value);
        p = put_number(p, one->header_count);
        for (Py_ssize_t h = 0; h < one->header_count; h++) {
            PyObject *pair = PyTuple_GET_ITEM(one->headers, h);
            PyObject *content = PyTuple_GET_ITEM(pair, 1);
            slice key, value = {NULL, -1};
            key.data = (const uint8_t *)PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(pair, 0), &key.size);
            if (content != Py_None)
                value = (slice){(const uint8_t *)PyBytes_AS_STRING(content), PyBytes_GET_SIZE(content)};
            p = put_slice(put_slice(p, &key), &value);
        }
    }
}

static PyObject *speed_encode(PyObject *module, PyObject *args)
{
    PyObject *sequence, *result = NULL, *data = NULL;
    long long now;
    if (!PyArg_ParseTuple(args, "OL", &sequence, &now))
        return NULL;
    PyObject *records = PySequence_Tuple(sequence);
    if (records == NULL)
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(records), total = 0;
    draft few[8], *drafts = count <= 8 ? few : PyMem_Malloc(count * sizeof(draft));
    int64_t base = 0, low = INT64_MAX, high = INT64_MIN;
    int headers = 0;
    if (drafts == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (count == 0) {
        PyErr_SetString(PyExc_ValueError, "no records");
        goto done;
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        draft *one = &drafts[n];
        if (open_draft(PyTuple_GET_ITEM(records, n), now, one) < 0)
            goto done;
        low = one->timestamp < low ? one->timestamp : low;
        high = one->timestamp > high ? one->timestamp : high;
        base = n ? base : one->timestamp;
        one->timestamp -= base;
        headers |= one->header_count > 0;
        one->size = 1 + number_size(one->timestamp) + number_size(n) + slice_size(&one->key) +
                    slice_size(&one->value) + one->header_size;
        if (one->size > INT32_MAX || (total += number_size(one->size) + one->size) > PY_SSIZE_T_MAX / 2) {
            PyErr_SetString(PyExc_ValueError, "a record of more than 2 GiB");
            goto done;
        }
    }
    data = PyBytes_FromStringAndSize(NULL, total);
    if (data == NULL)
        goto done;
    /* Header strings are Python's to hand out; without any, this is copying and nothing else. */
    PyThreadState *state = total >= RELEASE_GIL_FROM && !headers ? PyEval_SaveThread() : NULL;
    put_drafts((uint8_t *)PyBytes_AS_STRING(data), drafts, count);
    if (state)
        PyEval_RestoreThread(state);
    result = Py_BuildValue("OLLL", data, (long long)base, (long long)low, (long long)high);
done:
    Py_XDECREF(data);
    if (drafts != few)
        PyMem_Free(drafts);
    Py_DECREF(records);
    return result;
}

/* ---- measuring what a caller hands in ---- */

/* The bytes of something that is exactly `bytes` or None; -1 for anything else. */
static inline Py_ssize_t plain_size(PyObject *from)
{
    if (from == Py_None)
        return 0;
    return PyBytes_CheckExact(from) ? PyBytes_GET_SIZE(from) : -1;
}

/* The most that a record takes in a batch; -1 if it is not plain: exactly a Record of the types that it is stored with. */
static Py_ssize_t plain_record_size(PyObject *from)
{
    if (Py_TYPE(from) != RecordType || PyTuple_GET_SIZE(from) != 5)
        return -1;
    Py_ssize_t value = plain_size(PyTuple_GET_ITEM(from, 0)), key = plain_size(PyTuple_GET_ITEM(from, 1));
    PyObject *headers = PyTuple_GET_ITEM(from, 2), *stamp = PyTuple_GET_ITEM(from, 3);
    if (value < 0 || key < 0 || !PyTuple_CheckExact(headers))
        return -1;
    if (stamp != Py_None) {
        int overflow;
        int64_t ms = PyLong_CheckExact(stamp) ? PyLong_AsLongLongAndOverflow(stamp, &overflow) : -1;
        if (ms < 0 || ms > MAX_TIMESTAMP_MS) /* an overflow is -1, too */
            return -1;
    }
    Py_ssize_t size = RECORD_OVERHEAD + value + key;
    for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(headers); n++) {
        PyObject *pair = PyTuple_GET_ITEM(headers, n);
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2)
            return -1;
        PyObject *name = PyTuple_GET_ITEM(pair, 0);
        Py_ssize_t content = plain_size(PyTuple_GET_ITEM(pair, 1));
        if (content < 0 || !PyUnicode_CheckExact(name) || !PyUnicode_IS_COMPACT_ASCII(name))
            return -1;
        size += HEADER_OVERHEAD + PyUnicode_GET_LENGTH(name) + content;
    }
    return size;
}

static PyObject *speed_cut(PyObject *module, PyObject *args)
{
    PyObject *records;
    Py_ssize_t limit, charged = 0;
    if (!PyArg_ParseTuple(args, "O!n", &PyList_Type, &records, &limit))
        return NULL;
    PyObject *cuts = PyList_New(0);
    for (Py_ssize_t n = 0; cuts != NULL && n <= PyList_GET_SIZE(records); n++) {
        int is_end = n == PyList_GET_SIZE(records);
        Py_ssize_t size = is_end ? 0 : plain_record_size(PyList_GET_ITEM(records, n));
        if (size < 0 || size > limit) {
            Py_DECREF(cuts);
            Py_RETURN_NONE;
        }
        if (is_end || charged + size > limit) {
            PyObject *cut = Py_BuildValue("nn", n, charged);
            if (cut == NULL || PyList_Append(cuts, cut) < 0)
                Py_CLEAR(cuts);
            Py_XDECREF(cut);
            charged = 0;
        }
        charged += size;
    }
    return cuts;
}

/* A record like `from`, which has no timestamp, with this one. */
static PyObject *stamped_record(PyObject *from, PyObject *stamp)
{
    PyObject *made = RecordType->tp_alloc(RecordType, 5);
    if (made == NULL)
        return NULL;
    PyObject *value = PyTuple_GET_ITEM(from, 0), *key = PyTuple_GET_ITEM(from, 1), *headers = PyTuple_GET_ITEM(from, 2);
    PyTuple_SET_ITEM(made, 0, Py_NewRef(value));
    PyTuple_SET_ITEM(made, 1, Py_NewRef(key));
    PyTuple_SET_ITEM(made, 2, Py_NewRef(headers));
    PyTuple_SET_ITEM(made, 3, Py_NewRef(stamp));
    PyTuple_SET_ITEM(made, 4, Py_NewRef(Py_None));
    /* As in speed_records: no part of a cycle, so nothing for the collector. */
    if (PyTuple_CheckExact(headers) && !PyTuple_GET_SIZE(headers) && plain_size(value) >= 0 && plain_size(key) >= 0)
        PyObject_GC_UnTrack(made);
    return made;
}

static PyObject *speed_stamp(PyObject *module, PyObject *args)
{
    PyObject *records, *now;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &records, &PyLong_Type, &now))
        return NULL;
    Py_ssize_t count = PyList_GET_SIZE(records);
    PyObject *found = PyList_New(count), *newest = NULL; /* borrowed */
    for (Py_ssize_t n = 0; found != NULL && n < count; n++) {
        PyObject *from = PyList_GET_ITEM(records, n);
        if (!PyObject_TypeCheck(from, RecordType) || PyTuple_GET_SIZE(from) != 5) {
            Py_DECREF(found);
            return PyErr_Format(PyExc_TypeError, "a Record is needed, not %s", Py_TYPE(from)->tp_name);
        }
        PyObject *stamp = PyTuple_GET_ITEM(from, 3);
        PyObject *made = stamp == Py_None ? stamped_record(from, now) : Py_NewRef(from);
        stamp = stamp == Py_None ? now : stamp;
        int is_newer = newest == NULL ? 1 : stamp == newest ? 0 : PyObject_RichCompareBool(stamp, newest, Py_GT);
        if (made == NULL || is_newer < 0) {
            Py_XDECREF(made);
            Py_CLEAR(found);
            break;
        }
        newest = is_newer ? stamp : newest;
        PyList_SET_ITEM(found, n, made);
    }
    if (found == NULL)
        return NULL;
    return Py_BuildValue("NO", found, newest == NULL ? now : newest);
}

/* ---- compaction by key ---- */

/* The next record of a batch that covers `span` offsets: their deltas are 0, 1, 2 and so on if it has as many records,
 * else they grow. `before` is the delta of the record before it, -1 before the first. */
static inline reason read_kept_record(const uint8_t **at, const area *from, Py_ssize_t index, int64_t span,
                                      int64_t *before, record *out)
{
    int is_dense = span == from->count;
    reason why = read_record(at, from->data + from->size, is_dense ? index : ANY_DELTA, out);
    if (why)
        return why;
    int64_t delta = signed_number(out->offset_delta);
    if (delta <= *before || delta >= span)
        return "offset deltas do not grow, or reach past the batch";
    *before = delta;
    return NULL;
}

#define HAS_KEY 1
#define IS_TOMBSTONE 2
#define PIECE 2

typedef struct {
    area *areas;
    const int64_t *spans;
    Py_ssize_t count, factor_count, longest; /* bytes of the longest key */
    const uint64_t *factors;                 /* pairs */
    int64_t *deltas;
    uint8_t *flags;
    uint64_t *one, *two;
    Py_ssize_t failed_at;
} keying;

static inline void hash_key(const slice *key, const uint64_t *factors, uint64_t *one, uint64_t *two)
{
    uint64_t a = (uint64_t)key->size * factors[0], b = (uint64_t)key->size * factors[1];
    const uint8_t *p = key->data, *end = p + key->size;
    for (factors += 2; end - p >= PIECE; p += PIECE, factors += 2) {
        uint64_t piece = p[0] | (uint64_t)p[1] << 8;
        a += piece * factors[0];
        b += piece * factors[1];
    }
    if (p < end) {
        a += *p * factors[0];
        b += *p * factors[1];
    }
    *one = a;
    *two = b;
}

static reason key_rows(keying *to)
{
    Py_ssize_t row = 0;
    for (Py_ssize_t n = 0; n < to->count; n++) {
        const area *from = &to->areas[n];
        const uint8_t *at = from->data;
        int64_t before = -1;
        for (Py_ssize_t index = 0; index < from->count; index++, row++) {
            record one;
            reason why = read_kept_record(&at, from, index, to->spans[n], &before, &one);
            if (why) {
                to->failed_at = at - from->data;
                return why;
            }
            to->deltas[row] = before;
            to->flags[row] = (one.key.size >= 0 ? HAS_KEY : 0) | (one.value.size < 0 ? IS_TOMBSTONE : 0);
            to->one[row] = to->two[row] = 0;
            if (one.key.size > to->longest)
                to->longest = one.key.size;
            if (one.key.size >= 0 && (one.key.size + PIECE - 1) / PIECE < to->factor_count)
                hash_key(&one.key, to->factors, &to->one[row], &to->two[row]);
        }
        if (at != from->data + from->size) {
            to->failed_at = at - from->data;
            return "bytes after the last record";
        }
    }
    return NULL;
}

static PyObject *speed_keys(PyObject *module, PyObject *args)
{
    PyObject *sequence, *numbers, *result = NULL, *parts[4] = {NULL};
    Py_buffer factors;
    keying to = {0};
    int64_t *spans = NULL;
    if (!PyArg_ParseTuple(args, "OOy*", &sequence, &numbers, &factors))
        return NULL;
    PyObject *sources = PySequence_Tuple(sequence), *of_spans = sources ? PySequence_Tuple(numbers) : NULL;
    if (of_spans == NULL)
        goto done;
    Py_ssize_t areas = PyTuple_GET_SIZE(sources), records = 0, total = 0;
    if (PyTuple_GET_SIZE(of_spans) != areas || (uintptr_t)factors.buf % sizeof(uint64_t)) {
        PyErr_SetString(PyExc_ValueError, "a span for each area is needed, and factors that are aligned");
        goto done;
    }
    to.factors = factors.buf;
    to.factor_count = factors.len / (2 * (Py_ssize_t)sizeof(uint64_t));
    to.areas = PyMem_Calloc(areas ? areas : 1, sizeof(area));
    to.spans = spans = PyMem_Calloc(areas ? areas : 1, sizeof(int64_t));
    if (to.areas == NULL || spans == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; to.count < areas; to.count++) {
        spans[to.count] = PyLong_AsLongLong(PyTuple_GET_ITEM(of_spans, to.count));
        if ((spans[to.count] == -1 && PyErr_Occurred()) ||
            open_area(PyTuple_GET_ITEM(sources, to.count), &to.areas[to.count]) < 0)
            goto done;
        records += to.areas[to.count].count;
        total += to.areas[to.count].size;
    }
    for (int n = 0; n < 4; n++) /* deltas, flags, one, two */
        if ((parts[n] = PyBytes_FromStringAndSize(NULL, records * (n == 1 ? 1 : 8))) == NULL)
            goto done;
    to.deltas = (int64_t *)PyBytes_AS_STRING(parts[0]);
    to.flags = (uint8_t *)PyBytes_AS_STRING(parts[1]);
    to.one = (uint64_t *)PyBytes_AS_STRING(parts[2]);
    to.two = (uint64_t *)PyBytes_AS_STRING(parts[3]);
    PyThreadState *state = total >= RELEASE_GIL_FROM ? PyEval_SaveThread() : NULL;
    reason why = key_rows(&to);
    if (state)
        PyEval_RestoreThread(state);
    if (why)
        refuse(why, to.failed_at);
    else
        result = Py_BuildValue("OOOOn", parts[0], parts[1], parts[2], parts[3], to.longest);
done:
    for (int n = 0; n < 4; n++)
        Py_XDECREF(parts[n]);
    for (Py_ssize_t n = 0; n < to.count; n++)
        close_area(&to.areas[n]);
    PyMem_Free(to.areas);
    PyMem_Free(spans);
    Py_XDECREF(sources);
    Py_XDECREF(of_spans);
    PyBuffer_Release(&factors);
    return result;
}

typedef struct {
    int64_t low, high;
    Py_ssize_t size;
    const uint8_t *at;
} picking;

/* Neighbours that stay are copied in one piece. */
static reason pick_records(const area *from, int64_t span, const uint8_t *keep, uint8_t *to, picking *out)
{
    const uint8_t *run = NULL;
    int64_t before = -1;
    out->low = INT64_MAX;
    out->high = INT64_MIN;
    for (Py_ssize_t index = 0; index < from->count; index++) {
        const uint8_t *start = out->at;
        record one;
        int64_t stamp;
        reason why = read_kept_record(&out->at, from, index, span, &before, &one);
        if (why || (why = timestamp_of(from, &one, &stamp)))
            return why;
        if (keep[index]) {
            run = run ? run : start;
            out->low = stamp < out->low ? stamp : out->low;
            out->high = stamp > out->high ? stamp : out->high;
        }
        else if (run) {
            memcpy(to + out->size, run, start - run);
            out->size += start - run;
            run = NULL;
        }
    }
    if (out->at != from->data + from->size)
        return "bytes after the last record";
    if (run) {
        memcpy(to + out->size, run, out->at - run);
        out->size += out->at - run;
    }
    return NULL;
}

static PyObject *speed_pick(PyObject *module, PyObject *args)
{
    PyObject *source, *data = NULL, *result = NULL;
    long long span;
    Py_buffer keep;
    area from;
    if (!PyArg_ParseTuple(args, "OLy*", &source, &span, &keep))
        return NULL;
    if (open_area(source, &from) < 0) {
        PyBuffer_Release(&keep);
        return NULL;
    }
    picking out = {.at = from.data};
    if (keep.len != from.count)
        PyErr_SetString(PyExc_ValueError, "a byte for each record is needed");
    else if ((data = PyBytes_FromStringAndSize(NULL, from.size)) != NULL) {
        PyThreadState *state = from.size >= RELEASE_GIL_FROM ? PyEval_SaveThread() : NULL;
        reason why = pick_records(&from, span, keep.buf, (uint8_t *)PyBytes_AS_STRING(data), &out);
        if (state)
            PyEval_RestoreThread(state);
        if (why)
            refuse(why, out.at - from.data);
        else if (out.size == 0)
            PyErr_SetString(PyExc_ValueError, "no record stays");
        else if (_PyBytes_Resize(&data, out.size) == 0)
            result = Py_BuildValue("OLL", data, (long long)out.low, (long long)out.high);
    }
    Py_XDECREF(data);
    close_area(&from);
    PyBuffer_Release(&keep);
    return result;
}

/* A table of keys' hashes and the last offset of each, one more than it: 0 is an empty slot. Looked for from the slot that the
 * hash's upper bits name on, up to the first empty one. (The lower bits of such a sum say little of the key's upper ones.) */
typedef struct {
    uint64_t one, two, offset;
} slot;

typedef struct {
    Py_buffer table, one, two, offsets; /* offsets: only of `remember` */
    slot *slots;
    Py_ssize_t rows;
    uint64_t mask;
    int shift;
} lookup;

#define AHEAD 16
#ifndef __GNUC__
#define __builtin_prefetch(place) ((void)0)
#endif

static void close_lookup(lookup *in)
{
    PyBuffer_Release(&in->table);
    PyBuffer_Release(&in->one);
    PyBuffer_Release(&in->two);
    if (in->offsets.obj)
        PyBuffer_Release(&in->offsets);
}

static int open_lookup(PyObject *args, lookup *in, int with_offsets)
{
    memset(in, 0, sizeof *in);
    if (with_offsets ? !PyArg_ParseTuple(args, "w*y*y*y*", &in->table, &in->one, &in->two, &in->offsets)
                     : !PyArg_ParseTuple(args, "y*y*y*", &in->table, &in->one, &in->two))
        return -1;
    Py_ssize_t size = in->table.len / (Py_ssize_t)sizeof(slot);
    in->slots = in->table.buf;
    in->rows = in->one.len / 8;
    in->mask = (uint64_t)size - 1;
    for (in->shift = 64; (UINT64_C(1) << (64 - in->shift)) < (uint64_t)size; in->shift--)
        ;
    uintptr_t places = (uintptr_t)in->table.buf | (uintptr_t)in->one.buf | (uintptr_t)in->two.buf;
    if (size < 2 || size & (size - 1) || in->two.len != in->one.len || places % 8 ||
        (with_offsets && (in->offsets.len != in->one.len || (uintptr_t)in->offsets.buf % 8))) {
        close_lookup(in);
        PyErr_SetString(PyExc_ValueError, "a table of 2, 4, 8 … slots is needed, and columns of the same length");
        return -1;
    }
    return 0;
}

/* Where the key is, or the empty slot where it would be; NULL if it is not there and the table is full. */
static inline slot *find_slot(const lookup *in, Py_ssize_t row)
{
    const uint64_t *one = in->one.buf, *two = in->two.buf;
    if (row + AHEAD < in->rows)
        __builtin_prefetch(&in->slots[one[row + AHEAD] >> in->shift]);
    uint64_t at = one[row] >> in->shift;
    for (uint64_t tried = 0; tried <= in->mask; tried++, at = (at + 1) & in->mask) {
        slot *here = &in->slots[at];
        if (here->offset == 0 || (here->one == one[row] && here->two == two[row]))
            return here;
    }
    return NULL;
}

static PyObject *speed_remember(PyObject *module, PyObject *args)
{
    lookup in;
    if (open_lookup(args, &in, 1) < 0)
        return NULL;
    const uint64_t *one = in.one.buf, *two = in.two.buf, *offsets = in.offsets.buf;
    Py_ssize_t added = 0, row = 0;
    for (; row < in.rows; row++) {
        slot *here = find_slot(&in, row);
        if (here == NULL)
            break;
        if (here->offset == 0) {
            here->one = one[row];
            here->two = two[row];
            added++;
        }
        if (here->offset <= offsets[row])
            here->offset = offsets[row] + 1;
    }
    int is_full = row < in.rows;
    close_lookup(&in);
    if (is_full)
        return PyErr_Format(PyExc_ValueError, "the table is full");
    return PyLong_FromSsize_t(added);
}

static PyObject *speed_recall(PyObject *module, PyObject *args)
{
    lookup in;
    if (open_lookup(args, &in, 0) < 0)
        return NULL;
    PyObject *found = PyBytes_FromStringAndSize(NULL, in.rows * 8);
    int64_t *offsets = found ? (int64_t *)PyBytes_AS_STRING(found) : NULL;
    for (Py_ssize_t row = 0; found && row < in.rows; row++) {
        const slot *here = find_slot(&in, row);
        offsets[row] = here == NULL ? -1 : (int64_t)here->offset - 1;
    }
    close_lookup(&in);
    return found;
}

/* ---- murmur2 ---- */

static PyObject *speed_murmur2(PyObject *module, PyObject *key)
{
    if (!PyBytes_Check(key))
        return PyErr_Format(PyExc_TypeError, "a key is bytes, not %s", Py_TYPE(key)->tp_name);
    const uint8_t *p = (const uint8_t *)PyBytes_AS_STRING(key);
    size_t size = (size_t)PyBytes_GET_SIZE(key), left = size;
    const uint32_t m = 0x5BD1E995;
    uint32_t h = 0x9747B28C ^ (uint32_t)size;
    for (; left >= 4; p += 4, left -= 4) {
        uint32_t k = (p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24) * m;
        h = h * m ^ (k ^ k >> 24) * m;
    }
    if (left) {
        for (size_t n = 0; n < left; n++)
            h ^= (uint32_t)p[n] << (8 * n);
        h *= m;
    }
    h = (h ^ h >> 13) * m;
    h ^= h >> 15;
    return PyLong_FromLong((int32_t)h);
}

static PyMethodDef methods[] = {
    {"check", speed_check, METH_O, NULL},
    {"records", speed_records, METH_VARARGS, NULL},
    {"gather", speed_gather, METH_VARARGS, NULL},
    {"encode", speed_encode, METH_VARARGS, NULL},
    {"cut", speed_cut, METH_VARARGS, NULL},
    {"stamp", speed_stamp, METH_VARARGS, NULL},
    {"keys", speed_keys, METH_VARARGS, NULL},
    {"pick", speed_pick, METH_VARARGS, NULL},
    {"remember", speed_remember, METH_VARARGS, NULL},
    {"recall", speed_recall, METH_VARARGS, NULL},
    {"murmur2", speed_murmur2, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "logstore.format._speed", "The C kernels of logstore.format.kernels.", -1, methods,
};

static PyObject *named(const char *module, const char *name)
{
    PyObject *found = PyImport_ImportModule(module);
    PyObject *object = found == NULL ? NULL : PyObject_GetAttrString(found, name);
    Py_XDECREF(found);
    return object;
}

PyMODINIT_FUNC PyInit__speed(void)
{
    FormatError = named("logstore.format.errors", "FormatError");
    RecordType = (PyTypeObject *)(FormatError == NULL ? NULL : named("logstore.format.batches.record", "Record"));
    return RecordType == NULL ? NULL : PyModule_Create(&definition);
}
