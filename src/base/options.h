#ifndef FLUX__BASE_OPTIONS_H
#define FLUX__BASE_OPTIONS_H
#include "platform.h"

/* ---------------------------------------------------------------------- base/options.h
   Options: the value that a program gave, or the default. In a struct that the
   option macros made (`made`), a field that was left out holds a mark
   (FLUX__NO_NUMBER, FLUX__NO_INT), a number that nobody writes, so that a 0
   there was given. In a struct that a C program filled itself, a field that is 0
   was left out.

   Invariant: only these functions compare a field with its mark, so that each
   option is read with its default in one place. */

FLUX__BEGIN_COLD

static FLUX__INLINE bool flux__is_given(double v, bool made) {
    return v != FLUX__NO_NUMBER && (made || v != 0);
}
static FLUX__INLINE double flux__given(double v, bool made, double fallback) {
    return flux__is_given(v, made) ? v : fallback;
}

static FLUX__INLINE bool flux__is_given_int(int64_t v, bool made) {
    return v != FLUX__NO_INT && v != FLUX__NO_INT64 && (made || v != 0);
}
static FLUX__INLINE int64_t flux__given_int(int64_t v, bool made, int64_t fallback) {
    return flux__is_given_int(v, made) ? v : fallback;
}

static FLUX__INLINE flux_switch flux__given_switch(flux_switch v, bool made) {
    /* 0 in a made struct: `false` was given */
    return v != 0 ? v : made ? FLUX_OFF : FLUX_DEFAULT;
}

FLUX__END_COLD

#endif /* FLUX__BASE_OPTIONS_H */
