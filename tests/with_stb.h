/* HAVE_STB: stb_image.h and stb_image_write.h are there (Debian: libstb-dev). Where the implementation
   is compiled (tests/impl.c with TEST_OPENED, to which test_images_stb is linked), they are included.
   Not under the address sanitizer: stb_image_write.h shifts into the sign bit. */
#if defined(__has_include)
#  if __has_include(<stb/stb_image.h>) && __has_include(<stb/stb_image_write.h>) && !defined(__SANITIZE_ADDRESS__)
#    define HAVE_STB
#  endif
#endif
#if defined(HAVE_STB) && (defined(FLUX_IMPL_C) || !defined(TEST_OPENED))
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
#endif
