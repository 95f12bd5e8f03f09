#ifndef FLUX__NN_LOOPS_H
#define FLUX__NN_LOOPS_H
#include "../base/platform.h"
#include "../base/system.h"
#include "../base/object.h"
#include "../base/errors.h"
#include "../base/dtypes.h"
#include "../base/memory.h"
#include "../base/sinks.h" /* flux__fopen */
#include "../base/scopes.h"
#include "../base/options.h"
#include "../base/ranks.h"
#include "../graph/elementwise.h"
#include "../graph/leaves.h"
#include "../schedule/looking.h"
#include "../data/progress.h"
#include "../data/epoch.h"
#include "model.h"
#include "gradient.h"
#include "update.h"
#include "metrics.h"
#include "schedules.h"
#include "average.h"
#include "train.h"

/* ---------------------------------------------------------------------- nn/loops.h
   flux_train: epochs of batches, each with a loss, its gradients and a step;
   after each epoch validation, metrics, what is best, whether to stop, and a
   checkpoint.

   Invariant: the loss and all gradients are evaluated together, and the loss is
   checked before the step, so a loss that is not finite leaves the model as it
   was and is an error that names the batch. The tensors of a batch are freed at
   the end of its iteration. An error ends the loop, and writes nothing.

   A checkpoint within an epoch has two states of the random numbers: that at
   which the epoch began, from which its order is drawn again, and the present
   one. Batches depend on the epoch's key and their index alone (data/orders.h),
   so those that were done are passed over without being made. Sums of losses are
   kept as they stand. Thus a run that goes on has the bits of one that was never
   stopped.

   Rejected: checkpoints between epochs only, as an epoch can last a day; a
   signal handler that writes, as it may come in the middle of anything. */

FLUX__BEGIN_COLD

/* hook: flux_save_all_with, files/torch.h */
/* hook: flux_load_all_with, files/torch.h */
/* hook: flux_save_layer, files/tensors.h */
/* hook: flux_load_tensor, files/torch.h */

/* A training under way. The numbers from `epoch` to `stopper` are what a checkpoint keeps of it. */
typedef struct flux__course {
    flux_train_opts o;
    int epochs, metrics, delay;           /* delay: of early stopping, or 0 */
    double min_dist;
    flux_layer *judged;                   /* the model, or its average */
    int epoch;                            /* how many epochs are done */
    int64_t batch;                        /* batches done of the epoch under way; -1: between two */
    double sum, seen;                     /* losses of that epoch by observations, and these */
    double best;                          /* the lowest score so far */
    flux_stopper stopper;
    int64_t began[2];                     /* the random numbers' state when that epoch began */
    double *history;                      /* a column of 2 + metrics numbers for each epoch done */
    int capacity;
    flux_train_info at;
    bool stop;
} flux__course;

/* ---------------- one batch */

/* Evaluates the loss and all gradients together; returns the loss, which is checked
   before the step. */
static double flux__loss_now(flux_tensor *loss, const flux_grads *g) {
    flux_tensor **all = (flux_tensor **)flux__malloc((size_t)(g->n + 1) * sizeof *all);
    int n = 0;
    if (!all) return (double)NAN;
    all[n++] = loss;
    for (int i = 0; i < g->n; i++)
        if (g->grad[i]) all[n++] = g->grad[i];
    bool ok = flux_eval_all(n, all) == 0;
    flux__free(all);
    return ok ? flux_item(loss) : (double)NAN;
}

/* One step: gradients of the loss and the update; -1, with an error, if the loss is not finite. */
static int flux__train_batch(flux_tensor *loss, flux_layer *model, flux_state *s, int64_t index,
                             double *value) {
    const void *what[1] = { model };
    flux_tensor *scaled = loss ? flux_scaled_loss(s, loss) : NULL;
    flux_grads *g = scaled ? flux_gradient_with(scaled, 1, what) : NULL;
    int64_t failures = flux__failures();
    *value = g ? flux__loss_now(loss, g) : 0;
    if (!g || flux__failed_since(failures)) return -1;
    if (*value - *value == 0) return flux_update(s, model, g);
    flux__fail("train: the loss is %g at batch %lld", *value, (long long)index);
    return -1;
}

/* The loss of a batch; an error if the function gives NULL. */
static flux_tensor *flux__batch_loss(const flux__course *c, flux_layer *model,
                                     const flux_batch *b) {
    int64_t failures = flux__failures();
    flux_tensor *y = c->o.loss(model, b->x, b->y);
    if (!y && !flux__failed_since(failures))
        flux__fail("train: the loss function gave NULL at batch %lld", (long long)b->index);
    return y;
}

/* Tells the callback where the training is; notes whether it is to stop. */
static void flux__course_tell(flux__course *c) {
    c->at.model = c->o.model;
    c->at.state = c->o.state;
    c->at.epochs = c->epochs;
    c->at.batches = c->o.data->batches;
    c->at.mean = c->seen > 0 ? c->sum / c->seen : (double)NAN;
    const bool rated = flux__rated_rule(c->o.state) < c->o.state->nrules;
    c->at.rate = rated && (c->o.callback || c->o.progress) ? flux_rate(c->o.state) : (double)NAN;
    if (c->o.callback && c->o.callback(&c->at, c->o.user)) c->stop = true;
}

/* Notes whether a signal has come, if there is a checkpoint to write then. */
static void flux__course_heed(flux__course *c) {
    flux_comm *comm = c->o.data->comm;
    if (!c->o.checkpoint) return;
    uint8_t any = flux__interrupted();
    if (comm) flux__ranks->agree(comm, 1, &any);
    if (any) c->stop = true;
}

static bool flux__course_batch(flux__course *c, const flux_batch *b) {
    double value = 0;
    flux_tensor *y = flux__batch_loss(c, c->o.model, b);
    if (flux__train_batch(y, c->o.model, c->o.state, b->index, &value) != 0) return false;
    if (c->o.averaged && flux_update_average(c->o.averaged, c->o.model) != 0) return false;
    c->sum += value * (double)b->size;
    c->seen += (double)b->size;
    c->batch = b->index + 1;
    c->at.epoch = c->epoch;
    c->at.batch = c->batch;
    c->at.loss = value;
    flux__course_tell(c);
    if (c->o.progress) flux_progress_number("loss", c->at.mean);
    if (c->o.progress && c->at.rate == c->at.rate) flux_progress_number("rate", c->at.rate);
    return true;
}

/* ---------------- one epoch */

static flux__each_args flux__course_label(const flux__course *c, char *label, size_t n) {
    FLUX__ZEROED(flux__each_args, a);
    a.loader = c->o.data;
    snprintf(label, n, "%s %d/%d", c->o.progress ? c->o.progress : "", c->epoch + 1, c->epochs);
    a.progress = c->o.progress ? label : NULL;
    return a;
}

/* Begins an epoch, or the one that a checkpoint was written in, whose order is drawn as it was. */
static flux__each_state flux__course_begin(flux__course *c, flux__each_args a) {
    flux__thread *t = flux__self();
    const uint64_t seed = t->seed, draws = t->draws;
    const bool again = c->batch >= 0;
    if (again) {
        memcpy(&t->seed, &c->began[0], sizeof t->seed);
        memcpy(&t->draws, &c->began[1], sizeof t->draws);
    } else {
        memcpy(&c->began[0], &seed, sizeof seed), memcpy(&c->began[1], &draws, sizeof draws);
        c->batch = 0;
        c->sum = c->seen = 0;
    }
    flux__each_state e = flux__each_begin(a, c->batch);
    if (again) t->seed = seed, t->draws = draws;
    return e;
}

/* The batches of an epoch, up to its end or to where it is stopped. */
static bool flux__course_batches(flux__course *c) {
    char label[100];
    flux__training here;
    if (!flux__train_enter(&here, c->o.model)) return false;
    int64_t failures = flux__failures();
    flux__each_state e = flux__course_begin(c, flux__course_label(c, label, sizeof label));
    flux__course_heed(c);
    while (!c->stop && flux__each_next(&e, NULL, 0)) {
        if (!flux__course_batch(c, &e.batch)) break;
        e.inner = 0;                      /* the loop body was not left by a break */
        flux__course_heed(c);
    }
    flux__each_leave(&e);
    flux__train_leave(&here);
    return !flux__failed_since(failures);
}

/* Takes a batch of validation in: its loss, and the model's output into the metrics. */
static bool flux__judge_batch(flux__course *c, const flux_batch *b, double *sum) {
    flux_tensor *loss = flux__batch_loss(c, c->judged, b),
                *yhat = loss && c->metrics ? flux_call_layer(c->judged, b->x) : NULL;
    if (!loss || (c->metrics && !yhat)) return false;
    if (yhat) {                           /* together, so that what they share is computed once */
        flux_tensor *both[2];
        both[0] = loss, both[1] = yhat;
        if (flux_eval_all(2, both) != 0) return false;
    }
    *sum += flux_item(loss) * (double)b->size;
    for (int i = 0; i < c->metrics; i++)
        if (flux_metric_add(c->o.metrics[i], yhat, b->y) != 0) return false;
    return true;
}

/* The number of a metric: of several, their mean. */
static double flux__metric_number(flux_layer *m) {
    int h = flux__hide();
    flux_tensor *x = flux_metric_value(m);
    const double v = x ? flux_item((flux_mean)(flux_to_dtype(x, FLUX_F64))) : (double)NAN;
    flux__reveal_object(h, NULL);
    return v;
}

/* Validates the epoch that is done: numbers become its loss, and that of each metric. */
static bool flux__course_judge(flux__course *c, double *number) {
    FLUX__ZEROED(flux__each_args, a);
    double sum = 0, seen = 0;
    number[0] = (double)NAN;
    if (!c->o.validation) return true;
    for (int i = 0; i < c->metrics; i++) flux_metric_reset(c->o.metrics[i]);
    a.loader = c->o.validation;
    int64_t failures = flux__failures();
    flux__each_state e = flux__each_begin(a, 0);
    while (flux__each_next(&e, NULL, 0)) {
        const int off = flux__nograd_enter();
        const bool good = flux__judge_batch(c, &e.batch, &sum);
        flux__nograd_leave(off);
        if (!good) break;
        seen += (double)e.batch.size;
        e.inner = 0;
    }
    flux__each_leave(&e);
    if (flux__failed_since(failures)) return false;
    if (seen > 0) number[0] = sum / seen;
    for (int i = 0; i < c->metrics; i++)
        number[1 + i] = seen > 0 ? flux__metric_number(c->o.metrics[i]) : (double)NAN;
    return !flux__failed_since(failures);
}

/* What is to become low: a loss, or a metric with its sign turned. */
static double flux__course_score(const flux__course *c, const double *column) {
    for (int i = 0; i < c->metrics; i++)
        if (c->o.monitor && c->o.metrics[i] == c->o.monitor) return -column[2 + i];
    return c->o.validation ? column[1] : column[0];
}

/* The line that is written of an epoch's validation. */
static void flux__course_say(const flux__course *c, const double *column) {
    fprintf(stderr, "%s %d/%d: validation loss %.4g", c->o.progress, c->epoch + 1, c->epochs,
            column[1]);
    for (int i = 0; i < c->metrics; i++)
        fprintf(stderr, ", %s %.4g", flux__metric_name(c->o.metrics[i]), column[2 + i]);
    fprintf(stderr, c->at.best ? ", the best\n" : "\n");
}

/* Tells all ranks how saving went on rank 0; without a communicator rc is the answer. */
static int flux__saved_by_root(flux_comm *c, int rc) {
    uint8_t failed = rc != 0;
    if (c && !flux__ranks->agree(c, 1, &failed)) return -1;
    if (failed && rc == 0) flux__fail("distributed_save: rank 0 could not write the file");
    return failed ? -1 : 0;
}

/* Saves by rank 0 what a single process saves itself. */
static bool flux__course_saved(const flux__course *c, int n, const char *names,
                               const void *const *items, const char *path) {
    flux_comm *comm = c->o.data->comm;
    int rc = 0;
    if (!comm || flux__ranks->rank(comm) == 0)
        rc = n ? flux_save_all_with(path, n, names, items) : flux_save_layer(c->judged, path);
    return flux__saved_by_root(comm, rc) == 0;
}

/* Ends an epoch: validation, history, the best model, whether to stop, the callback. */
static bool flux__course_end_epoch(flux__course *c) {
    const int rows = 2 + c->metrics;
    double *all = (double *)flux__grow(c->history, &c->capacity, (c->epoch + 1) * rows,
                                       sizeof *all);
    if (!all) return false;
    c->history = all;
    double *column = all + c->epoch * rows;
    column[0] = c->seen > 0 ? c->sum / c->seen : (double)NAN;
    if (!flux__course_judge(c, column + 1)) return false;
    const double score = flux__course_score(c, column);
    c->at.best = score < c->best;
    if (c->at.best) c->best = score;
    if (c->at.best && c->o.best && !flux__course_saved(c, 0, NULL, NULL, c->o.best)) return false;
    if (c->delay && flux_early_stopping(&c->stopper, score, c->delay, c->min_dist)) c->stop = true;
    if (c->o.progress && c->o.validation) flux__course_say(c, column);
    c->at.epoch_end = true;
    c->at.epoch = c->epoch;
    c->at.batch = c->o.data->batches;
    c->at.loss = (double)NAN;
    c->at.validation = column[1];
    c->at.metrics = c->metrics;
    c->at.metric = column + 2;
    flux__course_tell(c);
    memset(&c->at, 0, sizeof c->at);
    c->at.validation = (double)NAN;
    c->epoch++;
    c->batch = -1;
    return true;
}

/* ---------------- checkpoints */

enum { FLUX__COURSE_NUMBERS = 8 };

static flux_tensor *flux__course_history(const flux__course *c) {
    static const double none = 0;
    const flux_shape s = FLUX_SHAPE(2 + c->metrics, c->epoch);
    return flux_from_with(c->epoch ? c->history : &none, FLUX_F64, s);
}

/* The objects of a checkpoint that are loaded in place: n of them, and their names. */
static int flux__course_items(const flux__course *c, const void **item, char *names, size_t room) {
    int n = 3;
    item[0] = c->o.model, item[1] = c->o.state, item[2] = c->o.data;
    if (c->o.validation) item[n++] = c->o.validation;
    if (c->o.averaged) item[n++] = c->o.averaged;
    snprintf(names, room, "model, state, data%s%s", c->o.validation ? ", validation" : "",
             c->o.averaged ? ", averaged" : "");
    return n;
}

/* Saves model, state, loaders and how far the training is in one file, .checkpoint; true where none
   is asked for. */
static bool flux__course_save(const flux__course *c) {
    const double number[FLUX__COURSE_NUMBERS] = {
        (double)c->epoch, (double)c->batch, c->sum, c->seen, c->best, c->stopper.best,
        (double)c->stopper.count, c->stopper.started ? 1.0 : 0.0
    };
    const void *item[9];
    char names[150];
    if (!c->o.checkpoint) return true;
    int h = flux__hide(), n = flux__course_items(c, item, names, sizeof names);
    if (c->o.state->ranks > 1) item[1] = flux__ranks->whole(c->o.state);
    item[n++] = flux_random_state();
    item[n++] = flux_from_with(c->began, FLUX_I64, FLUX_SHAPE(2));
    item[n++] = flux_from_with(number, FLUX_F64, FLUX_SHAPE(FLUX__COURSE_NUMBERS));
    if (c->epoch) item[n++] = flux__course_history(c);
    bool good = true;
    for (int i = 1; i < n; i++) good = good && item[i];
    strcat(names, c->epoch ? ", random, began, course, history" : ", random, began, course");
    good = good && flux__course_saved(c, n, names, item, c->o.checkpoint);
    flux__reveal_object(h, NULL);
    return good;
}

/* The n numbers of a tensor in the checkpoint, of dtype t; an error if it has not so many. */
static bool flux__course_read(const flux__course *c, const char *name, flux_dtype t, void *out,
                              int64_t n) {
    flux_tensor *x = flux_load_tensor(c->o.checkpoint, name);
    if (!x) return false;
    if (x->dtype != t || flux__size(x) != n)
        return FLUX__REFUSE("train: %s in %.200s is %s, not what this training saves there", name,
                            c->o.checkpoint, flux__describe(x).s);
    return flux_read(x, out, (size_t)n * sizeof(double)) == 0;
}

/* Whether the numbers of a checkpoint can be those of this training. */
static bool flux__course_fits(const flux__course *c, const double *v) {
    const bool whole = v[0] == floor(v[0]) && v[1] == floor(v[1]) && v[6] == floor(v[6]);
    return (whole && v[0] >= 0 && v[0] < 1e9 && v[1] >= -1 &&
            v[1] <= (double)c->o.data->batches && v[6] >= 0 && v[6] < 1e9) ||
           FLUX__REFUSE("train: %.200s is of another training: it stopped in epoch %g at batch %g",
                        c->o.checkpoint, v[0], v[1]);
}

/* Goes on from the checkpoint: all is read before anything is changed. */
static bool flux__course_load(flux__course *c) {
    const void *item[9];
    char names[150];
    int64_t random[2];
    double v[FLUX__COURSE_NUMBERS];
    if (!flux__course_read(c, "course", FLUX_F64, v, FLUX__COURSE_NUMBERS) ||
        !flux__course_read(c, "began", FLUX_I64, c->began, 2) ||
        !flux__course_read(c, "random", FLUX_I64, random, 2) || !flux__course_fits(c, v))
        return false;
    const int64_t past = (int64_t)v[0] * (2 + c->metrics);
    if (past) c->history = (double *)flux__grow(NULL, &c->capacity, (int)past, sizeof(double));
    if (past && (!c->history || !flux__course_read(c, "history", FLUX_F64, c->history, past)))
        return false;
    const int n = flux__course_items(c, item, names, sizeof names);
    if (flux_load_all_with(c->o.checkpoint, n, names, item) != 0) return false;
    c->epoch = (int)v[0], c->batch = (int64_t)v[1], c->sum = v[2], c->seen = v[3], c->best = v[4];
    c->stopper.best = v[5], c->stopper.count = (int)v[6], c->stopper.started = v[7] != 0;
    if (c->batch >= 0) c->o.data->epoch--;         /* which counts an epoch when it begins */
    return flux_set_random_state(flux_from_with(random, FLUX_I64, FLUX_SHAPE(2))) == 0;
}

/* Loads the checkpoint if there is one. Only a file that is not there is the beginning: one that
   can't be read is an error, or the next checkpoint would replace it. */
static bool flux__course_resume(flux__course *c) {
    FILE *file = c->o.resume ? flux__fopen(c->o.checkpoint, "rb") : NULL;
    if (!file && (!c->o.resume || errno == ENOENT)) return true;
    if (!file)
        return FLUX__REFUSE("train: %.200s cannot be read: %s", c->o.checkpoint, strerror(errno));
    fclose(file);
    int h = flux__hide();
    const bool good = flux__course_load(c);
    flux__reveal_object(h, NULL);
    return good;
}

/* ---------------- the call */

/* Checks the options and fills in defaults. */
static bool flux__course_open(flux__course *c) {
    const flux_train_opts *o = &c->o;
    if (!o->loss || !o->model || !o->data || !o->state)
        return flux__null("train", !o->loss ? "loss" : !o->model ? "model" : !o->data ? "data"
                                                                                      : "state",
                          NULL), false;
    if (FLUX__GONE("train", o->model) || FLUX__GONE("train", o->data) ||
        FLUX__GONE("train", o->state) || (o->validation && FLUX__GONE("train", o->validation)) ||
        (o->averaged && FLUX__GONE("train", o->averaged)))
        return false;
    if (o->averaged && o->averaged->type != flux__averaged_type())
        return FLUX__REFUSE("train: .averaged is a %s, no averaged model; flux_averaged makes one",
                            o->averaged->type->name);
    c->epochs = (int)flux__given_int(o->epochs, o->marked, 1);
    c->delay = (int)flux__given_int(o->early_stop, o->marked, 0);
    c->min_dist = flux__given(o->min_dist, o->marked, 0);
    c->judged = o->averaged ? o->averaged : o->model;
    while (c->metrics < FLUX_MAX_METRICS && o->metrics[c->metrics])
        if (!flux__as_metric("train", o->metrics[c->metrics++])) return false;
    bool monitored = !o->monitor;
    for (int i = 0; i < c->metrics; i++) monitored |= o->metrics[i] == o->monitor;
    if (c->epochs < 1) return FLUX__REFUSE("train: .epochs is %d", c->epochs);
    if (c->delay < 1 && flux__is_given_int(o->early_stop, o->marked))
        return FLUX__REFUSE("train: .early_stop is %d epochs", c->delay);
    if (!(c->min_dist >= 0)) return FLUX__REFUSE("train: .min_dist is %g", c->min_dist);
    if (c->metrics && !o->validation)
        return FLUX__REFUSE("train: .metrics are of .validation, which is not given");
    if (!monitored) return FLUX__REFUSE("train: .monitor is none of .metrics");
    if (o->resume && !o->checkpoint)
        return FLUX__REFUSE("train: .resume goes on from .checkpoint, which is not given");
    const bool many = o->data->comm && flux__ranks->size(o->data->comm) > 1;
    if (many && !o->validation && (o->best || c->delay))
        return FLUX__REFUSE("train: ranks agree on .best and .early_stop by .validation only");
    if (many && o->validation && o->validation->comm)
        return FLUX__REFUSE("train: each rank validates on all data: leave .comm out there");
    return true;
}

FLUX_DEF int flux_train_with(flux_train_opts o) {
    FLUX__ZEROED(flux__course, c);
    c.o = o;
    c.batch = -1;
    c.best = HUGE_VAL;
    c.at.validation = (double)NAN;
    bool good = flux__self() && flux__course_open(&c) && flux__course_resume(&c);
    if (c.delay && c.stopper.count >= c.delay) c.stop = true;      /* it had stopped early */
    while (good && !c.stop && c.epoch < c.epochs) {
        good = flux__course_batches(&c);
        if (good && c.batch >= c.o.data->batches) good = flux__course_end_epoch(&c);
        good = good && flux__course_save(&c);
    }
    if (good && o.history) {
        flux_tensor *h = flux__course_history(&c);
        if (h) *o.history = h;
        good = h != NULL;
    }
    flux__free(c.history);
    return good ? 0 : -1;
}

FLUX_DEF int (flux_train)(flux_loss_fn loss, flux_layer *model, flux_loader *data, flux_state *s) {
    flux_train_opts o = FLUX_OPTIONS(flux_train_opts, .loss = loss);
    o.model = model, o.data = data, o.state = s;
    return flux_train_with(o);
}

FLUX__END_COLD

#endif /* FLUX__NN_LOOPS_H */
