#ifndef FLUX__API_TYPES_H
#define FLUX__API_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#ifdef FLUX_STATIC
#  if defined(__GNUC__)
#    define FLUX_API static __attribute__((unused))
#  else
#    define FLUX_API static
#  endif
#else
#  define FLUX_API extern
#endif

/* An option struct starts with FLUX__DUMMY, a byte that nobody reads: in C `{ ._ = 0, __VA_ARGS__ }` may then be empty, by
   place or by name. C++ must not count it among the members that are given by place, so there it has no name; a struct has
   one layout in both, which a program in C++ relies on if it links an implementation compiled as C.

   A 0 that a program writes is taken: flux_adjust(opt, .eta = 0). What it leaves out holds a mark, a number that nobody
   writes. In C the macros write the marks before the program's fields, which C lets the latter override (FLUX__OPTS); in C++
   the members have types whose constructors set them. Such a struct ends with `marked`, which says that it has its marks; one
   that a C program fills itself starts as {0} and has none, so that there 0 is left out (FLUX_OPTIONS makes one with marks).
   A field that is given in braces is given whole: .beta = {0.9} is {0.9, 0}, as C has it.
   Compilers warn of a field that is written twice, which is meant here; in C, a file that includes this one is not told of its
   own any more, since neither takes a pragma where it would be wanted: gcc none within an expression, and clang's does not
   reach through a macro within a macro.
   Rejected: a name for "really 0", which must be remembered; to read the names of fields from the text of the arguments,
   where a macro of the program's own hides them; unions of a field and its mark, which gcc lets override without a word, but
   which make it warn of braces by place, and lose half of .beta[1] = 0.9; a statement as an expression (GNU), where gcc takes
   pragmas, but where the life of &(flux_dataset){ ... } ends. */
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
#    if defined(__GNUC__)              /* C++11 has no other way to say that the options left out are left out */
#      pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#    endif
#  endif
#  if defined(__clang__)
#    if __has_warning("-Wc99-designator")
#      pragma clang diagnostic ignored "-Wc99-designator"   /* options by name, in C++ before C++20, or after others by place */
#    endif
#  endif
#  if defined(__clang__)
#    pragma clang diagnostic push         /* structs with defaults are returned by value; C sees them without */
#    pragma clang diagnostic ignored "-Wreturn-type-c-linkage"
#  endif
inline double flux__no(double) { return FLUX__NO_NUMBER; }
inline int flux__no(int) { return FLUX__NO_INT; }
inline int64_t flux__no(int64_t) { return FLUX__NO_INT64; }
inline uint64_t flux__no(uint64_t) { return FLUX__NO_SEED; }
template <class T> struct flux__option {  /* a T, or the mark */
    T value;
    flux__option() : value(flux__no(T())) {}
    flux__option(T v) : value(v) {}
    operator T() const { return value; }
};
typedef flux__option<double> flux__double;
typedef flux__option<int> flux__int;
typedef flux__option<int64_t> flux__int64;
typedef flux__option<uint64_t> flux__uint64;
struct flux__two {
    double at[2];
    flux__two() { at[0] = at[1] = FLUX__NO_NUMBER; }
    flux__two(double a, double b = 0) { at[0] = a, at[1] = b; }
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
typedef double flux__two[2];
typedef int flux__int;
typedef int64_t flux__int64;
typedef uint64_t flux__uint64;
typedef bool flux__marked;
#endif

#define FLUX_MAX_DIMS 8

/* ------------------------------------------------------------------ types */

typedef struct flux_tensor flux_tensor;   /* an immutable array of numbers, computed when looked at */
typedef struct flux_layer flux_layer;     /* a model or a part of one */
typedef struct flux_loader flux_loader;   /* hands out a data set in batches */
typedef struct flux_state flux_state;     /* an optimiser's state for one model */
typedef struct flux_grads flux_grads;     /* gradients, found by the tensor they belong to */

typedef enum flux_dtype {                 /* element type of a tensor */
    FLUX_F32, FLUX_F64, FLUX_F16, FLUX_BF16, FLUX_I32, FLUX_I64, FLUX_U8, FLUX_BOOL, FLUX_NUM_DTYPES
} flux_dtype;

/* An option that is on unless said, or whose default depends on others; true and false are as good. Only the option macros
   and C++ tell false from what is left out: a struct of options that starts as {0} wants FLUX_OFF. */
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

typedef struct flux_shape { int ndim; int64_t dim[FLUX_MAX_DIMS]; } flux_shape;
typedef struct flux_device { int backend, id; } flux_device;                /* {0, 0} is the CPU */

typedef flux_tensor *(*flux_fn)(flux_tensor *);                             /* an activation, say */
typedef flux_tensor *(*flux_fn2)(flux_tensor *, flux_tensor *);             /* a connection, say flux_add */

#endif /* FLUX__API_TYPES_H */
