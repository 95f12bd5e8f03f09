/* flux.h for programs of tests: as it stands, or for those that look inside and are linked to a common implementation,
   its declarations (inside.h). */
#ifndef FLUX_LIBRARY_H
#define FLUX_LIBRARY_H
#if defined(FLUX_IMPLEMENTATION) && !defined(TEST_OPENED)
#  include "counted.h"
#else
#  include "inside.h"
#endif
#if defined(FLUX_IMPLEMENTATION) && defined(TEST_OPENED)
/* for the implementation's inline functions, of which a test has copies */
#  define FLUX_MALLOC(n) flux__test_realloc(NULL, n)
#  define FLUX_REALLOC(p, n) flux__test_realloc(p, n)
#  define FLUX_FREE(p) flux__test_free(p)
#  include "opened/declared.h"
#else
#  include "../flux.h"
#endif
#endif
