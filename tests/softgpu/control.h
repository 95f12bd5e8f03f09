/* control.h - every exported function passes here first: it is counted, and fails if a test asked for that.
   Each of the four libraries has its own counts and faults. */
#ifndef SOFTGPU_CONTROL_H
#define SOFTGPU_CONTROL_H
#if defined __GNUC__
#define SOFT_EXPORT __attribute__((visibility("default")))
#else
#define SOFT_EXPORT
#endif

typedef struct soft_point { const char *name; long calls; struct soft_point *next; } soft_point;

int soft_enter(soft_point *p);                 /* 0, or the code that this call shall return */
long soft_live(const char *what);              /* each library says what it has */

#define SOFT_ENTER(function) do {                                         \
        static soft_point soft_here = { #function, 0, NULL };             \
        int soft_code = soft_enter(&soft_here);                           \
        if (soft_code) return soft_code;                                  \
    } while (0)

/* What a test finds by dlsym */
SOFT_EXPORT void softgpu_fail(const char *function, int nth, int code);
SOFT_EXPORT long softgpu_calls(const char *function);
SOFT_EXPORT void softgpu_reset_counts(void);
SOFT_EXPORT long softgpu_live(const char *what);
#endif
