#ifndef FLUX__API_TYPES_H
#define FLUX__API_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* How these count: see VERSION in the manual. */
#define FLUX_VERSION 100
#define FLUX_VERSION_STRING "0.1.0"

#ifdef FLUX_STATIC
#  if defined(__GNUC__)
#    define FLUX_API static __attribute__((unused))
#  else
#    define FLUX_API static
#  endif
#else
#  define FLUX_API extern
#endif

/* An option struct starts with FLUX__DUMMY, a byte that nobody reads. It lets C write
   `{ ._ = 0, __VA_ARGS__ }` where the arguments may be empty, by position or by name. In C++ the
   dummy has no name, because C++ would count it among the members that are given by position. The
   struct has the same layout in both languages, on which a program in C++ relies if it links an
   implementation compiled as C.

   A 0 that a program writes is taken as 0: flux_adjust(opt, .eta = 0). A field that is left out
   holds a mark instead, a number that nobody writes (FLUX__NO_NUMBER, ...). In C, the call macros
   write the marks before the program's fields, which override them (FLUX__OPTS,
   FLUX__LEFT_OUT_...); in C++, the members have types whose constructors set the mark. The last
   field of such a struct, `marked`, says that the marks were set. A struct that a C program fills
   itself starts as {0} and has no marks; there a field that is 0 counts as left out (FLUX_OPTIONS
   makes one with marks). A field given in braces is given as a whole: .beta = {0.9} is {0.9, 0}, as
   in plain C.

   Compilers warn about a field that is initialised twice, which is intended here, so the warning is
   switched off. In C this also silences it for the rest of a file that includes this one, because
   no compiler takes the pragma where it is needed: gcc takes none within an expression, and clang's
   does not reach through a macro within a macro.

   Rejected: a name for "really 0", which users would have to remember; reading the names of the
   fields from the text of the arguments, which a macro of the program can hide; a union of each
   field and its mark, which gcc lets a program override without a warning, but which makes gcc warn
   about braces by position and loses half of .beta[1] = 0.9; a GNU statement expression, in which
   gcc takes pragmas, but at whose end the object in &(flux_dataset){ ... } dies. */
#define FLUX__NO_NUMBER (-1.6180339887498949e308)
#define FLUX__NO_INT (-2147480119)
#define FLUX__NO_INT64 INT64_C(-9223372036854770119)
#define FLUX__NO_SEED UINT64_C(0xb5297a4d9c2f1e63)

#if !defined(__cplusplus) && defined(__clang__)
#  pragma clang diagnostic ignored "-Winitializer-overrides"
#elif !defined(__cplusplus) && defined(__GNUC__) && !defined(__TINYC__)
#  pragma GCC diagnostic ignored "-Woverride-init"
#endif

#ifdef __cplusplus
#  define FLUX__DUMMY char : 8;
#  if __cplusplus >= 201402L || (defined(_MSVC_LANG) && _MSVC_LANG >= 201402L)
#    define FLUX__ZERO = {}            /* default member initialisers keep -Wextra quiet */
#  else
#    define FLUX__ZERO
#    if defined(__GNUC__)              /* C++11 has no other way to leave options out quietly */
#      pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#    endif
#  endif
#  if defined(__clang__)
#    if __has_warning("-Wc99-designator")
       /* Options by name before C++20, or after options by position. */
#      pragma clang diagnostic ignored "-Wc99-designator"
#    endif
#  endif
#  if defined(__clang__)
#    pragma clang diagnostic push   /* C linkage: C sees the same structs without constructors */
#    pragma clang diagnostic ignored "-Wreturn-type-c-linkage"
#  endif
inline double flux__no(double) { return FLUX__NO_NUMBER; }
inline int flux__no(int) { return FLUX__NO_INT; }
inline int64_t flux__no(int64_t) { return FLUX__NO_INT64; }
inline uint64_t flux__no(uint64_t) { return FLUX__NO_SEED; }
template <class T> struct flux__option {  /* a T, or T's mark if the option was left out */
    T value;
    flux__option() : value(flux__no(T())) {}
    flux__option(T v) : value(v) {}
    operator T() const { return value; }
};
typedef flux__option<double> flux__double;
typedef flux__option<int> flux__int;
typedef flux__option<int64_t> flux__int64;
typedef flux__option<uint64_t> flux__uint64;
struct flux__double2 {
    double at[2];
    flux__double2() { at[0] = at[1] = FLUX__NO_NUMBER; }
    flux__double2(double a, double b = 0) { at[0] = a, at[1] = b; }
    double &operator[](int i) { return at[i]; }
    double operator[](int i) const { return at[i]; }
};
struct flux__marked {
    bool yes;
    flux__marked() : yes(true) {}
    operator bool() const { return yes; }
};
extern "C" {
#else
#  define FLUX__DUMMY char _;
#  define FLUX__ZERO
typedef double flux__double;
typedef double flux__double2[2];
typedef int flux__int;
typedef int64_t flux__int64;
typedef uint64_t flux__uint64;
typedef bool flux__marked;
#endif

/* A field of options and its old name, which goes with 0.2. C++ has the new one alone: there a
   union that is left out gets a warning. */
#ifdef __cplusplus
#  define FLUX__RENAMED(T, name, old) T name FLUX__ZERO
#else
#  define FLUX__RENAMED(T, name, old) union { T name; T old; }
#endif

#define FLUX_MAX_DIMS 8                   /* a tensor has 0 to 8 dimensions */

/* ------------------------------------------------------------------ types */

typedef struct flux_tensor flux_tensor;   /* an immutable array of numbers, computed when needed */
typedef struct flux_layer flux_layer;     /* a model or a part of one */
typedef struct flux_loader flux_loader;   /* hands out a data set in batches */
typedef struct flux_state flux_state;     /* an optimiser's state for one model */
typedef struct flux_grads flux_grads;     /* gradients, looked up by their tensor or parameter */
typedef struct flux_table flux_table;     /* columns of numbers and texts, with names */
typedef struct flux_folder flux_folder;   /* images in folders, one for each class */
typedef struct flux_comm flux_comm;       /* the processes that work together */

typedef enum flux_dtype {                 /* element type of a tensor; the last one counts them */
    FLUX_F32, FLUX_F64, FLUX_F16, FLUX_BF16, FLUX_I32, FLUX_I64, FLUX_U8, FLUX_BOOL, FLUX_NUM_DTYPES
} flux_dtype;

/* The type of an option that is on by default, or whose default depends on other options. true and
   false may be written for FLUX_ON and FLUX_OFF where the option macros or C++ make the struct; in
   a struct that starts as {0}, false counts as left out, so write FLUX_OFF there. */
typedef enum flux_switch { FLUX_ON = 1, FLUX_OFF, FLUX_DEFAULT } flux_switch;
#ifdef __cplusplus
struct flux__switch {
    flux_switch value;
    flux__switch() : value(FLUX_DEFAULT) {}
    flux__switch(flux_switch v) : value(v) {}
    flux__switch(bool on) : value(on ? FLUX_ON : FLUX_OFF) {}
    operator flux_switch() const { return value; }
};
#else
typedef flux_switch flux__switch;
#endif

/* A tensor's sizes, dim[0] the fastest in memory; also any other list of up to 8 integers (strides,
   dimensions, an index). flux_shape_of and flux_outputsize give ndim -1 on error. */
typedef struct flux_shape { int ndim; int64_t dim[FLUX_MAX_DIMS]; } flux_shape;
typedef struct flux_device { int backend, id; } flux_device;      /* {0, 0} is the CPU */

typedef flux_tensor *(*flux_fn)(flux_tensor *);                   /* for example an activation */
typedef flux_tensor *(*flux_fn2)(flux_tensor *, flux_tensor *);   /* for example flux_add */

/* The FLUX_VERSION of the implementation that the program runs with. */
FLUX_API int flux_version(void);          /* the FLUX_VERSION of the implementation */

#endif /* FLUX__API_TYPES_H */
