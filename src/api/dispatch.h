#ifndef FLUX__API_DISPATCH_H
#define FLUX__API_DISPATCH_H
#include "calls.h"

/* ------------------------------------------------------------------ calls that go by a type
   Some arguments may have one of several types: an operand may be a tensor or a number, a part of a
   chain a layer or a function, and flux_gpu moves four types of objects. The macros here find the
   function that takes the argument, and name the argument once: if a macro named it twice, calls
   within calls would double the text at each level. Three ways lead there.
     C++, and C by clang   Functions are overloaded; clang has an attribute for it.
     C by gcc              A statement expression holds the argument in a variable of its type
                           (__auto_type), and _Generic looks at the variable.
     C by others           _Generic needs the argument twice, once for its type and once for its
                           value. But what a macro of this file makes begins with a mark,
                           "(type)(void *)(void *)", so that the macro around it reads the type
                           there. Only what has no mark, as a variable or a call of a plain
                           function, stands twice.
   Rejected: a variable for clang too, because -Wshadow complains about one of the same name in its
   initialiser, and __COUNTER__, for other names, is an extension with a warning of its own; a union
   as the parameter's type (transparent_union), which takes no double beside a pointer. */

#if defined(__cplusplus)
#  define FLUX__OVERLOAD inline
#elif defined(__clang__)
#  if __has_extension(overloadable_unmarked)
#    define FLUX__OVERLOAD static inline __attribute__((overloadable, unused))
#  endif
#endif

/* Functions that exist for each type: f itself where names can be overloaded, f_KIND elsewhere. */
#ifdef FLUX__OVERLOAD
#  define FLUX__EACH_TYPE FLUX__OVERLOAD
#  define FLUX__FOR_TYPE(f, kind) f
#else
#  define FLUX__EACH_TYPE FLUX__UNUSED static inline
#  define FLUX__FOR_TYPE(f, kind) f##_##kind
#endif
#define FLUX__KEEPS(T, kind)                                                                       \
    FLUX__EACH_TYPE T *FLUX__FOR_TYPE(flux_keep, kind)(T *x) {                                     \
        return (T *)flux_keep_object(x);                                                           \
    }                                                                                              \
    FLUX__EACH_TYPE T *FLUX__FOR_TYPE(flux_carry, kind)(const void *old, T *value) {               \
        return (T *)flux_carry_object(old, value);                                                 \
    }
#define FLUX__IS_OBJECT(T, kind)                                                                   \
    FLUX__EACH_TYPE const void *FLUX__FOR_TYPE(flux__object, kind)(T *x) { return x; }
#define FLUX__TYPES(X)                                                                             \
    X(flux_tensor, tensor) X(flux_layer, layer) X(flux_loader, loader) X(flux_state, state)
FLUX__TYPES(FLUX__KEEPS)
FLUX__KEEPS(flux_grads, grads)
FLUX__TYPES(FLUX__IS_OBJECT)

#ifdef FLUX__OVERLOAD
#define FLUX__MOVES(T, kind)                                                                       \
    FLUX__OVERLOAD T *flux_gpu(T *x) { return flux_gpu_##kind(x); }                                \
    FLUX__OVERLOAD T *flux_cpu(T *x) { return flux_cpu_##kind(x); }                                \
    FLUX__OVERLOAD T *flux_cu(T *x) { return flux_cu_##kind(x); }                                  \
    FLUX__OVERLOAD T *flux_roc(T *x) { return flux_roc_##kind(x); }
#define FLUX__PLACES(T, kind)                                                                      \
    FLUX__OVERLOAD T *flux_to(flux_device d, T *x) { return flux_to_##kind(d, x); }                \
    FLUX__OVERLOAD flux_device flux_device_of(const T *x) { return flux_device_of_##kind(x); }     \
    FLUX__OVERLOAD void flux_print(T *x) { flux_print_##kind(x); }
#define FLUX__SAVES(T, kind)                                                                       \
    FLUX__OVERLOAD int flux_save(T *x, const char *path) { return flux_save_##kind(x, path); }
#define FLUX__LOADS(T, kind)                                                                       \
    FLUX__OVERLOAD int flux_load(T *x, const char *path) { return flux_load_##kind(x, path); }
FLUX__MOVES(flux_layer, layer)
FLUX__MOVES(flux_loader, loader)
FLUX__MOVES(flux_state, state)
FLUX__TYPES(FLUX__PLACES)
FLUX__OVERLOAD void flux_print(flux_grads *g) { flux_print_grads(g); }
FLUX__OVERLOAD int64_t flux_len(const flux_loader *l) { return flux_length(l); }
FLUX__OVERLOAD int64_t flux_len(const flux_folder *f) { return flux_folder_length(f); }
FLUX__OVERLOAD int64_t flux_length(const flux_tensor *x) { return flux_len(x); }
FLUX__OVERLOAD int64_t flux_length(const flux_folder *f) { return flux_folder_length(f); }
FLUX__SAVES(flux_tensor, tensor)
FLUX__SAVES(flux_layer, layer)
FLUX__SAVES(flux_state, state)
FLUX__LOADS(flux_layer, layer)
FLUX__LOADS(flux_state, state)
#define FLUX__SYNCS(T, kind)                                                                       \
    FLUX__OVERLOAD T *flux__synchronize(flux_comm *c, T *x, flux_root_opts o) {                    \
        return flux_synchronize_##kind(c, x, o);                                                   \
    }
FLUX__SYNCS(flux_tensor, tensor)
FLUX__SYNCS(flux_layer, layer)
FLUX__SYNCS(flux_state, state)
#define FLUX__DISTRIBUTED_SAVES(T, kind)                                                           \
    FLUX__OVERLOAD int flux_distributed_save(flux_comm *c, T *x, const char *path) {               \
        return flux_distributed_save_##kind(c, x, path);                                           \
    }
FLUX__DISTRIBUTED_SAVES(flux_tensor, tensor)
FLUX__DISTRIBUTED_SAVES(flux_layer, layer)
FLUX__DISTRIBUTED_SAVES(flux_state, state)
#define FLUX__SYNCHRONIZE(c, x, ...) \
    flux__synchronize(c, x, FLUX__OPTS(flux_root_opts, __VA_ARGS__))
FLUX__OVERLOAD flux_layer *flux__as_layer(flux_layer *l) { return l; }
FLUX__OVERLOAD flux_layer *flux__as_layer(flux_fn f) { return flux__layer_of_fn(f); }
FLUX__OVERLOAD flux_layer *flux__as_layer(flux_fn2 f) { return flux__layer_of_fn2(f); }
#define FLUX__OBJECT(x) flux__object(x)
#define FLUX__AS_LAYER(x) flux__as_layer(x)
#define FLUX__MADE(T, value) value        /* the mark, which is needed elsewhere only */
#endif

/* flux_synchronize(comm, x, .root = 0): the empty argument lets the option be left out. */
#define flux_synchronize(c, ...) \
    /* x with the numbers of rank .root: model = flux_synchronize(comm, model). */ \
    FLUX__SYNCHRONIZE(c, __VA_ARGS__, )

#ifdef __cplusplus
/* A number may stand for either operand. */
#define FLUX__NUMBERS(f)                                                                           \
    template <class N> inline flux_tensor *f(flux_tensor *a, N b) {                                \
        return f(a, flux__number((double)b));                                                      \
    }                                                                                              \
    template <class N> inline flux_tensor *f(N a, flux_tensor *b) {                                \
        return f(flux__number((double)a), b);                                                      \
    }
template <class N> inline flux_tensor *flux_where(flux_tensor *c, flux_tensor *a, N b) {
    return flux_where(c, a, flux__number((double)b));
}
template <class N> inline flux_tensor *flux_where(flux_tensor *c, N a, flux_tensor *b) {
    return flux_where(c, flux__number((double)a), b);
}

#else /* C */

#define FLUX__NO_OPERAND "an operand is a tensor (flux_tensor *) or a real number"
#if defined(FLUX__OVERLOAD)
#define FLUX__NUMBER(T)                                                                            \
    FLUX__OVERLOAD flux_tensor *flux__as_operand(T v) { return flux__number((double)v); }
#define FLUX__REFUSED(T)                                                                           \
    FLUX__OVERLOAD flux_tensor *flux__as_operand(T v) __attribute__((unavailable(FLUX__NO_OPERAND)));
FLUX__OVERLOAD flux_tensor *flux__as_operand(flux_tensor *x) { return x; }
FLUX__NUMBER(int) FLUX__NUMBER(unsigned) FLUX__NUMBER(long) FLUX__NUMBER(unsigned long)
FLUX__NUMBER(long long) FLUX__NUMBER(unsigned long long)
FLUX__NUMBER(float) FLUX__NUMBER(double) FLUX__NUMBER(long double)
FLUX__REFUSED(void *)
FLUX__REFUSED(const volatile void *)
FLUX__REFUSED(double _Complex)
#define FLUX__OPERAND(x) flux__as_operand(x)
/* The calls below are overloaded functions here, and their macros call these. */
#define FLUX__SAME_TYPE(x, value) value
#define FLUX__BY_TYPE(x, F, f) f(x)
#define FLUX__BY_TYPE_2(x, F, f, a) F(x, f, a)
#define FLUX__CALL_ON(x, f, device) f(device, x)
#define FLUX__CARRY(x, f, old) f(old, x)
#define FLUX__SAVE(x, f, path) f(x, path)
#define FLUX__LOAD(x, f, path) f(x, path)
#define FLUX__SAVE_BY_ROOT(x, f, how) f FLUX__ROOT_ARGS(x, FLUX__ROOT_OPEN how)
#define FLUX__ROOT_OPEN(...) __VA_ARGS__
#define FLUX__ROOT_ARGS(...) FLUX__ROOT_ARGS_(__VA_ARGS__)
#define FLUX__ROOT_ARGS_(x, c, path) (c, x, path)

#else
/* FLUX__BY_TYPE(x, F, f) is F(key, x, f): an expression that has the type of x, its value, and the
   name that F begins the functions' names with; FLUX__BY_TYPE_2 has a further argument, for which
   its variable has another name. FLUX__MADE(T, value) is the value, marked as being a T;
   FLUX__SAME_TYPE(x, value) as having the type of x. The comma makes a pointer of a function and a
   number of a bit-field. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(__TINYC__) && !defined(__EDG__)
#define FLUX__LET(v, x, result) __extension__({ __auto_type v = ((void)0, x); result; })
#define FLUX__BY_TYPE(x, F, f) FLUX__LET(flux__x, x, F(flux__x, flux__x, f))
#define FLUX__BY_TYPE_2(x, F, f, a) FLUX__LET(flux__y, x, F(flux__y, flux__y, f, a))
#define FLUX__MADE(T, value) value
#define FLUX__SAME_TYPE(x, value) value
#define FLUX__AS_LAYER(x) FLUX__BY_TYPE(x, FLUX__LAYER_OF, flux__layer_of)
/* __builtin_classify_type is 1 for integers and 8 for floating-point numbers; as the argument of a
   function of no fixed type, a float would bring -Wdouble-promotion on. The cast to double keeps
   -Wconversion silent. */
#define FLUX__OPERAND(x) FLUX__LET(flux__x, x, FLUX__OPERAND_OF(flux__x))
#define FLUX__OPERAND_OF(x)                                                                        \
    _Static_assert(_Generic(x, flux_tensor *: 1, default: FLUX__IS_REAL(x)), FLUX__NO_OPERAND);    \
    _Generic(x, flux_tensor *: x,                                                                  \
             default: flux__number((double)_Generic(x, flux_tensor *: 0, default: x)))
#define FLUX__IS_REAL(x)                                                                           \
    (__builtin_classify_type(_Generic(x, float: 0.0, default: x)) == 1 ||                          \
     __builtin_classify_type(_Generic(x, float: 0.0, default: x)) == 8)

#else
/* FLUX__IS_MADE(x) is 1 if x begins with four groups in parentheses, as FLUX__MADE writes it, else
   0: FLUX__GROUP_1 takes the first group and leaves FLUX__GROUP_2 in its place, and so on. */
#define FLUX__MADE(T, value) (T)(void *)(void *)(value)
#define FLUX__IS_MADE(x) FLUX__SECOND(FLUX__GROUP_1 x, 0, 0)
#define FLUX__GROUP_1(...) FLUX__GROUP_2
#define FLUX__GROUP_2(...) FLUX__GROUP_3
#define FLUX__GROUP_3(...) FLUX__GROUP_4
#define FLUX__GROUP_4(...) 0, 1
#define FLUX__KEY(x) FLUX__CAT(FLUX__KEY_, FLUX__IS_MADE(x))(x)
#define FLUX__KEY_0(x) (x)
#define FLUX__KEY_1(x) ((FLUX__INSIDE(x))0)
#define FLUX__BY_TYPE(x, F, f) F(FLUX__KEY(x), x, f)
#define FLUX__BY_TYPE_2(x, F, f, a) F(FLUX__KEY(x), x, f, a)
#define FLUX__SAME_TYPE(x, value) FLUX__CAT(FLUX__SAME_TYPE_, FLUX__IS_MADE(x))(x, value)
#if defined(__GNUC__) || defined(__TINYC__)
#define FLUX__SAME_TYPE_0(x, value) FLUX__MADE(__typeof__(x), value)
#else
#define FLUX__SAME_TYPE_0(x, value) value
#endif
#define FLUX__SAME_TYPE_1(x, value) FLUX__MADE(FLUX__INSIDE(x), value)
/* &* makes a pointer of a function. */
#define FLUX__AS_LAYER(x) FLUX__LAYER_OF(&*FLUX__KEY(x), x, flux__layer_of)
#define FLUX__OPERAND(x) FLUX__BY_TYPE(x, FLUX__OPERAND_OF, )
#define FLUX__OPERAND_OF(key, x, f) _Generic(key, flux_tensor *: flux__same, default: flux__number)(x)
#endif

#define FLUX__LAYER_OF(key, x, f)                                                                  \
    _Generic(key, flux_layer *: f##_layer, flux_fn: f##_fn, flux_fn2: f##_fn2)(x)
#define FLUX__FITS(f)                                                                              \
    flux_tensor *: f##_tensor, flux_layer *: f##_layer, flux_loader *: f##_loader,                 \
        flux_state *: f##_state
#define FLUX__CALL(key, x, f) _Generic(key, FLUX__FITS(f))(x)
#define FLUX__CALL_ON(key, x, f, device) _Generic(key, FLUX__FITS(f))(device, x)
/* For tensors, f in parentheses is the function of that name, not the macro. */
#define FLUX__MOVE(key, x, f)                                                                      \
    _Generic(key, flux_tensor *: (f), flux_layer *: f##_layer, flux_loader *: f##_loader,          \
             flux_state *: f##_state)(x)
#define FLUX__KEEP(key, x, f) _Generic(key, FLUX__FITS(f), flux_grads *: f##_grads)(x)
#define FLUX__CARRY(key, x, f, old) _Generic(key, FLUX__FITS(f), flux_grads *: f##_grads)(old, x)
#define FLUX__SAVE(key, x, f, path)                                                                \
    _Generic(key, flux_tensor *: f##_tensor, flux_layer *: f##_layer, flux_state *: f##_state)(x, path)
#define FLUX__LOAD(key, x, f, path)                                                                \
    _Generic(key, flux_layer *: f##_layer, flux_state *: f##_state)(x, path)

#define FLUX__LEN(key, x, f)                                                                       \
    _Generic(key, flux_tensor *: (flux_len), const flux_tensor *: (flux_len),                      \
             flux_loader *: (flux_length), const flux_loader *: (flux_length),                     \
             flux_folder *: flux_folder_length, const flux_folder *: flux_folder_length)(x)

#define FLUX__SAVE_BY_ROOT(key, x, f, how)                                                         \
    _Generic(key, flux_tensor *: f##_tensor, flux_layer *: f##_layer, flux_state *: f##_state)     \
    FLUX__SAVE_ARGS(x, FLUX__SYNC_OPEN how)
#define FLUX__SAVE_ARGS(x, ...) FLUX__SAVE_ARGS_(x, __VA_ARGS__)
#define FLUX__SAVE_ARGS_(x, c, path) (c, x, path)
#define FLUX__SYNC(key, x, f, how)                                                                 \
    _Generic(key, flux_tensor *: f##_tensor, flux_layer *: f##_layer, flux_state *: f##_state)     \
    FLUX__SYNC_ARGS(x, FLUX__SYNC_OPEN how)
#define FLUX__SYNC_OPEN(...) __VA_ARGS__
#define FLUX__SYNC_ARGS(x, ...) FLUX__SYNC_ARGS_(x, __VA_ARGS__)
#define FLUX__SYNC_ARGS_(x, c, ...) (c, x, FLUX__OPTS(flux_root_opts, __VA_ARGS__))

#define FLUX__OBJECT(x) FLUX__BY_TYPE(x, FLUX__CALL, flux__object)
#define FLUX__SYNCHRONIZE(c, x, ...) \
    FLUX__SAME_TYPE(x, FLUX__BY_TYPE_2(x, FLUX__SYNC, flux_synchronize, (c, __VA_ARGS__)))
#endif

/* What stands inside a macro is shown by editors where the macro is called. */
#define flux_gpu(x) \
    /* x (tensor, layer, loader or state) on the preferred GPU, if there is one. */ \
    FLUX__SAME_TYPE(x, FLUX__BY_TYPE(x, FLUX__MOVE, flux_gpu))
#define flux_cpu(x) \
    /* x in host memory. */ \
    FLUX__SAME_TYPE(x, FLUX__BY_TYPE(x, FLUX__MOVE, flux_cpu))
#define flux_cu(x) \
    /* x on a CUDA GPU, if one works. */ \
    FLUX__SAME_TYPE(x, FLUX__BY_TYPE(x, FLUX__MOVE, flux_cu))
#define flux_roc(x) \
    /* x on an AMD GPU, if one works. */ \
    FLUX__SAME_TYPE(x, FLUX__BY_TYPE(x, FLUX__MOVE, flux_roc))
#define flux_to(device, x) \
    /* x on this device; NULL on error. */ \
    FLUX__SAME_TYPE(x, FLUX__BY_TYPE_2(x, FLUX__CALL_ON, flux_to, device))
#define flux_keep(x) \
    /* Moves x from the innermost scope to the one around it, and returns it. */ \
    FLUX__SAME_TYPE(x, FLUX__BY_TYPE(x, FLUX__KEEP, flux_keep))
#define flux_carry(old, value) \
    /* Takes a value to a loop's next iteration: h = flux_carry(h, value). */ \
    FLUX__SAME_TYPE(value, FLUX__BY_TYPE_2(value, FLUX__CARRY, flux_carry, old))
#define flux_device_of(x) \
    /* The device of a tensor, layer, loader or state. */ \
    FLUX__BY_TYPE(x, FLUX__CALL, flux_device_of)
#define flux_len(x) \
    /* How long x is: a tensor's elements, a loader's batches, a folder's images. */ \
    FLUX__BY_TYPE(x, FLUX__LEN, flux_len)
#define flux_length(x) \
    /* The same by Flux's name, a loader's batches in an epoch. */ \
    FLUX__BY_TYPE(x, FLUX__LEN, flux_length)
#define flux_print(x) \
    /* Prints a tensor, layer, loader, state or gradients to stdout. */ \
    FLUX__BY_TYPE(x, FLUX__KEEP, flux_print)
#define flux_save(x, path) \
    /* Writes a tensor, layer or state as safetensors. 0, or non-zero on error. */ \
    FLUX__BY_TYPE_2(x, FLUX__SAVE, flux_save, path)
#define flux_load(x, path) \
    /* Reads a layer or state from safetensors. 0, or non-zero on error. */ \
    FLUX__BY_TYPE_2(x, FLUX__LOAD, flux_load, path)
#define flux_distributed_save(c, x, path) \
    /* Rank 0 saves x; the others wait. The same result on all ranks. */ \
    FLUX__BY_TYPE_2(x, FLUX__SAVE_BY_ROOT, flux_distributed_save, (c, path))

/* An operand may be a tensor or a number. The macro of a name is not expanded again inside itself,
   so that flux_add(a, b) calls the function flux_add. */
#define FLUX__OF_TWO(f, a, b) FLUX__MADE(flux_tensor *, f(FLUX__OPERAND(a), FLUX__OPERAND(b)))
#define flux_where(c, a, b) \
    /* a where c is true (not 0), else b; a or b may be a number. */ \
    FLUX__MADE(flux_tensor *, flux_where(c, FLUX__OPERAND(a), FLUX__OPERAND(b)))
#endif

#endif /* FLUX__API_DISPATCH_H */
