/* What devices there are, which is chosen and why; the preference that is kept in a file.
   expect: CPU    functional: true, devices: 1
   expect: Metal  functional: false, devices: 0
   expect: MIOpen: false
   expect: preferred: CUDA, set: false
   expect: get_device: using
   expect: then: CPU, set: true
   expect: 0 CPU */
#define FLUX_IMPLEMENTATION
#include "flux.h"

int main(void) {
    for (const char *const *name = flux_supported_devices(); *name; name++) {
        printf("%-6s functional: %s, devices: %d\n", *name, flux_functional(*name) ? "true" : "false", flux_device_count(*name));
        printf("       %s\n", flux_functional_reason(*name));
    }
    printf("MIOpen: %s\n", flux_functional_with("AMDGPU", "MIOpen") ? "true" : "false");
    printf("preferred: %s, set: %s\n", flux_gpu_backend(), flux_gpu_backend_is_set() ? "true" : "false");

    flux_device best = flux_get_device(.verbose = true);
    flux_layer *model = flux_to(best, flux_dense(2, 3));
    flux_print(flux_weight(model));
    if (flux_device_count("CUDA") >= 2) {
        model = flux_to(flux_get_device(.backend = "CUDA", .id = 0), model);
        model = flux_to(flux_get_device(.backend = "CUDA", .id = 1), model);
        flux_print(model);
    }
    flux_gpu_backend_set("CPU");
    printf("then: %s, set: %s\n", flux_gpu_backend(), flux_gpu_backend_is_set() ? "true" : "false");
    flux_device d = flux_device_of(flux_gpu(flux_weight(model)));
    printf("%d %s\n", flux_device_id(d), flux_device_backend(d));
    return flux_failed();
}
