#ifndef FLUX__API_TRAINING_H
#define FLUX__API_TRAINING_H
#include "data.h"

/* ------------------------------------------------------------------ training
   flux_train is the usual loop; all that it does can be had without it, too. One epoch:
       flux_train(loss, model, data, opt);
   Many, judged on other data, the best model kept, and going on where Ctrl-C stopped it:
       flux_train(loss, model, data, opt, .epochs = 50, .validation = held, .early_stop = 5,
                  .metrics = { flux_metric(flux_accuracy) }, .best = "best.safetensors",
                  .checkpoint = "run.safetensors", .resume = true, .progress = "epoch");  */

/* The loss of a batch: loss(model, x, y). */
typedef flux_tensor *(*flux_loss_fn)(flux_layer *model, flux_tensor *x, flux_tensor *y);

/* Where a training is, as a callback is told. */
typedef struct flux_train_info {
    flux_layer *model;                    /* what is trained */
    flux_state *state;                    /* its optimiser's */
    int epoch, epochs;                    /* the epoch, from 0, and how many there are to be */
    int64_t batch, batches;               /* how many batches of the epoch are done, of how many */
    bool epoch_end;                       /* the epoch is over and validated */
    bool best;                            /* at its end: no epoch was better */
    double loss;                          /* of the batch that was last; NaN at the end */
    double mean;                          /* of the epoch so far, by observations */
    double validation;                    /* the loss there, at the epoch's end; NaN without */
    double rate;                          /* the learning rate of the next step; NaN without */
    int metrics;                          /* how many numbers metric[] has, at the epoch's end */
    const double *metric;
} flux_train_info;
/* Called after each batch, and at the end of each epoch; true stops the training. */
typedef bool (*flux_train_fn)(const flux_train_info *at, void *user);

enum { FLUX_MAX_METRICS = 8 };
typedef struct flux_train_opts {
    FLUX__DUMMY
    flux_loss_fn loss FLUX__ZERO;         /* of a batch: loss(model, x, y) */
    flux_layer *model FLUX__ZERO;         /* what is trained */
    flux_loader *data FLUX__ZERO;         /* its batches */
    flux_state *state FLUX__ZERO;         /* by flux_setup, of the model */
    flux__int epochs FLUX__ZERO;          /* default 1; those of the checkpoint count */
    flux_loader *validation FLUX__ZERO;   /* after each epoch its loss is taken, and the metrics, in
                                             test mode and without gradients */
    /* flux_metric(...), at most 8, of the model's output for x, and y, on .validation. A vector
       counts by its mean, so that F1 is the macro average. They hold the last epoch's sums. */
    flux_layer *metrics[8] FLUX__ZERO;
    flux_layer *averaged FLUX__ZERO;      /* a flux_averaged(model) that takes each step in; it is
                                             what is validated and saved as best */
    /* Which epoch is the best: that of the lowest loss, on .validation if that is given, or of the
       highest number of the metric .monitor, which is one of .metrics. */
    flux_layer *monitor FLUX__ZERO;
    flux__int early_stop FLUX__ZERO;      /* stops after so many epochs in a row that were not
                                             better by .min_dist (flux_early_stopping) */
    flux__double min_dist FLUX__ZERO;     /* default 0 */
    const char *best FLUX__ZERO;          /* the file of the best epoch's model, for flux_load */
    /* The file of all that the run needs to go on, written after each epoch, and when a callback,
       SIGTERM or SIGINT (Ctrl-C) stops it, after the batch under way (flux_interrupted). With
       .resume = true the run goes on from the file, if it is there, with the same bits as if it had
       not been stopped: all arguments must be made as they were then. */
    const char *checkpoint FLUX__ZERO;
    bool resume FLUX__ZERO;               /* goes on from the file of .checkpoint */
    const char *progress FLUX__ZERO;      /* a label: draws a bar with samples per second, mean
                                             loss and learning rate, and a line of validation */
    flux_train_fn callback FLUX__ZERO;
    void *user FLUX__ZERO;                /* passed to the callback */
    /* Becomes a float64 tensor, a column for each epoch done, with those before a checkpoint:
       training loss, validation loss (NaN without), each of the metrics. */
    flux_tensor **history FLUX__ZERO;
    flux__marked marked FLUX__ZERO;
} flux_train_opts;
#define FLUX__LEFT_OUT_flux_train_opts .epochs = FLUX__NO_INT, .early_stop = FLUX__NO_INT, \
    .min_dist = FLUX__NO_NUMBER, .marked = true,
/* Trains: for each batch of data it calls loss(model, x, y), takes the gradients, and updates.
   Meanwhile the model is in train mode, whatever modes its layers have. A loss that is not finite
   is an error, and stops before the update. Returns 0, also if it was stopped early, or non-zero on
   error. With a loader of several ranks (.comm), .validation is the same data on every rank, needed
   for .best and .early_stop; rank 0 writes the files. */
FLUX_API int flux_train_with(flux_train_opts o);
FLUX_API int flux_train(flux_loss_fn loss, flux_layer *model, flux_loader *data, flux_state *s);
#define flux_train(...) \
    /* Trains: flux_train(loss, model, data, opt, .epochs = 50). 0, or non-zero on error. */ \
    flux_train_with(FLUX__OPTS(flux_train_opts, __VA_ARGS__))

/* Criteria for stopping, called once per epoch, say; the definitions are Flux's. Each keeps its
   state in a struct of yours that starts as {0}, and returns true when it is time to stop. */
typedef struct flux_stopper { double best; int count; bool started; } flux_stopper;
/* True if the condition held in the last n calls. */
FLUX_API bool flux_patience(flux_stopper *s, bool condition, int n);
/* True if in `delay` calls in a row the score was not lower by min_dist than the best one before.
   NaN is no better score. */
FLUX_API bool flux_early_stopping(flux_stopper *s, double score, int delay, double min_dist);
/* True if in `width` calls in a row the score moved by less than min_dist (0: 1e-6) from the call
   before. */
FLUX_API bool flux_plateau(flux_stopper *s, double score, int width, double min_dist);

#endif /* FLUX__API_TRAINING_H */
