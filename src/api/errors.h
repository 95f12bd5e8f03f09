#ifndef FLUX__API_ERRORS_H
#define FLUX__API_ERRORS_H
#include "types.h"

/* ------------------------------------------------------------------ errors and messages
   A call that fails leaves a pending error, which belongs to the thread that made the call. Each
   different sentence is printed once until flux_clear. Whether a call succeeds does not depend on
   errors that are already pending, with two exceptions: while an error is pending, a NULL argument
   adds no sentence of its own (the failed call gave it), and flux_each hands out no further
   batch. */

/* The sentence of the first pending error, or "". */
FLUX_API const char *flux_error(void);
/* Whether an error is pending; main can return it. */
FLUX_API bool flux_failed(void);
/* Forgets the pending errors of this thread. */
FLUX_API void flux_clear(void);
typedef void (*flux_error_fn)(const char *message, void *user);
/* Errors go to handler, with user, instead of being printed. NULL: they are printed again. */
FLUX_API void flux_on_error(flux_error_fn handler, void *user);

typedef enum flux_level { FLUX_LOG_ERROR, FLUX_LOG_WARN, FLUX_LOG_INFO, FLUX_LOG_DEBUG } flux_level;
/* id names the kind of message: "gpu.none", ... */
typedef void (*flux_log_fn)(flux_level level, const char *id, const char *message, void *user);
/* Drops messages above this level. */
FLUX_API void flux_log_level(flux_level most);
/* As flux_on_error, for messages. */
FLUX_API void flux_on_log(flux_log_fn handler, void *user);
/* Never shows the message of this id again. NULL: shows all messages again, and those that are
   shown only once may be shown once more. */
FLUX_API void flux_silence(const char *id);

#endif /* FLUX__API_ERRORS_H */
