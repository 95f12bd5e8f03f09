/* Images: what Pillow wrote (tests/fixtures/images, by make_images.py) reads as the pixels it was made of, and is resized to Pillow's
   numbers; what we write reads back; broken files are refused. By itself this is of PGM and PPM, and of the sentence that says
   what to include for others; test_images_stb.c includes it for PNG, BMP and JPEG, too. */
#ifndef _WIN32
#  define _POSIX_C_SOURCE 200809L
#  include <sys/stat.h>
#  define make_folder(path) mkdir(path, 0777)
#else
#  include <direct.h>
#  define make_folder(path) _mkdir(path)
#endif
#include <stdlib.h>
#include "scarce.h"
#include "fixtures/images.h"

#define IMAGE(name) "tests/fixtures/images/" name
#ifndef TMP
#  define TMP(name) "build/test_images." name
#endif

static const char *put(const char *path, const void *data, size_t n) {
    make_folder("build");
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n) test_fail(__FILE__, __LINE__, "cannot write a temporary file");
    if (f) fclose(f);
    return path;
}
#define PUT(path, text) put(path, text, sizeof(text) - 1)
static int pixel(int x, int y, int c) { return (x * 37 + y * 61 + c * 97) % 256; }      /* of a fixture */

/* Whether t is the fixture, 11 x 7 x 3. */
static bool is_fixture(flux_tensor *t) {
    const float *v = t && flux_ndim(t) == 3 && flux_dim(t, 0) == 11 && flux_dim(t, 1) == 7 && flux_dim(t, 2) == 3 ? flux_floats(t) : NULL;
    int bad = 0;
    for (int c = 0; v && c < 3; c++)
        for (int y = 0; y < 7; y++)
            for (int x = 0; x < 11; x++) bad += v[x + 11 * (y + 7 * c)] != (float)pixel(x, y, c) / 255.0f;
    return v && !bad;
}
static double largest_difference(flux_tensor *a, flux_tensor *b) { return flux_item(flux_max(flux_abs(flux_sub(a, b)))); }

TEST(pixmaps) {
    flux_tensor *t = flux_load_image(IMAGE("rgb.ppm")), *grey = flux_load_image(IMAGE("grey.pgm"));
    CHECK(is_fixture(t));
    CHECK(flux_dim(grey, 0) == 11 && flux_dim(grey, 1) == 7 && flux_dim(grey, 2) == 1);
    CHECK(largest_difference(flux_load_image(IMAGE("rgb.ppm"), .channels = 1), grey) < 0.51 / 255);      /* Pillow rounds to bytes */
    flux_tensor *four = flux_load_image(IMAGE("rgb.ppm"), .channels = 4), *three = flux_load_image(IMAGE("grey.pgm"), .channels = 3);
    CHECK(is_fixture(flux_slice(four, 2, 0, 3)) && flux_at(four, 3, 3, 3) == 1);
    CHECK(largest_difference(flux_select(three, 2, 0), flux_select(three, 2, 2)) == 0 && largest_difference(flux_slice(three, 2, 1, 2), grey) == 0);
    t = flux_load_image(PUT(TMP("pgm"), "P5 # by hand\n2 1\n# really\n4\n\1\4"));
    CHECK(flux_at(t, 0, 0, 0) == 64 / 255.0f && flux_at(t, 1, 0, 0) == 1);
    t = flux_load_image(PUT(TMP("pgm"), "P5\n2 1\n65535\n\x80\0\xff\xff"));        /* 16 bits, the high byte first */
    CHECK(flux_at(t, 0, 0, 0) == 128 / 255.0f && flux_at(t, 1, 0, 0) == 1);
}

TEST(resizing) {
#define RESIZED(w, h) CHECK_DATA(flux_reshape(flux_select(flux_load_image(IMAGE("rgb.ppm"), .width = w, .height = h), 2, 0), w * h), resized_##w##x##h, 2e-6)
    RESIZED(5, 3);
    RESIZED(20, 15);
    RESIZED(4, 7);
    RESIZED(1, 1);
    RESIZED(11, 2);
    flux_tensor *t = flux_load_image(IMAGE("rgb.ppm"), .width = 5);
    CHECK(flux_dim(t, 0) == 5 && flux_dim(t, 1) == 7 && flux_dim(t, 2) == 3);
}

TEST(pixmaps_that_are_not) {
    CHECK_ERROR(flux_load_image(NULL), "load_image: argument path is NULL");
    CHECK_ERROR(flux_load_image("no/such.ppm"), "load_image: cannot open no/such.ppm");
    CHECK_ERROR(flux_load_image(PUT(TMP("ppm"), "P6\n2 1\n255\n12345")), "it ends before its pixels do: 2 x 1 of 3 bytes");
    CHECK(flux_dim(flux_load_image(PUT(TMP("ppm"), "P6#5 7\n2 1\n255\n123456")), 0) == 2);        /* a comment may stand there */
    CHECK_ERROR(flux_load_image(PUT(TMP("ppm"), "P6\n2 x\n255\n123456")), "its heading is broken");
    CHECK_ERROR(flux_load_image(PUT(TMP("ppm"), "P6\n2 0\n255\n123456")), "its heading is broken");
    CHECK_ERROR(flux_load_image(PUT(TMP("ppm"), "P6\n2 1\n65536\n123456")), "its heading is broken");
    CHECK_ERROR(flux_load_image(PUT(TMP("ppm"), "P6\n99999999999 99999999999\n255\n123456")), "it ends before its pixels do");
    CHECK_ERROR(flux_load_image(PUT(TMP("ppm"), "P6\n0 1\n255\n123456")), "its heading is broken");
    CHECK_ERROR(flux_load_image(PUT(TMP("ppm"), "P6\n2 1\n0\n123456")), "its heading is broken");
    CHECK_ERROR(flux_load_image(PUT(TMP("ppm"), "P6\n2 1\n-5\n123456")), "its heading is broken");
    static const char whole[] = "P5 #a\n12 # b\n#c\n1#d\n255\nabcdefghijkl";     /* cut at each byte */
    CHECK(flux_at(flux_load_image(put(TMP("pgm"), whole, sizeof whole - 1)), 11, 0, 0) == (double)('l' / 255.0f));
    for (size_t k = 2; k < sizeof whole - 1; k++)
        CHECK_ERROR(flux_load_image(put(TMP("pgm"), whole, k)), k <= sizeof whole - 1 - 13 ? "its heading is broken" : "it ends before its pixels do: ");
    CHECK_ERROR(flux_load_image(IMAGE("rgb.ppm"), .width = 0), "load_image: .width is 0; 1 to 65536 are possible");
    CHECK_ERROR(flux_load_image(IMAGE("rgb.ppm"), .channels = 5), "load_image: .channels is 5; 1 to 4 are possible");
#ifdef HAVE_STB
    CHECK_ERROR(flux_load_image(PUT(TMP("png"), "nothing")), "it can't be decoded: ");
#else
    CHECK_ERROR(flux_load_image(IMAGE("rgb.png")), "rgb.png: it is no PGM or PPM (P5, P6); for others include stb_image.h before flux.h");
    CHECK_ERROR(flux_save_image(flux_ones(2, 2), TMP("png")), "stb_image_write.h is included before flux.h's implementation, with .png");
#endif
}

TEST(saving) {
    flux_tensor *t = flux_load_image(IMAGE("rgb.ppm"));
    CHECK(flux_save_image(t, TMP("ppm")) == 0 && is_fixture(flux_load_image(TMP("ppm"))));
    flux_tensor *g = flux_from_with((float[]){ -1, 0.5f, 2, NAN }, FLUX_F32, FLUX_SHAPE(2, 2));
    CHECK(flux_save_image(g, TMP("PGM")) == 0);
    const double want[4] = { 0, 128.0f / 255, 1, 0 };
    CHECK_DATA(flux_reshape(flux_load_image(TMP("PGM")), 4), want, 1e-7);
    const uint8_t bytes[4] = { 0, 7, 200, 255 };
    CHECK(flux_save_image(flux_from_with(bytes, FLUX_U8, FLUX_SHAPE(2, 2)), TMP("pgm")) == 0);
    CHECK_NEAR(flux_at(flux_load_image(TMP("pgm")), 1, 0, 0), 7.0f / 255, 0);
    CHECK_ERROR(flux_save_image(t, TMP("xyz")), "save_image: " TMP("xyz") ": the name should end with .pgm");
    CHECK_ERROR(flux_save_image(flux_ones(2, 2, 5), TMP("ppm")), "save_image: x is 2x2x5");
    CHECK_ERROR(flux_save_image(flux_ones(2), TMP("ppm")), "a picture is width x height");
    CHECK_ERROR(flux_save_image(flux_ones(0, 2), TMP("ppm")), "a picture is width x height");
    CHECK_ERROR(flux_save_image(NULL, TMP("ppm")), "save_image: argument x is NULL");
    CHECK_ERROR(flux_save_image(t, NULL), "save_image: argument path is NULL");
    CHECK(is_fixture(flux_load_image(TMP("ppm"))));                 /* what was there stays */
}

/* Five pictures of one colour each, in three columns: each lies where it should, with black between. */
TEST(sheets) {
    flux_tensor *x = flux_mul(flux_ones(4, 3, 1, 5), flux_reshape(flux_div(flux_arange(51, 256 + 50, 51), 255), 1, 1, 1, 5));
    CHECK(flux_save_images(x, TMP("pgm"), 3) == 0);
    flux_tensor *s = flux_load_image(TMP("pgm"));
    REQUIRE(s && flux_dim(s, 0) == 3 * 6 + 2 && flux_dim(s, 1) == 2 * 5 + 2);
    for (int y = 0; y < 12; y++)
        for (int px = 0; px < 20; px++) {
            const int i = (px - 2) / 6 + 3 * ((y - 2) / 5);
            const bool inside = px >= 2 && y >= 2 && (px - 2) % 6 < 4 && (y - 2) % 5 < 3 && i < 5;
            CHECK_NEAR(flux_at(s, px, y, 0), inside ? (float)(51 * (i + 1)) / 255 : 0, 1e-6);
        }
    CHECK(flux_save_images(flux_reshape(x, 4, 3, 5), TMP("pgm"), 0) == 0);
    CHECK(flux_dim(flux_load_image(TMP("pgm")), 0) == 20);
    CHECK(flux_save_images(flux_rand(2, 2, 3, 4), TMP("ppm"), 100) == 0);
    CHECK(flux_dim(flux_load_image(TMP("ppm")), 0) == 18 && flux_dim(flux_load_image(TMP("ppm")), 1) == 6);
    CHECK_ERROR(flux_save_images(flux_ones(2, 2), TMP("ppm"), 0), "save_images: x is 2x2");
    CHECK_ERROR(flux_save_images(x, TMP("ppm"), -1), "save_images: -1 columns");
}

#ifdef HAVE_STB
TEST(by_stb) {
    CHECK(is_fixture(flux_load_image(IMAGE("rgb.png"))) && is_fixture(flux_load_image(IMAGE("rgb.bmp"))));
    flux_tensor *a = flux_load_image(IMAGE("rgba.png")), *t = flux_load_image(IMAGE("rgb.ppm"));
    CHECK(flux_dim(a, 2) == 4 && is_fixture(flux_slice(a, 2, 0, 3)));
    CHECK(flux_at(a, 3, 2, 3) == (float)(255 - pixel(3, 2, 0)) / 255.0f);
    static const char *const paths[] = { TMP("png"), TMP("BMP"), TMP("tga") };
    for (int i = 0; i < 3; i++) CHECK(flux_save_image(t, paths[i]) == 0 && is_fixture(flux_load_image(paths[i])));
    flux_tensor *smooth = flux_reshape(flux_div(flux_arange(0, 256, 1), 255), 16, 16);
    CHECK(flux_save_image(smooth, TMP("jpg")) == 0 && largest_difference(flux_load_image(TMP("jpg")), flux_reshape(smooth, 16, 16, 1)) < 0.05);
    CHECK(flux_save_images(flux_rand(8, 8, 3, 9), TMP("sheet.png"), 0) == 0 && flux_dim(flux_load_image(TMP("sheet.png")), 0) == 32);
}
#endif

/* A folder a class: b has one image, a has two, and there are files that are none. */
static void make_folders(void) {
    flux_tensor *t = flux_load_image(IMAGE("rgb.ppm"));
    make_folder("build"), make_folder(TMP("folder")), make_folder(TMP("folder/b")), make_folder(TMP("folder/a")), make_folder(TMP("folder/.c"));
    PUT(TMP("folder/readme.txt"), "x"), PUT(TMP("folder/a/notes.txt"), "x"), PUT(TMP("folder/a/.hidden.ppm"), "x");
    CHECK(flux_save_image(t, TMP("folder/b/1.ppm")) == 0 && flux_save_image(t, TMP("folder/a/2.ppm")) == 0);
    CHECK(flux_save_image(flux_zeros(4, 4), TMP("folder/a/10.pgm")) == 0);
}

TEST(folders) {
    make_folders();
    flux_folder *f = flux_image_folder(TMP("folder"), .width = 6, .height = 4, .channels = 3);
    CHECK(flux_folder_length(f) == 3 && flux_len(f) == 3 && flux_folder_classes(f) == 2);
    CHECK_STR(flux_folder_class(f, 0), "a");
    CHECK_STR(flux_folder_class(f, 1), "b");
    CHECK_STR(flux_folder_path(f, 0), TMP("folder") "/a/10.pgm");
    CHECK_STR(flux_folder_path(f, 2), TMP("folder") "/b/1.ppm");
    for (int workers = 0; workers < 3; workers += 2) {
        flux_loader *l = flux_dataloader(.data = flux_folder_data(f), .batchsize = 2, .workers = workers);
        int64_t seen = 0;
        flux_each (b, l) {
            CHECK(flux_dim(b.x, 0) == 6 && flux_dim(b.x, 1) == 4 && flux_dim(b.x, 2) == 3 && flux_dim(b.x, 3) == b.size);
            CHECK(flux_dtype_of(b.y) == FLUX_I32 && flux_ndim(b.y) == 1);
            for (int64_t i = 0; i < b.size; i++, seen++) CHECK(flux_at(b.y, i) == (seen == 2));
            if (b.index == 0) CHECK(flux_item(flux_sum(flux_select(b.x, 3, 0))) == 0 && flux_item(flux_sum(flux_select(b.x, 3, 1))) > 0);
        }
        CHECK(seen == 3);
    }
    flux_loader *uneven = flux_dataloader(.data = flux_folder_data(flux_image_folder(TMP("folder"))), .batchsize = 3);
    CHECK_ERROR(flux_first(uneven), "has another shape or dtype than that of its first");
    CHECK_ERROR(flux_image_folder(TMP("nowhere")), "image_folder: cannot list " TMP("nowhere") ": ");
    CHECK_ERROR(flux_image_folder(TMP("folder/a")), "has no images in folders, one for each class");
    CHECK_ERROR(flux_image_folder(TMP("folder"), .height = -1), "image_folder: .height is -1");
    CHECK_ERROR(flux_folder_class(f, 2), "folder_class: class 2 of 2");
    CHECK_ERROR(flux_folder_class(f, -1), "folder_class: class -1 of 2");
    CHECK_ERROR(flux_folder_path(f, -1), "folder_path: image -1 of 3");
    CHECK_ERROR(flux_folder_path(f, 3), "folder_path: image 3 of 3");
    CHECK_ERROR(flux_folder_data(NULL), "folder_data: argument f is NULL");
    PUT(TMP("folder/b/1.ppm"), "P6 broken");
    flux_loader *l = flux_dataloader(.data = flux_folder_data(f), .batchsize = 3);
    CHECK_ERROR(flux_first(l), "folder/b/1.ppm: its heading is broken");
}

/* What is counted as an image is so by its name, in letters of either case; none is opened before it is asked for. */
TEST(names_of_images) {
    static const char *const names[] = { "0.png", "1.JPG", "2.jpeg", "3.Bmp", "4.tga", "5.gif", "6.psd", "7.pgm", "8.ppm", "9.pnm",
                                         ".png", "png", "apng", "a.pngs", "a.png.txt", "a.jp", "a.p" };
    char path[300];
    make_folder("build"), make_folder(TMP("kinds")), make_folder(TMP("kinds/all"));
    for (int i = 0; i < 17; i++) {
        snprintf(path, sizeof path, "%s/%s", TMP("kinds/all"), names[i]);
        PUT(path, "x");
    }
    flux_folder *f = flux_image_folder(TMP("kinds"));
    REQUIRE(flux_folder_length(f) == 10);
    for (int i = 0; i < 10; i++) CHECK(strstr(flux_folder_path(f, i), names[i]) != NULL);
    flux_tensor *t = flux_load_image(IMAGE("rgb.ppm"));
    CHECK(flux_save_image(t, TMP("pnm")) == 0 && is_fixture(flux_load_image(TMP("pnm"))));
}

/* Memory may run out at any allocation but stb's own. */
static bool scarce_call(int which) {
    flux_tensor *x = which == 1 ? flux_ones(4, 3, 2) : NULL;
    flux_folder *f;
    switch (which) {
    case 0: return flux_load_image(IMAGE("rgb.ppm"), .width = 5, .height = 3) != NULL;
    case 1: return x && flux_save_images(x, TMP("scarce.pgm"), 0) == 0;
    default: f = flux_image_folder(TMP("folder"), .width = 4, .height = 4); return f && flux_folder_length(f) == 3;
    }
}
TEST(out_of_memory) {
    make_folders();
    for (int which = 0; which < 3; which++) SCARCE(scarce_call(which), 2, 1);
}

TEST_MAIN()
