#ifndef FLUX__DEVICE_CHOOSING_H
#define FLUX__DEVICE_CHOOSING_H
#include "../base/platform.h"
#include "../base/errors.h"
#include "../base/backend.h"
#include "../base/text.h"
#include "registry.h"
#include "preferences.h"

/* ---------------------------------------------------------------------- device/choosing.h
   The choice of a device: flux_get_device_with follows the argument, else the
   preference (FLUX_GPU_BACKEND or the preferences file), else the order CUDA,
   AMDGPU, Metal, CPU.

   Invariant: without an argument there is always a choice, since the CPU always
   works; a preference that cannot be followed is a warning that says why, and a
   device is chosen automatically. A back end that was asked for by name and
   cannot be used is an error with the reason (flux__named_backend), and the
   device that is returned has back end -1. Choosing changes no device and not
   the default one. */

FLUX__BEGIN_COLD

/* Writes why no GPU can be used: "CUDA, AMDGPU: not part of this build; Metal: ..." */
static void flux__why_none(char *out, size_t n) {
    const char *last = "";
    flux__sink s = flux__sink_to(out, n);
    for (int i = 0; i < FLUX__BACKENDS - 1; i++) {
        int b = flux__order[i];
        const char *why = flux__probe_of(b)->why;
        const char *next = i + 2 < FLUX__BACKENDS ? flux__probe_of(flux__order[i + 1])->why : "";
        bool group = strcmp(why, next) == 0;
        flux__putf(&s, "%s%s%s%.200s", i == 0 ? "" : strcmp(last, why) == 0 ? ", " : "; ",
                   flux__backends[b].name, group ? "" : ": ", group ? "" : why);
        last = why;
    }
    flux__sink_end(&s);
}

/* Writes why no GPU that this build knows can be used: "CUDA: no NVIDIA driver: ..."; nothing if it
   knows none. */
static void flux__why_no_gpu(char *out, size_t n) {
    flux__sink s = flux__sink_to(out, n);
    for (int i = 0; i < FLUX__BACKENDS - 1; i++) {
        int b = flux__order[i];
        if (flux__backend_of(b)->available == flux__not_built) continue;
        flux__putf(&s, "%s%s: %.200s", s.len ? "; " : "", flux__backends[b].name,
                   flux__probe_of(b)->why);
    }
    flux__sink_end(&s);
}

/* Of several processes on a machine, the number of this one: flux_gpu and the like take the GPU of
   that number. */
static int flux__gpu_rank;
/* The id of the GPU that this process takes of a back end that works. */
static int flux__own_gpu(int b) {
    const int n = flux__probe_of(b)->count;
    return n > 1 ? flux__gpu_rank % n : 0;
}

/* The back end to use: the preferred one if it works, else the first of flux__order that works.
   `warn`: gives a warning when the preference can't be followed; `verbose`: says what was
   chosen. */
static int flux__choose(bool verbose, bool warn) {
    const char *want = flux__preference();
    int b = want ? flux__backend_number(want) : -1;
    if (want && b < 0)
        flux__note(FLUX_LOG_WARN, "device.preference", true,
                   "the preference gpu_backend is \"%.60s\", but there are only "
                   FLUX__BACKEND_NAMES ": a device is chosen automatically", want);
    if (b >= 0) {
        const flux__probe *p = flux__probe_of(b);
        const char *name = flux__backends[b].name;
        if (verbose)
            flux__note(FLUX_LOG_INFO, "device.preferred", false,
                       "get_device: following the preference %s", name);
        if (p->functional) return b;
        if (warn && !p->available)
            flux__note(FLUX_LOG_WARN, "device.unavailable", false,
                       "the preferred back end %s is not available here (%s): "
                       "a device is chosen automatically",
                       name, p->why);
        else if (warn)
            flux__note(FLUX_LOG_WARN, "device.not_functional", false,
                       "the preferred back end %s is there but does not work (%s): "
                       "a device is chosen automatically",
                       name, p->why);
    }
    int i = 0;
    while (flux__order[i] != FLUX__CPU_BACKEND && !flux__probe_of(flux__order[i])->functional) i++;
    b = flux__order[i];
    char why[640] = "";
    if (b == FLUX__CPU_BACKEND) flux__why_none(why, sizeof why);
    if (verbose)
        flux__note(FLUX_LOG_INFO, "device.chosen", false, "get_device: using %s%s%s",
                   flux__backends[b].name, *why ? ": " : "", why);
    return b;
}

/* The back end that was asked for by name if it can be used; otherwise -1 and an error. */
static int flux__named_backend(const char *call, const char *name) {
    int b = flux__backend_arg(call, name);
    if (b < 0) return -1;
    const flux__probe *p = flux__probe_of(b);
    if (p->functional) return b;
    if (!p->available)
        flux__fail("%s: back end %s is unavailable: %s", call, flux__backends[b].name, p->why);
    else flux__fail("%s: back end %s does not work here: %s", call, flux__backends[b].name, p->why);
    return -1;
}

FLUX_DEF flux_device flux_get_device_with(flux_get_device_opts opts) {
    flux_device d = { -1, 0 };
    int b = opts.backend ? flux__named_backend("get_device", opts.backend)
                         : flux__choose(opts.verbose, true);
    if (b < 0) return d;
    int count = flux__probe_of(b)->count, id = b == FLUX__CPU_BACKEND ? 0 : opts.id;
    if (id < 0 || id >= count) {
        flux__fail("get_device: %s has no device %d: there %s %d, from 0 to %d",
                   flux__backends[b].name, id, count == 1 ? "is" : "are", count, count - 1);
        return d;
    }
    d.backend = b;
    d.id = id;
    if (opts.verbose && opts.backend)
        flux__note(FLUX_LOG_INFO, "device.chosen", false, "get_device: using %s, as asked",
                   flux_device_name(d));
    return d;
}

FLUX__END_COLD

#endif /* FLUX__DEVICE_CHOOSING_H */
