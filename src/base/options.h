#ifndef FLUX__BASE_OPTIONS_H
#define FLUX__BASE_OPTIONS_H
#include "platform.h"

/* ---------------- options: what was given, or the default. made: the struct has marks in what was left out, so that 0 was
   given; else it was filled by hand, and 0 was left out. */

FLUX__COLD

static FLUX__INLINE bool flux__is_given(double v, bool made) { return v != FLUX__NO_NUMBER && (made || v != 0); }
static FLUX__INLINE double flux__given(double v, bool made, double fallback) { return flux__is_given(v, made) ? v : fallback; }

static FLUX__INLINE bool flux__is_given_int(int64_t v, bool made) {
    return v != FLUX__NO_INT && v != FLUX__NO_INT64 && (made || v != 0);
}
static FLUX__INLINE int64_t flux__given_int(int64_t v, bool made, int64_t fallback) {
    return flux__is_given_int(v, made) ? v : fallback;
}

static FLUX__INLINE flux_switch flux__given_switch(flux_switch v, bool made) {
    return v != 0 ? v : made ? FLUX_OFF : FLUX_DEFAULT;      /* 0 is false */
}

#endif /* FLUX__BASE_OPTIONS_H */
