#ifndef FLUX__SCHEDULE_SPELLING_H
#define FLUX__SCHEDULE_SPELLING_H
#include "../base/platform.h"
#include "../graph/table.h"

/* ---------------------------------------------------------------------- schedule/spelling.h
   How C text spells what a kernel's program is made of: the formulas of
   graph/table.h, and the compute types and dtypes. The GPU's kernels
   (gpu/kernels.h) and files of C (text/export.h) are written in these words.

   Invariant: the arrays are in the order of the table's rows, of enum flux__class
   and of flux_dtype. */

FLUX__BEGIN_LEAN

static const char *const flux__formulas[] = {
#define FLUX__OP_TEXT(NAME, name, n, dt, call, shown, formula, ...) #formula,
    FLUX__ELEMENTWISE(FLUX__OP_TEXT)
};
static const char *const flux__class_names[] = { "f32", "f64", "i32", "i64" };
static const char *const flux__class_types[] = { "float", "double", "int", "long long" };
static const char *const flux__dtype_types[] = { "float", "double", "unsigned short",
                                                 "unsigned short", "int", "long long",
                                                 "unsigned char", "unsigned char" };

FLUX__END_LEAN

#endif /* FLUX__SCHEDULE_SPELLING_H */
