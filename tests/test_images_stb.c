/* Images with stb_image.h and stb_image_write.h (Debian: libstb-dev) before flux.h: all of test_images.c, and PNG, BMP, JPEG.
   Not under sanitizers: stb_image_write.h shifts into the sign bit. */
#ifndef _WIN32
#  define _POSIX_C_SOURCE 200809L
#endif
#include <stdlib.h>
#if defined(__has_include)
#  if __has_include(<stb/stb_image.h>) && __has_include(<stb/stb_image_write.h>) && !defined(__SANITIZE_ADDRESS__)
#    define HAVE_STB
#  endif
#endif

#ifdef HAVE_STB
#  if defined(__GNUC__)
#    pragma GCC diagnostic push
#    pragma GCC diagnostic ignored "-Wunused-function"
#    pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#  endif
#  define STB_IMAGE_IMPLEMENTATION
#  include <stb/stb_image.h>
#  define STB_IMAGE_WRITE_IMPLEMENTATION
#  include <stb/stb_image_write.h>
#  if defined(__GNUC__)
#    pragma GCC diagnostic pop
#  endif
#  define FLUX_IMPLEMENTATION
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
