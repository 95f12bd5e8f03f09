#ifndef FLUX__API_ERRORS_H
#define FLUX__API_ERRORS_H
#include "types.h"

/* ------------------------------------------------------------------ errors and messages
   Pending errors belong to the thread that made them. Each different sentence is said once until flux_clear. A call
   judges itself, whatever is pending; but a NULL handle needs no words then, and flux_each hands out no further batch. */

FLUX_API const char *flux_error(void);    /* the first pending error's sentence, or "" */
FLUX_API bool flux_failed(void);          /* whether an error is pending; main can return it */
FLUX_API void flux_clear(void);           /* forget the pending error */
typedef void (*flux_error_fn)(const char *message, void *user);
FLUX_API void flux_on_error(flux_error_fn handler, void *user);   /* called in place of printing; NULL: print again */

typedef enum flux_level { FLUX_LOG_ERROR, FLUX_LOG_WARN, FLUX_LOG_INFO, FLUX_LOG_DEBUG } flux_level;
typedef void (*flux_log_fn)(flux_level level, const char *id, const char *message, void *user);
FLUX_API void flux_log_level(flux_level most);                    /* messages above this level are dropped */
FLUX_API void flux_on_log(flux_log_fn handler, void *user);       /* called in place of printing; NULL: print again */
FLUX_API void flux_silence(const char *id);  /* never show the message of this id ("gpu.none", ...); NULL: show all again,
                                                and once-only ones once more */

#endif /* FLUX__API_ERRORS_H */
