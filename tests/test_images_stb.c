/* Images with stb_image.h and stb_image_write.h before flux.h: all of test_images.c, and PNG, BMP, JPEG. */
#ifndef _WIN32
#  define _POSIX_C_SOURCE 200809L
#endif
#include <stdlib.h>
#include "with_stb.h"
#ifdef HAVE_STB
#  define FLUX_IMPLEMENTATION             /* which has them: tests/impl.c with TEST_OPENED */
#  define TMP(name) "build/test_images_stb." name
#  include "test_images.c"
#else
#include <stdio.h>
int main(void) {
    puts("skipped images by stb: no stb_image.h and stb_image_write.h, or a sanitizer; package: libstb-dev");
    puts("0 passed, 0 failed, 1 skipped");
    return 0;
}
#endif
