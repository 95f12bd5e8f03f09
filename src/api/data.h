#ifndef FLUX__API_DATA_H
#define FLUX__API_DATA_H
#include "optimisers.h"

/* ------------------------------------------------------------------ data
   A data set is one or several arrays whose last dimension counts the observations: features x n
   and labels of n, say. A loader hands it out in batches. */

/* The part of each array that belongs to a batch: features x size, and so on. */
typedef struct flux_batch {
    flux_tensor *x, *y;   /* of the first and second array; y NULL if there is one */
    flux_tensor *const *item;             /* of all arrays: item[0] is x */
    int count;                            /* how many arrays there are */
    int64_t index, size;                  /* the batch's number in its epoch, its observations */
} flux_batch;

/* A data set of your own: flux_dataloader(.data = &mine). */
typedef struct flux_dataset {
    void *user;                           /* passed to both functions */
    int64_t (*length)(void *user);        /* how many observations there are */
    /* Makes the n arrays of observation i, without a batch dimension, in out[0] ... out[n-1].
       Returns 0, or non-zero on failure. */
    int (*get)(void *user, int64_t i, int n, flux_tensor **out);
    int arrays;                           /* n: how many arrays an observation has, at least 1 */
} flux_dataset;
/* DEFAULT and BATCH put the observations of a batch into one tensor; NONE makes a tuple of them. */
typedef enum flux_collate {
    FLUX_COLLATE_DEFAULT, FLUX_COLLATE_BATCH, FLUX_COLLATE_NONE
} flux_collate;
/* Where observations can't be shared evenly: some ranks take one more, which is DEFAULT; or as many
   as do not fit are left out, others in each epoch if all are shuffled; or some come twice. */
typedef enum flux_even {
    FLUX_EVEN_DEFAULT, FLUX_EVEN_DROP, FLUX_EVEN_REPEAT
} flux_even;

typedef struct flux_loader_opts {
    FLUX__DUMMY
    flux_tensor *x FLUX__ZERO, *y FLUX__ZERO, *z FLUX__ZERO, *x3 FLUX__ZERO, *x4 FLUX__ZERO,
        *x5 FLUX__ZERO, *x6 FLUX__ZERO, *x7 FLUX__ZERO;      /* the arrays, or tuples of arrays */
    flux__int batchsize FLUX__ZERO;       /* default 1; 0 is an error; negative: single
                                             observations, without a batch dimension */
    bool shuffle FLUX__ZERO;              /* a new order in every epoch */
    /* Weighted sampling: a vector of a number for each observation, 0 or more. An epoch has as many
       observations as ever, but each is drawn from all of them, with a chance in proportion to its
       weight: flux_balanced_weights(labels) makes all classes equally frequent. */
    flux_tensor *weights FLUX__ZERO;
    flux__switch partial FLUX__ZERO;      /* FLUX_OFF drops a last batch that is not full */
    flux_collate collate FLUX__ZERO;      /* NONE: each item of a batch is a tuple of its
                                             observations, at most 255 */
    /* Applied to every batch, with .user; it may run on a worker thread. */
    flux_batch (*transform)(flux_batch b, void *user) FLUX__ZERO;
    void *user FLUX__ZERO;                /* passed to transform */
    int workers FLUX__ZERO;               /* threads that prepare batches ahead; the order of the
                                             batches stays the same; 0: none */
    flux__uint64 seed FLUX__ZERO;         /* of the shuffling; by default it is drawn from the
                                             thread's random numbers (flux_seed) */
    const flux_dataset *data FLUX__ZERO;  /* a data set of your own, in place of arrays */
    /* This process takes share .rank of .ranks (default 1). Shares differ by at most one
       observation, and every process gets the same number of batches: where the last one would be
       empty, it gets the last observation of the one before it (with a batchsize of 1: a second
       time). Otherwise batch i of all processes together is batch i of one whose batchsize is their
       sum. With .shuffle and the same .seed everywhere, all observations are shuffled, else each
       share. */
    int rank FLUX__ZERO; flux__int ranks FLUX__ZERO;
    /* The rank and ranks of a communicator, which also gives all of them one seed, and by which
       gradients of batches of different sizes are weighed (flux_distributed_optimiser). */
    flux_comm *comm FLUX__ZERO;
    flux_even even FLUX__ZERO;            /* DROP or REPEAT: every rank has as many observations, in
                                             each batch too; a warning says so once */
    flux__marked marked FLUX__ZERO;
} flux_loader_opts;
#define FLUX__LEFT_OUT_flux_loader_opts .batchsize = FLUX__NO_INT, .partial = FLUX_DEFAULT, \
    .seed = FLUX__NO_SEED, .ranks = FLUX__NO_INT, .marked = true,
FLUX_API flux_loader *flux_dataloader_with(flux_loader_opts o);
#define flux_dataloader(...) \
    /* Arrays with the same number of observations, then options: flux_dataloader(X, Y, .batchsize
       = 64, .shuffle = true). Arrays that disagree are an error. */ \
    flux_dataloader_with(FLUX__OPTS(flux_loader_opts, __VA_ARGS__))
/* Batches in an epoch; flux_len(l) is the same. */
FLUX_API int64_t flux_length(const flux_loader *l);
/* The first batch, not shuffled. */
FLUX_API flux_batch flux_first(flux_loader *l);
/* As flux_cu, but float64 stays. */
FLUX_API flux_loader *flux_cuiterator(flux_loader *l);
/* A loader whose batches have f applied to each of their arrays. */
FLUX_API flux_loader *flux_mapobs(flux_fn f, flux_loader *l);
/* What follows takes an array, or several that belong together as a tuple, and gives the same:
       flux_tensor *all = flux_shuffleobs(flux_tuple(X, Y), 1), *learn, *held;
       flux_splitobs(0.8, all, &learn, &held);
       flux_loader *data = flux_dataloader(learn, .batchsize = 64);
   The last dimension counts the observations. The names are those of MLUtils.jl. */
/* Cuts x in two: the first `part` (0 to 1) of the observations, rounded to whole ones, goes to
   *first, the rest to *second; both are views. Either pointer may be NULL. Returns 0, or -1 on
   error. */
FLUX_API int flux_splitobs(double part, flux_tensor *x, flux_tensor **first, flux_tensor **second);
/* x with its observations in random order. The order depends on the seed and on their number only,
   so arrays of equal length stay in step. */
FLUX_API flux_tensor *flux_shuffleobs(flux_tensor *x, uint64_t seed);
/* Fold i, from 0, of k: *held is the i-th of k pieces in a row, whose sizes differ by one at most,
   and *learn is all else. Shuffle before: pieces are cut as the observations stand. *held is a
   view. Returns 0, or -1 on error; k is 2 up to the number of observations. */
FLUX_API int flux_kfolds(int k, int i, flux_tensor *x, flux_tensor **learn, flux_tensor **held);
/* x with as many observations of each class, in random order by the seed: of the largest class,
   where others are repeated as evenly as can be, or of the smallest, where others lose some by
   chance. labels: an integer for each observation, or one-hot. Put the labels into the tuple too
   if they are to come along. */
FLUX_API flux_tensor *flux_oversample(flux_tensor *x, flux_tensor *labels, uint64_t seed);
/* x with as many of each class as the smallest has; the seed says which. */
FLUX_API flux_tensor *flux_undersample(flux_tensor *x, flux_tensor *labels, uint64_t seed);
/* For each observation n / (classes * how many are of its class), float64: its mean is 1. */
FLUX_API flux_tensor *flux_balanced_weights(flux_tensor *labels);

#define flux_each(b, ...) \
    /* flux_each (b, loader) { ... b.x ... b.y ... } is a loop over the batches of one epoch. Each
       iteration is a scope; after an error there is no further one. The loop flux_each (b,
       loader, .progress = "label") draws a bar with samples per second on stderr. */ \
    FLUX__EACH(b, __VA_ARGS__)
/* Shows a value beside the innermost progress bar: a one-element tensor, or a number. */
FLUX_API void flux_progress(const char *label, flux_tensor *value);
/* Shows a number beside the innermost progress bar. */
FLUX_API void flux_progress_number(const char *label, double value);

/* Files. A load that fails returns NULL (or non-zero), says what is wrong with the file and where,
   and changes nothing. Functions that return int return 0 on success. A file that is compressed by
   gzip is read like any other, whatever its name: zlib is opened for that (FLUX_ZLIB_LIBRARY). */
/* The IDX format of MNIST. Dimensions are in reverse order: N images are 28 x 28 x N. */
FLUX_API flux_tensor *flux_load_idx(const char *path);
/* NumPy's format. The shape is the one that NumPy shows, whether the file is in C or in Fortran
   order; numpy.load in turn shows the shape of the tensor that was saved. */
FLUX_API flux_tensor *flux_load_npy(const char *path);
/* Writes x in NumPy's format. 0, or non-zero on error. */
FLUX_API int flux_save_npy(flux_tensor *x, const char *path);
/* NumPy's archives of several arrays, by numpy.savez or savez_compressed. If name is NULL, the only
   array; having more is an error then, which lists their names. */
FLUX_API flux_tensor *flux_load_npz(const char *path, const char *name);
/* Writes the names of an archive's arrays, "x, y", to out, at most n bytes with the final 0, and
   returns how many arrays there are; -1: an error. */
FLUX_API int flux_npz_names(const char *path, char *out, size_t n);
/* flux_save_npz("run.npz", x, y) writes an archive of tensors by their C names, not compressed: in
   Python, numpy.load("run.npz")["x"]. names: those of the n items, "x, y". */
FLUX_API int flux_save_npz_with(const char *path, int n, const char *names,
                                 const void *const *items);
#define flux_save_npz(path, ...) \
    /* Writes tensors by their C names: flux_save_npz("run.npz", x, y). 0, or non-zero on
       error. */ \
    flux_save_npz_with(path, FLUX__NARG(__VA_ARGS__), #__VA_ARGS__, FLUX__OBJECTS(__VA_ARGS__))
/* Lines of numbers: float32, columns x lines. A heading line is skipped. From a pipe or a device it
   reads at most 256 MiB. */
FLUX_API flux_tensor *flux_load_csv(const char *path);
typedef struct flux_table_opts {
    FLUX__DUMMY
    const char *path FLUX__ZERO;          /* of the file */
    char separator FLUX__ZERO;            /* default: the one of , ; | and tab that the first line
                                             has most often, else blanks */
    flux__switch heading FLUX__ZERO;      /* default: the first line is one if no field of it is a
                                             number. Without one, columns are called 0, 1, ... */
    flux__double missing FLUX__ZERO;      /* the value of what is missing; default NaN */
    flux__marked marked FLUX__ZERO;
} flux_table_opts;
#define FLUX__LEFT_OUT_flux_table_opts \
    .heading = FLUX_DEFAULT, .missing = FLUX__NO_NUMBER, .marked = true,
FLUX_API flux_table *flux_load_table_with(flux_table_opts o);
#define flux_load_table(...) \
    /* A csv whose columns have names, hold numbers or texts, and may lack some:
           flux_table *t = flux_load_table("passengers.csv");
           flux_tensor *x = flux_columns(t, "age, fare, sex");           // 3 x rows, float32
           flux_column_label(t, "sex", 0)                                // "female"
       Texts are coded 0, 1, 2, ... in the order of their bytes; a column is one of texts if any
       field of it is. Missing is a field that is empty, or na, n/a, nan, null, none, #n/a or ?,
       in letters of either case. Fields may stand in quotes ("" is a quote), lines may end in
       either way, empty ones and those that begin with # are passed over; all others have as many
       fields as the first. */ \
    flux_load_table_with(FLUX__OPTS(flux_table_opts, __VA_ARGS__))
/* How many rows a table has. */
FLUX_API int64_t flux_table_rows(const flux_table *t);
/* How many columns a table has. */
FLUX_API int flux_table_columns(const flux_table *t);
/* The name of column i; it lives as long as the table, and so do labels. */
FLUX_API const char *flux_column_name(const flux_table *t, int i);
/* By its name, or its number ("2"): how many fields of a column are missing; how many different
   texts it has, 0 if it is one of numbers; and the text of a code. -1 or NULL: an error. */
FLUX_API int64_t flux_column_missing(const flux_table *t, const char *name);
/* How many different texts a column has; 0 if it is one of numbers; -1: an error. */
FLUX_API int64_t flux_column_labels(const flux_table *t, const char *name);
/* The text of a code of a column; NULL: an error. */
FLUX_API const char *flux_column_label(const flux_table *t, const char *name, int64_t code);
/* Some columns, by names or numbers, in that order; NULL: all of them. */
FLUX_API flux_tensor *flux_columns(const flux_table *t, const char *names);
typedef struct flux_image_opts {
    FLUX__DUMMY
    const char *path FLUX__ZERO;          /* of the file, or the folder */
    flux__int width FLUX__ZERO, height FLUX__ZERO, channels FLUX__ZERO; /* default: the file's */
    flux__marked marked FLUX__ZERO;
} flux_image_opts;
#define FLUX__LEFT_OUT_flux_image_opts \
    .width = FLUX__NO_INT, .height = FLUX__NO_INT, .channels = FLUX__NO_INT, .marked = true,
FLUX_API flux_tensor *flux_load_image_with(flux_image_opts o);
#define flux_load_image(...) \
    /* A picture as width x height x channels, float32 from 0 to 1, its first row on top: PGM and
       PPM (P5, P6), and PNG, JPEG, BMP, TGA, GIF and others where the program has included
       stb_image.h before the implementation of this file (stb_image_write.h, for those that are
       saved):
           #define STB_IMAGE_IMPLEMENTATION
           #include "stb_image.h"
           #define FLUX_IMPLEMENTATION
           #include "flux.h"
       It is resized where a width or a height is given, by the triangle filter of Pillow's and
       torchvision's bilinear resizing, and has other channels where those are given: 1 grey, 2
       grey and alpha, 3 colours, 4 colours and alpha. flux_load_image("cat.png", .width = 64,
       .height = 64) */ \
    flux_load_image_with(FLUX__OPTS(flux_image_opts, __VA_ARGS__))
/* Writes x, width x height or width x height x channels, as a picture whose format the path's end
   says: .pgm, .ppm, or by stb_image_write.h .png, .jpg, .bmp, .tga. Numbers are cut off at 0 and 1;
   those of uint8 are 0 to 255. */
FLUX_API int flux_save_image(flux_tensor *x, const char *path);
/* Writes a batch, width x height x n or width x height x channels x n, as one picture with so many
   columns; 0: about as many as rows. */
FLUX_API int flux_save_images(flux_tensor *x, const char *path, int columns);
/* A folder of folders of images, each of which is a class; names decide the order. Images are read
   and resized as a loader asks for them, on its workers:
       flux_folder *pets = flux_image_folder("pets", .width = 64, .height = 64, .channels = 3);
       flux_loader *l = flux_dataloader(.data = flux_folder_data(pets), .batchsize = 32,
                                        .shuffle = true, .workers = 2);
   b.x is 64 x 64 x 3 x 32, and b.y has 32 labels of int32: label i is flux_folder_class(pets, i).
   The folder must live as long as the loader. */
FLUX_API flux_folder *flux_image_folder_with(flux_image_opts o);
#define flux_image_folder(...) \
    /* Images in folders, a folder a class: flux_image_folder("pets", .width = 64). */ \
    flux_image_folder_with(FLUX__OPTS(flux_image_opts, __VA_ARGS__))
/* The folder as a data set, for flux_dataloader(.data = ...). */
FLUX_API const flux_dataset *flux_folder_data(const flux_folder *f);
/* How many images; flux_len(f) is the same. */
FLUX_API int64_t flux_folder_length(const flux_folder *f);
/* How many classes. */
FLUX_API int flux_folder_classes(const flux_folder *f);
/* The name of class i. */
FLUX_API const char *flux_folder_class(const flux_folder *f, int i);
/* The path of image i. */
FLUX_API const char *flux_folder_path(const flux_folder *f, int64_t i);
/* safetensors: one file, which Python's library reads too (there the dimensions are in reverse
   order, because its memory is row-major). flux_save(model, "m.safetensors") writes the whole file
   or nothing; if path is a link, the file that it points to is replaced. flux_load needs the same
   names, shapes and dtypes in the file. flux_load_all looks only for the names of the objects that
   it is given; the file may hold more. The state of an optimiser is saved with its
   hyper-parameters: flux_load(opt, path) brings back what flux_adjust had set; to have others, call
   flux_adjust after it. */
FLUX_API int flux_save_tensor(flux_tensor *x, const char *path);
FLUX_API int flux_save_layer(flux_layer *m, const char *path);
FLUX_API int flux_save_state(flux_state *s, const char *path);
FLUX_API int flux_load_layer(flux_layer *m, const char *path);
FLUX_API int flux_load_state(flux_state *s, const char *path);
/* Loads a state_dict that PyTorch saved as safetensors into a model of the same architecture, and
   translates names, the order of dimensions, transposed matrices and flipped kernels. The parameter
   "layers.3.weight" is read from "3.weight", which suits nn.Sequential and names given by
   flux_named. Where the names differ, map (NULL: none) says which is which, in entries:
     "layers.0 = conv1, layers.1 = bn1"   our layers.0 is their conv1, ...
     "layers.9 ="                         that part of the model stays as it is
     "= head"                             that part of the file is left out
     "layers.1 = lstm.*_l1"               the second layer of a two-layer nn.LSTM
   PyTorch's two biases of a recurrent layer are added up; for a GRU whose second candidate bias is
   not 0, make the gru with .hidden_bias. The in_proj matrix of an attention is split into its three
   parts. Returns 0, or non-zero on error. */
FLUX_API int flux_load_torch(flux_layer *m, const char *path, const char *map);
/* The reverse: writes a model as safetensors with the names and layouts of PyTorch's state_dict, so
   that model.load_state_dict(safetensors.torch.load_file(path), strict=True) takes it. The map is
   that of flux_load_torch; "layers.9 =" leaves that part of ours out. PyTorch's second bias of a
   recurrent layer is 0, but for what .hidden_bias holds, and num_batches_tracked is 0. A tied
   tensor is written under each of its names. Returns 0, or non-zero on error. */
FLUX_API int flux_save_torch(flux_layer *m, const char *path, const char *map);
/* One tensor of a safetensors file. If name is NULL, the only one; having more is an error then. */
FLUX_API flux_tensor *flux_load_tensor(const char *path, const char *name);
/* Several objects in one file, by their C names: flux_save_all("run.safetensors", model, opt);
   flux_load_all with the same names reads them back. To resume a run bit for bit as if it had not
   been interrupted, save the loader too, which keeps its epoch, and the random numbers:
       flux_tensor *random = flux_random_state();                    // between two epochs
       flux_save_all("run.safetensors", model, opt, loader, random);
       ...
       flux_load_all("run.safetensors", model, opt, loader);         // made as they were then
       flux_set_random_state(flux_load_tensor("run.safetensors", "random")); */
/* names: those of the n items, "model, opt" */
FLUX_API int flux_save_all_with(const char *path, int n, const char *names,
                                const void *const *items);
FLUX_API int flux_load_all_with(const char *path, int n, const char *names,
                                const void *const *items);
#define flux_save_all(path, ...) \
    /* Writes objects by their C names: flux_save_all("run.safetensors", model, opt). */ \
    flux_save_all_with(path, FLUX__NARG(__VA_ARGS__), #__VA_ARGS__, FLUX__OBJECTS(__VA_ARGS__))
#define flux_load_all(path, ...) \
    /* Reads them back, by the same names. 0, or non-zero on error. */ \
    flux_load_all_with(path, FLUX__NARG(__VA_ARGS__), #__VA_ARGS__, FLUX__OBJECTS(__VA_ARGS__))

#endif /* FLUX__API_DATA_H */
