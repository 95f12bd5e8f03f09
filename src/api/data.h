#ifndef FLUX__API_DATA_H
#define FLUX__API_DATA_H
#include "optimisers.h"

/* ------------------------------------------------------------------ data */

typedef struct flux_batch {
    flux_tensor *x, *y;                   /* the first and the second array's part (y NULL if there is one array) */
    flux_tensor *const *item;             /* all of them */
    int count;                            /* how many */
    int64_t index, size;                  /* which batch, and how many observations it has */
} flux_batch;

typedef struct flux_dataset {             /* a data set of your own: flux_dataloader(.data = &mine) */
    void *user;
    int64_t (*length)(void *user);        /* observations */
    int (*get)(void *user, int64_t i, int n, flux_tensor **out);   /* makes observation i's n arrays; non-zero: failed */
    int arrays;                           /* how many arrays an observation has */
} flux_dataset;
typedef enum flux_collate { FLUX_COLLATE_DEFAULT, FLUX_COLLATE_BATCH, FLUX_COLLATE_NONE } flux_collate;

typedef struct flux_loader_opts {
    FLUX__DUMMY
    flux_tensor *x FLUX__ZERO, *y FLUX__ZERO, *z FLUX__ZERO, *x3 FLUX__ZERO, *x4 FLUX__ZERO, *x5 FLUX__ZERO, *x6 FLUX__ZERO, *x7 FLUX__ZERO;
    flux__int batchsize FLUX__ZERO;       /* default 1; negative: single observations, without a batch dimension */
    bool shuffle FLUX__ZERO;              /* a new order every epoch */
    flux__switch partial FLUX__ZERO;      /* FLUX_OFF drops a short last batch */
    flux_collate collate FLUX__ZERO;      /* NONE: each item of a batch is a tuple of its observations */
    flux_batch (*transform)(flux_batch b, void *user) FLUX__ZERO;   /* applied to every batch; may run on a worker */
    void *user FLUX__ZERO;
    int workers FLUX__ZERO;               /* threads that prepare batches ahead, in the same order; 0: none */
    flux__uint64 seed FLUX__ZERO;         /* of the shuffling; default drawn from flux_seed's stream */
    const flux_dataset *data FLUX__ZERO;  /* in place of arrays */
    int rank FLUX__ZERO; flux__int ranks FLUX__ZERO;/* this process's share: sizes differ by at most one, as many batches for each */
    flux__marked marked FLUX__ZERO;
} flux_loader_opts;
#define FLUX__LEFT_OUT_flux_loader_opts .batchsize = FLUX__NO_INT, .partial = FLUX_DEFAULT, \
    .seed = FLUX__NO_SEED, .ranks = FLUX__NO_INT, .marked = true,
FLUX_API flux_loader *flux_dataloader_with(flux_loader_opts o);
/* Arrays of equal last dimension, then options: flux_dataloader(X, Y, .batchsize = 64, .shuffle = true). */
#define flux_dataloader(...) flux_dataloader_with(FLUX__OPTS(flux_loader_opts, __VA_ARGS__))
FLUX_API int64_t flux_length(const flux_loader *l);               /* batches in an epoch */
FLUX_API flux_batch flux_first(flux_loader *l);                   /* the batch an epoch would start with, in order */
FLUX_API flux_loader *flux_cuiterator(flux_loader *l);            /* as flux_cu, but float64 stays */
FLUX_API flux_loader *flux_mapobs(flux_fn f, flux_loader *l);     /* f applied to every array of every batch */
FLUX_API int flux_splitobs(double part, flux_tensor *x, flux_tensor **first, flux_tensor **second);   /* along the last dimension */
FLUX_API flux_tensor *flux_shuffleobs(flux_tensor *x, uint64_t seed);   /* the same seed gives the same order */

/* flux_each (b, loader) { ... b.x ... b.y ... }: one epoch. Each iteration is a scope; none follows an error.
   flux_each (b, loader, .progress = "label") draws a bar with samples per second on stderr. */
#define flux_each(b, ...) FLUX__EACH(b, __VA_ARGS__)
FLUX_API void flux_progress(const char *label, flux_tensor *value);     /* shows a value beside the innermost bar */
FLUX_API void flux_progress_number(const char *label, double value);

/* Files. A failed load returns NULL (or non-zero), says what is wrong with the file and where, and changes nothing. */
FLUX_API flux_tensor *flux_load_idx(const char *path);            /* MNIST's format; dims in reverse: 28 x 28 x N */
FLUX_API flux_tensor *flux_load_npy(const char *path);            /* NumPy's shape, whichever order the file has */
FLUX_API int flux_save_npy(flux_tensor *x, const char *path);     /* read by numpy.load with the same shape */
FLUX_API flux_tensor *flux_load_csv(const char *path);            /* numbers: columns x lines, float32; a heading line is skipped;
                                                                     of a pipe or device at most 256 MiB */
/* safetensors, one file, read by Python's library (dimensions in reverse there, as memory is row-major).
   flux_save(model, "m.safetensors") writes whole or not at all; flux_load needs the same names, shapes and dtypes.
   flux_load_all looks only at the names of the things it is given: a file may hold more. Over a link the file behind it is
   replaced. An optimiser state's numbers go with it: flux_load(opt, path) brings back what flux_adjust set, and if they are to
   be others, flux_adjust comes after it. */
FLUX_API int flux_save_tensor(flux_tensor *x, const char *path);
FLUX_API int flux_save_layer(flux_layer *m, const char *path);
FLUX_API int flux_save_state(flux_state *s, const char *path);
FLUX_API int flux_load_layer(flux_layer *m, const char *path);
FLUX_API int flux_load_state(flux_state *s, const char *path);
/* A state_dict that PyTorch saved as safetensors, into a model of the same architecture: names, orders of dimensions and turned
   kernels are translated. "layers.3.weight" is looked for as "3.weight", which suits nn.Sequential and names given by
   flux_named; map says otherwise: "layers.0 = conv1, layers.1 = bn1". With "layers.9 =" that part stays as it is, with
   "= head" theirs is left out. Of an nn.LSTM of two layers the second is "layers.1 = lstm.*_l1"; two biases are added, where
   our gru has .hidden_bias if theirs is not 0 there; in_proj is shared out. NULL: no map. 0: done. */
FLUX_API int flux_load_torch(flux_layer *m, const char *path, const char *map);
FLUX_API flux_tensor *flux_load_tensor(const char *path, const char *name);  /* one tensor; name NULL: the only one */
/* Several things in one file, by their C names: flux_save_all("run.safetensors", model, opt), and back. A run that is to go on
   as if it had not been interrupted, bit for bit, has its loader there too, of which the epoch is kept, and random numbers:
       flux_tensor *random = flux_random_state();                    // between two epochs
       flux_save_all("run.safetensors", model, opt, loader, random);
       ...
       flux_load_all("run.safetensors", model, opt, loader);         // made as they were then
       flux_set_random_state(flux_load_tensor("run.safetensors", "random")); */
FLUX_API int flux_save_items(const char *path, int n, const char *names, const void *const *items);   /* names: "model, opt" */
FLUX_API int flux_load_items(const char *path, int n, const char *names, const void *const *items);
#define flux_save_all(path, ...) flux_save_items(path, FLUX__NARG(__VA_ARGS__), #__VA_ARGS__, FLUX__OBJECTS(__VA_ARGS__))
#define flux_load_all(path, ...) flux_load_items(path, FLUX__NARG(__VA_ARGS__), #__VA_ARGS__, FLUX__OBJECTS(__VA_ARGS__))

#endif /* FLUX__API_DATA_H */
