/* The C API of et_cffi: run an ExecuTorch program with plain memory.
 *
 * include/et_cffi.h is generated from csrc/et_cffi.h.in by `python build_ffi.py`; edit that file, not
 * this one. Below the tables, everything is read by a C or C++ compiler and by cffi's parser alike.
 *
 * Rules for every function:
 *  - It returns an etcffi_status: 0, or the reason it did nothing. etcffi_last_message() then says why
 *    in words, and etcffi_last_log() gives the runtime's own lines; both are of the calling thread.
 *  - No C++ exception leaves it, and a failed check inside the runtime comes out as ETCFFI_Aborted.
 *  - Out-parameters come last and are written only on success.
 *  - Handles are reference counted. A function that hands one out gives the caller one reference, and
 *    whatever a handle needs (a method its program, a tensor its block) it holds itself, so handles may
 *    be released in any order. Release functions take NULL, and may be called from any thread.
 *  - A program may be used by any number of threads at once. A method is used by one at a time: a second
 *    one gets ETCFFI_Busy.
 */
#ifndef ET_CFFI_H
#define ET_CFFI_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ETCFFI_API __attribute__((visibility("default")))

/* -- begin: read by cffi ------------------------------------------------------------------------- */

/* The runtime's enumerations, from the headers of ExecuTorch 1.5.1. */
enum {
  ETCFFI_ScalarType_Byte = 0,
  ETCFFI_ScalarType_Char = 1,
  ETCFFI_ScalarType_Short = 2,
  ETCFFI_ScalarType_Int = 3,
  ETCFFI_ScalarType_Long = 4,
  ETCFFI_ScalarType_Half = 5,
  ETCFFI_ScalarType_Float = 6,
  ETCFFI_ScalarType_Double = 7,
  ETCFFI_ScalarType_ComplexHalf = 8,
  ETCFFI_ScalarType_ComplexFloat = 9,
  ETCFFI_ScalarType_ComplexDouble = 10,
  ETCFFI_ScalarType_Bool = 11,
  ETCFFI_ScalarType_QInt8 = 12,
  ETCFFI_ScalarType_QUInt8 = 13,
  ETCFFI_ScalarType_QInt32 = 14,
  ETCFFI_ScalarType_BFloat16 = 15,
  ETCFFI_ScalarType_QUInt4x2 = 16,
  ETCFFI_ScalarType_QUInt2x4 = 17,
  ETCFFI_ScalarType_Bits1x8 = 18,
  ETCFFI_ScalarType_Bits2x4 = 19,
  ETCFFI_ScalarType_Bits4x2 = 20,
  ETCFFI_ScalarType_Bits8 = 21,
  ETCFFI_ScalarType_Bits16 = 22,
  ETCFFI_ScalarType_Float8_e5m2 = 23,
  ETCFFI_ScalarType_Float8_e4m3fn = 24,
  ETCFFI_ScalarType_Float8_e5m2fnuz = 25,
  ETCFFI_ScalarType_Float8_e4m3fnuz = 26,
  ETCFFI_ScalarType_UInt16 = 27,
  ETCFFI_ScalarType_UInt32 = 28,
  ETCFFI_ScalarType_UInt64 = 29,
  ETCFFI_ScalarType_Undefined = 30
};
enum {
  ETCFFI_Error_Ok = 0,
  ETCFFI_Error_Internal = 1,
  ETCFFI_Error_InvalidState = 2,
  ETCFFI_Error_EndOfMethod = 3,
  ETCFFI_Error_AlreadyLoaded = 4,
  ETCFFI_Error_NotSupported = 16,
  ETCFFI_Error_NotImplemented = 17,
  ETCFFI_Error_InvalidArgument = 18,
  ETCFFI_Error_InvalidType = 19,
  ETCFFI_Error_OperatorMissing = 20,
  ETCFFI_Error_RegistrationExceedingMaxKernels = 21,
  ETCFFI_Error_RegistrationAlreadyRegistered = 22,
  ETCFFI_Error_NotFound = 32,
  ETCFFI_Error_MemoryAllocationFailed = 33,
  ETCFFI_Error_AccessFailed = 34,
  ETCFFI_Error_InvalidProgram = 35,
  ETCFFI_Error_InvalidExternalData = 36,
  ETCFFI_Error_OutOfResources = 37,
  ETCFFI_Error_DelegateInvalidCompatibility = 48,
  ETCFFI_Error_DelegateMemoryAllocationFailed = 49,
  ETCFFI_Error_DelegateInvalidHandle = 50
};
enum {
  ETCFFI_Tag_None = 0,
  ETCFFI_Tag_Tensor = 1,
  ETCFFI_Tag_String = 2,
  ETCFFI_Tag_Double = 3,
  ETCFFI_Tag_Int = 4,
  ETCFFI_Tag_Bool = 5,
  ETCFFI_Tag_ListBool = 6,
  ETCFFI_Tag_ListDouble = 7,
  ETCFFI_Tag_ListInt = 8,
  ETCFFI_Tag_ListTensor = 9,
  ETCFFI_Tag_ListScalar = 10,
  ETCFFI_Tag_ListOptionalTensor = 11
};
enum {
  ETCFFI_DeviceType_CPU = 0,
  ETCFFI_DeviceType_CUDA = 1
};
/* End of the runtime's enumerations. */

/* What a function answers: 0, a code of the runtime (executorch::runtime::Error), or one of these. */
typedef int32_t etcffi_status;
enum {
  ETCFFI_Aborted = 0x1000,    /* a check inside the runtime failed, where it would have ended the process */
  ETCFFI_Exception,           /* a C++ exception */
  ETCFFI_OutOfMemory,         /* an allocation of this library failed */
  ETCFFI_BadArgument,         /* a NULL or out-of-range argument of the call itself */
  ETCFFI_BadFile,             /* not a .pte, truncated, or of another kind or version */
  ETCFFI_UnknownMethod,       /* the program has no method of that name */
  ETCFFI_MissingOperator,     /* no kernel for an operator that the method uses */
  ETCFFI_MissingBackend,      /* a delegate whose backend is not registered */
  ETCFFI_BadCount,            /* another number of inputs than the method takes */
  ETCFFI_BadKind,             /* a tensor where a scalar is wanted, an int for a bool, ... */
  ETCFFI_BadDtype,            /* another scalar type than the method was exported with */
  ETCFFI_BadShape,            /* another rank or shape, or one the runtime cannot hold */
  ETCFFI_BadLayout,           /* strides other than the dim order the method was exported with */
  ETCFFI_BadDevice,           /* memory where the method, or the host, cannot read it */
  ETCFFI_NoMemory,            /* elements but no address, or fewer bytes than the elements need */
  ETCFFI_InputsIncomplete,    /* a call that set inputs was refused, or none was made */
  ETCFFI_NotExecuted,         /* outputs asked for before the method ran with these inputs */
  ETCFFI_Busy,                /* another thread is using the method */
  ETCFFI_MethodBroken,        /* the method aborted once and does not run again */
  ETCFFI_BadData,             /* not a .ptd, truncated, damaged, or a name that two of them have */
  ETCFFI_MissingData,         /* the method's weights are outside of the program, and were not given */
  ETCFFI_BadLibrary,          /* a shared library that cannot be loaded */
  ETCFFI_AlreadyRegistered    /* a library whose kernels or backend another one has registered */
};

/* One row of the table of scalar types. */
typedef struct etcffi_dtype {
  const char *name;    /* as numpy and torch spell it: "float32" */
  int32_t itemsize;    /* bytes of one element */
  const char *format;  /* the buffer protocol's code; "" where it has none */
  int32_t dl_code;     /* DLPack's type code, -1 where it has none */
  int32_t dl_bits;
} etcffi_dtype;

/* How many dimensions the runtime can describe (executorch::runtime::kTensorDimensionLimit). */
enum { ETCFFI_MAX_DIM = 16 };

/* Program verification: executorch::runtime::Program::Verification. */
enum { ETCFFI_Verification_Minimal = 0, ETCFFI_Verification_InternalConsistency = 1 };

/* Where memory is. */
typedef struct etcffi_device {
  int32_t type;  /* ETCFFI_DeviceType_... */
  int32_t index;
} etcffi_device;

/* What a description of memory may promise. */
enum {
  /* The memory stays where it is, and may be written, until the input is replaced or the method is
     gone. Without it the memory is read during the call only. */
  ETCFFI_PINNED = 1,
  /* Nobody may write to the memory, so no kernel is given it. Memory in a device block of this library is
     otherwise used where it is, PINNED or not. */
  ETCFFI_READ_ONLY = 2
};

/* A description of some memory: the one form in which every input and every result is known. */
typedef struct etcffi_memory {
  void *data;           /* the first element */
  size_t nbytes;        /* bytes that may be read from data on, which may be more than the elements */
  int32_t scalar_type;  /* ETCFFI_ScalarType_... */
  int32_t ndim;
  etcffi_device device;
  uint32_t flags;       /* ETCFFI_PINNED, ETCFFI_READ_ONLY */
  int32_t has_strides;  /* 0: the memory states no layout, and has the one the method wants */
  int64_t sizes[16];    /* ndim of them */
  int64_t strides[16];  /* ndim of them, in elements */
} etcffi_memory;

typedef struct etcffi_program etcffi_program;
typedef struct etcffi_method etcffi_method;
typedef struct etcffi_block etcffi_block;
typedef struct etcffi_tensor etcffi_tensor;
typedef struct etcffi_data_map etcffi_data_map;
typedef struct etcffi_event_tracer etcffi_event_tracer;

/* One input or output: a tag (ETCFFI_Tag_...) and the member that belongs to it. */
typedef struct etcffi_value {
  int32_t tag;
  int32_t pointed_at;     /* set by etcffi_method_set_inputs: the runtime reads memory.data when it runs */
  int64_t as_int;         /* Int, Bool */
  double as_double;       /* Double */
  const char *as_string;  /* String; an output's lives as long as the method */
  size_t size;            /* String: its length; ListTensor, ListOptionalTensor: how many items */
  etcffi_memory memory;   /* Tensor, as an input */
  /* As an output, a reference for the caller to release. Tensor: the result. ListInt, ListBool and
     ListDouble: the items, as a tensor of one dimension. Lists of tensors: what `items` is kept in. */
  etcffi_tensor *tensor;
  struct etcffi_value *items; /* lists of tensors, as an output: each a Tensor or None, to be released */
} etcffi_value;

/* What a method's metadata says of one input, output or attribute. */
typedef struct etcffi_tensor_info {
  const char *name;  /* not terminated; name_size bytes; may be empty */
  size_t name_size;
  size_t nbytes;     /* at the sizes given */
  int32_t scalar_type;
  int32_t ndim;
  int32_t is_memory_planned;
  int32_t is_dynamic; /* sizes are upper bounds */
  etcffi_device device;
  int32_t sizes[16];
  uint8_t dim_order[16];
} etcffi_tensor_info;

/* ---- errors, log lines, libraries ---------------------------------------------------------------- */

/* The words for this thread's last status that was not 0. Valid until the next call on this thread. */
ETCFFI_API const char *etcffi_last_message(void);
/* The runtime's log lines of that call, one per line, each "LEVEL file:line message"; may be empty. */
ETCFFI_API const char *etcffi_last_log(void);
/* Points at how many log lines were captured in this process, for ever; where the number has moved,
   etcffi_take_log has something. */
ETCFFI_API const uint64_t *etcffi_log_counter(void);
/* Moves the captured lines out, at most `size - 1` bytes of them, whole lines, and returns the bytes. */
ETCFFI_API size_t etcffi_take_log(char *buffer, size_t size);
/* The row of a scalar type, or NULL where the number is none. Valid for ever. */
ETCFFI_API const etcffi_dtype *etcffi_dtype_of(int32_t scalar_type);
/* The runtime's name for a status, such as "InvalidArgument". */
ETCFFI_API const char *etcffi_status_name(etcffi_status status);
/* Routes the runtime's log lines and failed checks here. Idempotent; call it before anything else. */
ETCFFI_API etcffi_status etcffi_initialize(void);

ETCFFI_API size_t etcffi_num_backends(void);
ETCFFI_API etcffi_status etcffi_backend_name(size_t index, const char **out);
ETCFFI_API int32_t etcffi_has_backend(const char *name);
/* Whether the backend is registered and says that it can run here. */
ETCFFI_API int32_t etcffi_backend_is_available(const char *name);
/* What a backend needs of an input's memory in order to read it in place: how many bytes behind the
   elements must be readable, and the address's alignment. A backend for which this was never said is
   taken to need more than any caller's memory has: its inputs are copied. Read when a method is loaded. */
ETCFFI_API etcffi_status etcffi_set_backend_needs(const char *backend, size_t padding, size_t alignment);
ETCFFI_API size_t etcffi_num_kernels(void);
ETCFFI_API etcffi_status etcffi_kernel_name(size_t index, const char **out);
ETCFFI_API int32_t etcffi_has_kernel(const char *name);
/* Loads a shared library of kernels or of a backend, which registers itself as it loads. It is tried out in a
   copy of the process first (a fork), since registering something twice ends the process: then, and where the
   library is loaded already, ETCFFI_AlreadyRegistered. */
ETCFFI_API etcffi_status etcffi_load_library(const char *path);

/* ---- files of the developer tools ------------------------------------------------------------------ */

enum { ETCFFI_FILE_ETDUMP = 0, ETCFFI_FILE_BUNDLED_PROGRAM = 1 };
/* Whether every offset and length in the file leads inside of it, so that it can be read without checking any:
   ETCFFI_BadFile where one does not, or where the file is of another kind. */
ETCFFI_API etcffi_status etcffi_verify_file(int32_t kind, const void *data, size_t nbytes);

/* ---- threads ------------------------------------------------------------------------------------- */

/* How many threads kernels and backends use, the calling one included. It begins as the number of
   processors that the runtime finds. */
ETCFFI_API etcffi_status etcffi_num_threads(size_t *out);
/* Counts for every run that begins afterwards. Waits for the loads and runs under way (in this library), and
   holds back new ones meanwhile. Refused with ETCFFI_Busy from within a run; and, for another number than 1 and
   the one that the threads were made for, while methods that delegate to a backend are loaded. */
ETCFFI_API etcffi_status etcffi_set_num_threads(size_t count);

/* ---- data outside of a program's file (.ptd) ------------------------------------------------------- */

/* An empty map from names to data. Files and buffers are added before it is used in a load. */
ETCFFI_API etcffi_status etcffi_data_map_new(etcffi_data_map **out);
/* Maps the file. */
ETCFFI_API etcffi_status etcffi_data_map_add_file(etcffi_data_map *map, const char *path);
/* Reads the data in place, unless `copy` is non-zero: the caller keeps the bytes, unchanged, until the map and
   every method loaded with it are released. `name` is what messages call it. */
ETCFFI_API etcffi_status etcffi_data_map_add_buffer(etcffi_data_map *map, const char *name, const void *data,
                                                    size_t nbytes, int32_t copy);
ETCFFI_API void etcffi_data_map_release(etcffi_data_map *map);

/* ---- tracing (ETDump) ------------------------------------------------------------------------------ */

/* Records what the methods loaded with it do. With a debug buffer of more than 0 bytes it records the results
   of every instruction too, and a run whose results do not fit fails with
   ETCFFI_OutOfMemory. Methods that share
   a tracer run one at a time; a second one waits. */
ETCFFI_API etcffi_status etcffi_event_tracer_new(size_t debug_buffer_size, etcffi_event_tracer **out);
/* Moves out the ETDump of everything since the last time, and the debug buffer (NULL where there is none), as
   tensors of bytes that the caller releases. ETCFFI_NotExecuted where nothing was recorded. */
ETCFFI_API etcffi_status etcffi_event_tracer_take(etcffi_event_tracer *tracer, etcffi_tensor **dump,
                                                  etcffi_tensor **debug);
ETCFFI_API void etcffi_event_tracer_release(etcffi_event_tracer *tracer);

/* The runtime's profiler, which the kernels and backends of a build with PROFILING_ENABLED feed (the bundled
   libraries are none): a new block; what was recorded, valid until the next of these calls; starting over. */
ETCFFI_API etcffi_status etcffi_profile_create_block(const char *name);
ETCFFI_API etcffi_status etcffi_profile_dump(const void **data, size_t *nbytes);
ETCFFI_API etcffi_status etcffi_profile_reset(void);

/* ---- programs ------------------------------------------------------------------------------------ */

/* Maps the file; its weights are read from the mapping and not copied. */
ETCFFI_API etcffi_status etcffi_program_load_file(const char *path, int32_t verification,
                                                  etcffi_program **out);
/* Reads the program in place: the caller keeps the bytes, unchanged, until the program and every method
   loaded from it are released. data must be aligned to 16 bytes, or `copy` be non-zero. */
ETCFFI_API etcffi_status etcffi_program_load_buffer(const void *data, size_t nbytes, int32_t copy,
                                                    int32_t verification, etcffi_program **out);
ETCFFI_API void etcffi_program_release(etcffi_program *program);
ETCFFI_API size_t etcffi_program_num_methods(const etcffi_program *program);
ETCFFI_API etcffi_status etcffi_program_method_name(const etcffi_program *program, size_t index,
                                                    const char **out);

/* A method's metadata, by the method's index in its program; strings live as long as the program. */
typedef struct etcffi_method_info {
  const char *name;
  size_t num_inputs;
  size_t num_outputs;
  size_t num_attributes;
  size_t num_planned_buffers;
  size_t num_backends;
  size_t num_instructions;
} etcffi_method_info;
enum { ETCFFI_INPUT = 0, ETCFFI_OUTPUT = 1, ETCFFI_ATTRIBUTE = 2 };
ETCFFI_API etcffi_status etcffi_program_method_info(const etcffi_program *program, size_t method,
                                                    etcffi_method_info *out);
/* side is ETCFFI_INPUT or ETCFFI_OUTPUT; the answer is an ETCFFI_Tag_... */
ETCFFI_API etcffi_status etcffi_program_value_tag(const etcffi_program *program, size_t method,
                                                  int32_t side, size_t index, int32_t *out);
ETCFFI_API etcffi_status etcffi_program_tensor_info(const etcffi_program *program, size_t method,
                                                    int32_t side, size_t index, etcffi_tensor_info *out);
ETCFFI_API etcffi_status etcffi_program_planned_buffer(const etcffi_program *program, size_t method,
                                                       size_t index, int64_t *nbytes,
                                                       etcffi_device *device);
ETCFFI_API etcffi_status etcffi_program_backend_name(const etcffi_program *program, size_t method,
                                                     size_t index, const char **out);

/* ---- what a program's file holds ------------------------------------------------------------------- */

/* All of it is read from the file's flatbuffer alone, so that it is there for a program whose operators and
   backends are not. Strings live as long as the program. A function with `capacity` writes at most so many items
   and answers in `count` how many there are; with a capacity of 0 it writes none, and `out` may be NULL. */
typedef struct etcffi_file_facts {
  const char *identifier; /* of the file format, such as "ET12" */
  uint32_t version;       /* of the schema */
  uint64_t flatbuffer_nbytes;
  uint64_t constants_nbytes; /* the segment of all methods' constants, with its padding */
  size_t num_segments;
} etcffi_file_facts;
ETCFFI_API etcffi_status etcffi_program_file_facts(const etcffi_program *program, etcffi_file_facts *out);

/* Some bytes of the file. Nothing was checked against the file's size. */
typedef struct etcffi_named_data {
  const char *key; /* "" for a delegate's and a tensor's */
  uint64_t offset; /* from the file's first byte */
  uint64_t nbytes;
} etcffi_named_data;
/* The data that delegates find by a key in the program's own file. */
ETCFFI_API etcffi_status etcffi_program_named_data(const etcffi_program *program, etcffi_named_data *out,
                                                   size_t capacity, size_t *count);

typedef struct etcffi_operator_facts {
  const char *name;     /* "aten::add" */
  const char *overload; /* "out", or "" */
  size_t calls;         /* how many instructions call it */
} etcffi_operator_facts;
ETCFFI_API etcffi_status etcffi_program_operators(const etcffi_program *program, size_t method,
                                                  etcffi_operator_facts *out, size_t capacity,
                                                  size_t *count);

typedef struct etcffi_delegate_facts {
  const char *backend;
  size_t calls;
  size_t num_options; /* compile specs */
  etcffi_named_data payload;
} etcffi_delegate_facts;
ETCFFI_API etcffi_status etcffi_program_delegates(const etcffi_program *program, size_t method,
                                                  etcffi_delegate_facts *out, size_t capacity,
                                                  size_t *count);

enum { ETCFFI_CONSTANT = 0, ETCFFI_INITIAL_STATE = 1, ETCFFI_EXTERNAL = 2 };
/* A tensor of a method whose values are stored: in the file (a constant, or what a buffer that the method writes
   begins with), or outside of it in a .ptd, by its name. */
typedef struct etcffi_stored_tensor {
  int32_t kind; /* ETCFFI_CONSTANT, ... */
  etcffi_named_data data; /* of an external one only nbytes */
  etcffi_tensor_info tensor;
} etcffi_stored_tensor;
ETCFFI_API etcffi_status etcffi_program_stored_tensors(const etcffi_program *program, size_t method,
                                                       etcffi_stored_tensor *out, size_t capacity,
                                                       size_t *count);

/* ---- methods ------------------------------------------------------------------------------------- */

ETCFFI_API etcffi_status etcffi_method_load(etcffi_program *program, const char *name,
                                            etcffi_method **out);

/* A place for a planned buffer. */
typedef struct etcffi_region {
  void *data; /* NULL: the library's own memory */
  size_t nbytes;
} etcffi_region;
/* How many bytes more than the planned buffer an etcffi_region holds, since a kernel may read whole vectors
   past the last element; and the alignment of its address. */
enum { ETCFFI_PLANNED_ROOM = 64, ETCFFI_PLANNED_ALIGNMENT = 16 };

enum { ETCFFI_OPTION_BOOL = 0, ETCFFI_OPTION_INT = 1, ETCFFI_OPTION_STRING = 2 };
/* An option of a backend, read while a method that delegates to it is loaded. */
typedef struct etcffi_backend_option {
  const char *backend;
  const char *key;
  int32_t kind;          /* ETCFFI_OPTION_... */
  int32_t as_int;        /* BOOL, INT */
  const char *as_string; /* STRING */
} etcffi_backend_option;

typedef struct etcffi_load_options {
  etcffi_data_map *data;       /* or NULL; the method holds it */
  etcffi_event_tracer *tracer; /* or NULL; the method holds it */
  /* NULL, or one for each planned buffer. The method zeroes each and reads and writes it until it is released;
     the caller keeps it until then. */
  const etcffi_region *planned;
  size_t num_planned;
  const etcffi_backend_option *backend_options;
  size_t num_backend_options;
} etcffi_load_options;
ETCFFI_API etcffi_status etcffi_method_load_with(etcffi_program *program, const char *name,
                                                 const etcffi_load_options *options, etcffi_method **out);
ETCFFI_API void etcffi_method_retain(etcffi_method *method);
ETCFFI_API void etcffi_method_release(etcffi_method *method);

enum { ETCFFI_OWN = 0, ETCFFI_CALLERS = 1, ETCFFI_SHARED = 2 };
/* A planned buffer of a loaded method: its own, its caller's, or shared with the program's other methods. */
typedef struct etcffi_planned_buffer {
  size_t nbytes;
  etcffi_device device;
  int32_t owner; /* ETCFFI_OWN, ... */
} etcffi_planned_buffer;
ETCFFI_API etcffi_status etcffi_method_planned_buffer(etcffi_method *method, size_t index,
                                                      etcffi_planned_buffer *out);
/* Bytes of the method's own structures, and the most that the kernels of one instruction have asked for. */
ETCFFI_API etcffi_status etcffi_method_memory(etcffi_method *method, size_t *structures,
                                              size_t *temporary_peak);

/* Checks every input, then installs them all. An input whose pointed_at comes back 1 is read when the
   method runs: the caller keeps its memory until the inputs are replaced or the method is released. All
   others were copied inside this call. After a refusal the method does not run, and gives no outputs,
   until a call has set a whole set; what the call before the refusal set must be kept until then too.
   An input that the method takes on a device may be on that device or on the host; one that it takes on
   the host is on the host. Bytes cross through the device's DeviceAllocator, and from one device block to
   another through the host. */
ETCFFI_API etcffi_status etcffi_method_set_inputs(etcffi_method *method, etcffi_value *inputs, size_t count);
/* Says that a set of inputs was refused before it got here; has the same effect as a refusal above. */
ETCFFI_API void etcffi_method_refuse_inputs(etcffi_method *method);
ETCFFI_API etcffi_status etcffi_method_execute(etcffi_method *method);
/* Writes the outputs of the last run; count is the method's number of outputs. With clone 0 an output in
   planned memory is lent out (the next run overwrites it); everything else is the caller's own. */
ETCFFI_API etcffi_status etcffi_method_get_outputs(etcffi_method *method, int32_t clone,
                                                   etcffi_value *outputs, size_t count);
/* Whether a whole set of inputs is installed: after a refusal, which ones the runtime may read. */
ETCFFI_API int32_t etcffi_method_has_inputs(const etcffi_method *method);
/* The three above in one call. An input that is pointed at has to be kept beyond it all the same, until
   the inputs are replaced: etcffi_method_execute may be called again. */
ETCFFI_API etcffi_status etcffi_method_run(etcffi_method *method, etcffi_value *inputs, size_t num_inputs,
                                           int32_t clone, etcffi_value *outputs, size_t num_outputs);
/* The same, with outputs written to their caller's memory: `into` has one value for each output, a Tensor whose
   memory (with the output's dtype, shape and layout) it is written to, or None. With inputs NULL it runs with
   those that were set. An output without planned memory is written there by its kernel where its shape is
   static and the rule of copying or pointing allows; every other is copied there after the run. In `outputs`
   one that was written is None. The memory is the caller's throughout, and used inside this call only. */
ETCFFI_API etcffi_status etcffi_method_run_into(etcffi_method *method, etcffi_value *inputs,
                                                size_t num_inputs, const etcffi_value *into, int32_t clone,
                                                etcffi_value *outputs, size_t num_outputs);
/* A tensor attribute (a named, mutable buffer of the exported module), lent out in place. */
ETCFFI_API etcffi_status etcffi_method_get_attribute(etcffi_method *method, const char *name,
                                                     etcffi_tensor **out);

/* ---- results ------------------------------------------------------------------------------------- */

ETCFFI_API void etcffi_tensor_retain(etcffi_tensor *tensor);
ETCFFI_API void etcffi_tensor_release(etcffi_tensor *tensor);
/* Valid as long as the tensor. Its nbytes are those of the elements. */
ETCFFI_API const etcffi_memory *etcffi_tensor_memory(const etcffi_tensor *tensor);
/* How many bytes may be read from the first element on: the elements, and room behind them. */
ETCFFI_API size_t etcffi_tensor_readable(const etcffi_tensor *tensor);
/* Whether the memory is a caller's planned buffer, which this tensor does not keep. */
ETCFFI_API int32_t etcffi_tensor_is_borrowed(const etcffi_tensor *tensor);

/* ---- DLPack: the structures of dlpack.h 1.x, by their canonical names ----------------------------- */

typedef struct {
  int32_t device_type;
  int32_t device_id;
} DLDevice;
typedef struct {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides;
  uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
  DLTensor dl_tensor;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
typedef struct {
  uint32_t major;
  uint32_t minor;
} DLPackVersion;
typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;
enum { ETCFFI_DLPACK_MAJOR = 1, ETCFFI_DLPACK_MINOR = 1, ETCFFI_DLPACK_READ_ONLY = 1, ETCFFI_DLPACK_IS_COPIED = 2 };

/* A managed tensor over the same memory, which it keeps alive by itself: its deleter is plain C, needs
   no interpreter and may run on any thread. A scalar type that DLPack has no name for is refused with
   ETCFFI_BadDtype. flags are those of the versioned form. */
ETCFFI_API etcffi_status etcffi_tensor_to_dlpack(etcffi_tensor *tensor, DLManagedTensor **out);
ETCFFI_API etcffi_status etcffi_tensor_to_dlpack_versioned(etcffi_tensor *tensor, uint64_t flags,
                                                           DLManagedTensorVersioned **out);
/* The scalar type and sizes, strides and address that a DLTensor states, as a description. */
ETCFFI_API etcffi_status etcffi_memory_from_dlpack(const DLTensor *tensor, etcffi_memory *out);
/* A tensor with a copy of the elements that are described, in host memory of its own. They must lie densely,
   in any order of the dimensions. */
ETCFFI_API etcffi_status etcffi_tensor_new(const etcffi_memory *memory, etcffi_tensor **out);
/* A copy in memory of its own, on the tensor's device. */
ETCFFI_API etcffi_status etcffi_tensor_clone(const etcffi_tensor *tensor, etcffi_tensor **out);
/* A copy in host memory of its own. */
ETCFFI_API etcffi_status etcffi_tensor_to_host(const etcffi_tensor *tensor, etcffi_tensor **out);
/* Returns when the work that writes to a tensor on a device is done, for a reader on another stream than the
   device's default one. A DeviceAllocator has one operation that waits for it, which is a copy to the host:
   one byte is copied. */
ETCFFI_API etcffi_status etcffi_tensor_synchronize(const etcffi_tensor *tensor);
/* Call the deleter of a managed tensor that was claimed; for ffi.gc. */
ETCFFI_API void etcffi_dlpack_release(DLManagedTensor *managed);
ETCFFI_API void etcffi_dlpack_release_versioned(DLManagedTensorVersioned *managed);

/* -- end: read by cffi --------------------------------------------------------------------------- */

#ifdef __cplusplus
}
#endif

#endif /* ET_CFFI_H */
